"""A thread that writes files, so that nobody who serves jobs waits for a disk.

Theory. Whoever has something to write hands over a task and goes on. The queue is bounded: when the disk is slower than
the failures, tasks are dropped and counted; nothing waits for room. A task that fails, as on a full disk, is told and
counted, and the next one is tried: what is written down must never cost a job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue

__all__ = ["TASKS_MAX", "Recorder"]

TASKS_MAX = 64


class Recorder:
    """on_failure: told what could not be done (the task's kind) and why; also when it was dropped.

    Its thread begins with the first task."""

    def __init__(self, name: str, on_failure: Callable[[str, str], None], tasks_max: int = TASKS_MAX) -> None:
        self._tasks: Queue[tuple[str, Callable[[], None]] | None] = Queue(tasks_max)
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._mu = threading.Lock()
        self._begun = self._closed = self._given_up = False

    def hand_over(self, kind: str, task: Callable[[], None]) -> None:
        """Never blocks, never raises."""
        with self._mu:
            if self._closed:
                return
            if not self._begun:
                self._begun = True
                self._thread.start()
        try:
            self._tasks.put_nowait((kind, task))
        except Full:
            self._on_failure(kind, f"dropped: {self._tasks.maxsize} others wait to be written")

    def close(self, timeout_s: float) -> bool:
        """Do what has been handed over, and end. False: that took longer; what is left is not done."""
        with self._mu:
            self._closed = True
        if not self._begun:
            return True
        with suppress(Full):
            self._tasks.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)
        self._given_up = self._thread.is_alive()
        return not self._given_up

    def _run(self) -> None:
        while not self._given_up and (item := self._tasks.get()) is not None:
            kind, task = item
            try:
                task()
            except Exception as error:
                self._on_failure(kind, f"{type(error).__name__}: {error}")
