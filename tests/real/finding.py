"""Looking for a bug: runs of its scenario with drawn choices, one after the other, until one is not as it must be."""

from __future__ import annotations

from attrs import evolve, frozen
from bugs import Bug

from checker.real import Run, Scenario, Violated, chosen, running
from runtime.calrt import Library

__all__ = ["Found", "look"]

RUNS_MAX = 60
CHOICES = 80


@frozen
class Found:
    """runs, moves: that were made until then; what: the first line of what was said."""

    runs: int
    moves: int
    what: str


def look(scenario: Scenario, library: Library, runs_max: int = RUNS_MAX) -> Found | None:
    """None: nothing was found. Every second run is `fine`."""
    steps = 0
    for seed in range(runs_max):
        found: list[Run] = []
        try:
            with running(evolve(scenario, fine=scenario.fine or seed % 2 == 1), library) as run:
                found.append(run)
                for choice in chosen(seed, CHOICES):
                    run.step(choice)
                run.end()
        except Violated as violated:
            return Found(seed + 1, steps + sum(len(r.choices) for r in found), str(violated).splitlines()[0])
        steps += len(found[0].choices)
    return None


def look_for(bug: Bug, library: Library) -> Found | None:
    with bug.installed():
        return look(bug.scenario, library)
