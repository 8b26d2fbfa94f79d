"""Runs one declared run of a rulebook and draws what it finds."""

from __future__ import annotations

import re

from attrs import frozen

from checker.campaign import execute, plan_campaign
from checker.engines import Search
from checker.model import Model
from checker.progress import QuietBoard
from checker.result import Finding, Limits
from diagrams.picture import Picture
from diagrams.sequence import sequence_picture
from machines.rulebook import Rulebook, Run

__all__ = ["NothingFound", "Refutation", "counterexample_picture", "refute"]


class NothingFound(LookupError):
    """The run has no counterexample (of the property asked for): one line that says what it has."""


@frozen(eq=False)
class Refutation:
    run: Run
    model: Model
    finding: Finding


def refute(
    book: Rulebook, run: str, prop: str = "", *, engine: str = "auto", limits: Limits | None = None
) -> Refutation:
    """The counterexample to `prop` in a run; without `prop` to the property that the run declares, else the shortest.

    Raises NothingFound, SelectionError (no such run) or EngineError.
    """
    plan = plan_campaign(book, patterns=[run])
    if len(plan.tasks) != 1:
        raise NothingFound(f"{run!r} names several runs; name one of {', '.join(t.run.name for t in plan.tasks)}")
    result = execute(plan, Search(engine, limits or Limits()), QuietBoard(), workers=1)[0]
    found = result.findings
    wanted = prop or result.run.by
    if not wanted and found:
        wanted = min(found, key=lambda p: (found[p].length, p))
    if wanted not in found:
        asked = f"no counterexample to {wanted}" if wanted else "no counterexample"
        raise NothingFound(f"run {run} of {book.name} has {asked}; it refutes {', '.join(sorted(found)) or 'nothing'}")
    return Refutation(result.run, result.model, found[wanted])


def counterexample_picture(refutation: Refutation) -> Picture:
    """The sequence diagram of a refutation; its file is named after the run."""
    run = refutation.run
    return sequence_picture(
        refutation.model,
        refutation.finding,
        name="counterexample-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", run.name),
        about=f"run: {run.name}",
    )
