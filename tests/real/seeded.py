"""docs/seeded-bugs.md, generated: `python -m tests.real.seeded` writes it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "runtime")]

from bugs import BUGS, Bug  # noqa: E402
from finding import Found, look_for  # noqa: E402

from runtime.calrt import Library  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "seeded-bugs.md"
SAID_MAX = 100
HEAD = """# Seeded bugs, and what catches them

Generated: `python -m tests.real.seeded`; a test keeps it so. Each line is the shipped executor with one bug
(`tests/real/bugs.py`, test code only), run under the scheduler (docs/real.md) with drawn choices until something is
not as it must be. *runs* and *moves*: how many that took, all runs together, at 80 drawn choices a run. Without the bug
the same runs are well. Besides, each edge along which a step wakes somebody is deleted in turn: then somebody is parked
for a rule that is enabled, unless another edge of the same step wakes the same actor.

Not in the list: *journal written under a lock*. A file that is written there makes no call that a witness of ours sees.

| bug | what is wrong | runs | moves | caught by |
| --- | --- | --- | --- | --- |
"""


def line(bug: Bug, found: Found) -> str:
    said = found.what if len(found.what) <= SAID_MAX else found.what[:SAID_MAX].rsplit(" ", 1)[0] + " …"
    return (
        f"| {bug.name} | {bug.about} | {found.runs} | {found.moves} | `{said.replace('|', '/').replace('`', '')}` |\n"
    )


def rows() -> dict[str, str]:
    """The page's lines about bugs, by name."""
    lines = PAGE.read_text(encoding="utf-8").splitlines(keepends=True)
    return {text.split(" | ")[0].removeprefix("| "): text for text in lines if text.startswith("| ")}


def main() -> None:
    logging.disable(logging.CRITICAL)
    library = Library.load()
    found = {bug: look_for(bug, library) for bug in BUGS}
    PAGE.write_text(HEAD + "".join(line(bug, f) for bug, f in found.items() if f), encoding="utf-8")
    missed = [bug.name for bug, f in found.items() if f is None]
    sys.exit(f"not caught: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
