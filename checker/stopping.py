"""How the command is told to stop: Ctrl-C is an exception of Python's, and SIGTERM becomes one, so that both unwind the
same way: children are ended, temporary files are removed. Imports nothing that takes time: it must work first."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


class Terminated(BaseException):
    """SIGTERM came. Not an Exception: nothing that goes on after an error may go on after this."""


def raise_on_sigterm() -> None:
    """From now on SIGTERM raises Terminated in the main thread."""
    signal.signal(signal.SIGTERM, _raise)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # once is enough; a second one would cut the unwinding short
    raise Terminated
