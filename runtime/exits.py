"""Exit codes of `calexec`: the one list. `--help` reads it, a test holds docs/manifest.md to it, nothing else names a
number. Where `check-states` has the same meaning, the number is the same."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Exit(enum.IntEnum):
    """How `calexec` ended. Only 0 is green."""

    about: str

    def __new__(cls, code: int, about: str) -> Exit:
        member = int.__new__(cls, code)
        member._value_ = code
        member.about = about
        return member

    OK = 0, "everything that was asked for is so"
    BUG = 1, "a bug of calexec itself (the only case with a traceback)"
    NO_LIBRARY = 2, "libcalrt_c.so is missing, cannot be loaded, or does not answer"
    VERSION = 3, "the library is another version than the manifest is for"
    MANIFEST = 4, "the manifest is not sound; every finding is named, one per line"
    CALBIN = 5, "the calbin is missing, is another file than the manifest is for, or CalRT refuses it"
    USAGE = 6, "unknown command or option, or a value out of range"
    MODELS = 7, "the calbin's submodels are not those of the manifest; every finding is named, one per line"
    DEVICE = 8, "the device does not open or does not answer"
    NOT_WRITTEN = 9, "a file or the report could not be written"
    DIFFERENT = 10, "a token, bit, step or answer differs from its reference, or the simulator saw a violation"
    UNDETERMINED = 11, "a vendor fact could not be determined; it counts as the worst case"
    FAILED = 12, "the device Failed: neither policy nor budget allowed another reset; only a new process can go on"
    UNEXPLAINED = 13, "a job hung or failed without a cause, something was not given back, or too few completed"
    ABANDONED = 14, "closing did not end in time: every job was answered, and the device was left as it is"
    GROWING = 15, "a soak's memory, files, threads, handles or objects grow, or it was too short to tell"
    INTERRUPTED = 130, "interrupted (Ctrl-C, SIGTERM)"


def exit_of(code: int) -> Exit:
    """What a process of ours that ended with this code meant; a bug where it is no code of ours, or a signal."""
    return next((e for e in Exit if e == code), Exit.BUG)


class Failure(Exception):
    """A command cannot go on: an exit code, and one line per thing that is wrong."""

    def __init__(self, exit_: Exit, lines: Iterable[str]) -> None:
        self.exit = exit_
        self.lines = tuple(lines)
        super().__init__("; ".join(self.lines))


def table() -> str:
    """The exit codes as `--help` prints them."""
    return "\n".join(f"  {e.value:<4} {e.about}" for e in Exit)
