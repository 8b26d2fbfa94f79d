"""Executors with a bug, for `calexec run --break NAME`: what proves something must be seen to be red.

The bugs themselves are test code (tests/runtime/seeded_bugs.py), each a few lines that change the running executor's
classes. Here they are only found and named; where the tests are not there, in an installed wheel, there are none.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from runtime.exits import Exit, Failure

if TYPE_CHECKING:
    from runtime.report import Report

__all__ = ["Bug", "bug_named", "bugs"]

FILE = Path(__file__).parents[1] / "tests" / "runtime" / "seeded_bugs.py"


@frozen(kw_only=True)
class Bug:
    """seen_as: which count of Report must tell of it. settings: options of the command under which it shows.
    planned, late_s: as those of Asked. installed: the bug is there inside of this context."""

    name: str
    about: str
    seen_as: str
    installed: Callable[[], AbstractContextManager[None]]
    settings: Mapping[str, Any] = field(factory=dict)
    planned: tuple[tuple[str, str, int], ...] = ()
    late_s: float = 5.0

    def seen(self, report: Report) -> bool:
        return bool(getattr(report, self.seen_as))


def bugs(file: Path | None = None) -> tuple[Bug, ...]:
    """All of a file, of FILE where none is named. Raises Failure where the tests are not there."""
    file = file or FILE
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise Failure(Exit.USAGE, [f"seeded bugs are test code, and {file} is not there: use the source tree"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: tuple[Bug, ...] = module.BUGS
    return found


def bug_named(name: str, file: Path | None = None) -> Bug:
    """Raises Failure, also for a name that there is not."""
    known = {bug.name: bug for bug in bugs(file)}
    if name not in known:
        raise Failure(Exit.USAGE, [f"no seeded bug is called {name!r}; there are {', '.join(known)}"])
    return known[name]
