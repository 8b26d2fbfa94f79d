"""SIGTERM is Ctrl-C: a service that is stopped closes its executor, as a user does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["stoppable"]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside, SIGTERM raises KeyboardInterrupt in the main thread. Elsewhere than there it changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
