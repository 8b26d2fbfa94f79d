"""A gate that opens once: any number of threads may wait for it, each of them blocked on a lock of its own.

Theory. Every job has two of them, so they must cost nothing where nobody waits: `threading.Event` makes a condition, a
deque and two locks for each. Here a waiter brings the lock that it waits on, and who opens releases those that are
there: one wake-up for each, and none for who comes later.
"""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Gate"]


class Gate:
    """Thread-safe."""

    __slots__ = ("_mu", "_waiting", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._mu = threading.Lock()
        self._waiting: list[Any] = []

    def open(self) -> None:
        """From now on. Harmless when it comes again."""
        with self._mu:
            self.is_open = True
            waiting, self._waiting = self._waiting, []
        for lock in waiting:
            lock.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it is open, at the latest after so many seconds (None: however long it takes)."""
        if self.is_open:
            return True
        lock = threading.Lock()
        lock.acquire()
        with self._mu:
            if self.is_open:
                return True
            self._waiting.append(lock)
        try:
            lock.acquire(timeout=-1 if timeout_s is None else timeout_s)
        finally:  # also when the waiter is interrupted
            with self._mu:
                if lock in self._waiting:
                    self._waiting.remove(lock)
        return self.is_open
