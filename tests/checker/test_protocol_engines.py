"""Both engines mean the same on the executor's protocol: every scope of it that plain Python can finish."""

from __future__ import annotations

import pytest

from checker.explore import explore
from checker.model import build
from checker.native import Program
from machines.protocol import RULEBOOK
from machines.rulebook import Run

ONE_JOB = [r for r in RULEBOOK.runs if r.values.get("jobs") == 1]
TWO_JOBS = [r for r in RULEBOOK.runs if r.name.endswith("2 jobs live") or r.name == "fair weather"]


def agree(run: Run) -> None:
    """States, transitions, depth, counts of every rule instance, cells, findings and their traces."""
    model = build(RULEBOOK.scope(run.values, run.without))
    python, native = explore(model), Program(model).explore()
    assert python.complete
    assert native.complete
    assert (native.states, native.transitions, native.depth) == (python.states, python.transitions, python.depth)
    assert native.fired == python.fired
    assert native.cells == python.cells
    assert native.reached == python.reached
    assert native.findings == python.findings


def test_the_scopes_are_there() -> None:
    assert len(ONE_JOB) >= 15
    assert len(TWO_JOBS) >= 5


@pytest.mark.parametrize("run", [r for r in ONE_JOB if r.name.endswith("1 job")], ids=lambda r: r.name)
def test_engines_agree_on_one_job(run: Run) -> None:
    agree(run)


@pytest.mark.nightly
@pytest.mark.parametrize("run", ONE_JOB + TWO_JOBS, ids=lambda r: r.name)
def test_engines_agree_wherever_python_can_finish(run: Run) -> None:
    agree(run)
