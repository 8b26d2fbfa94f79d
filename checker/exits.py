"""Exit codes of `check-states`: the one list. `--help` and the reports read it; nothing else names a number."""

from __future__ import annotations

import enum

from checker.result import Verdict


class Exit(enum.IntEnum):
    """How `check-states` ended. Only 0 is green."""

    about: str

    def __new__(cls, code: int, about: str) -> Exit:
        member = int.__new__(cls, code)
        member._value_ = code
        member.about = about
        return member

    PROVED = Verdict.PROVED.exit_code, "PROVED: every property holds in every run, and every run ended as declared"
    BUG = 1, "a bug of the checker itself (the only case with a traceback)"
    REFUTED = Verdict.REFUTED.exit_code, "REFUTED: a property is violated, or a declared refutation did not come"
    UNDETERMINED = Verdict.UNDETERMINED.exit_code, "UNDETERMINED: a limit was hit, or a property was evaluated nowhere"
    BAD_RULEBOOK = 4, "the rulebook is not well formed; every problem is named, one per line"
    NOT_FOUND = 5, "the module cannot be imported, or has no such rulebook"
    USAGE = 6, "unknown option, run or parameter, or a value out of range"
    NO_ENGINE = 7, "the C engine was demanded and there is no working compiler, or an engine broke down"
    NOT_COVERED = 8, "everything holds, but a row or rule never fired (or one declared unreachable did)"
    NOT_WRITTEN = 9, "a report could not be written"
    NO_END = 10, "replay: the rulebook allows every line, but the journal has no end, so its last lines may be missing"
    NOT_A_JOURNAL = 11, "replay: the file cannot be read, or is no journal"
    INTERRUPTED = 130, "interrupted (Ctrl-C)"
    TERMINATED = 143, "terminated (SIGTERM)"


def table() -> str:
    """The exit codes as `--help` prints them."""
    return "\n".join(f"  {e.value:<4} {e.about}" for e in Exit)
