"""Every order of a small scenario on the shipped code; a bug is found with a shortest run."""

from __future__ import annotations

import pytest
from attrs import evolve
from bugs import BUGS

from checker.real import Plan, Scenario, chosen, running
from checker.real.exhaustive import Paths, explore, state
from runtime.calrt import Library

ALONE = Scenario(clients=(Plan((2,)),), faults=0, moves=())
CANCEL = evolve(ALONE, moves=("cancel",), cancels=1)
SCOPES = {
    "cancel": CANCEL,
    "cancel and what follows a step later": evolve(CANCEL, fine=True),
    "cancel and close": evolve(CANCEL, moves=("cancel", "close"), ends_after=0),
    "a hang": evolve(ALONE, faults=1, kinds=("infer.hang",)),
    "an exception and a cancel": evolve(CANCEL, faults=1, kinds=("infer.ccu_exception",)),
    "busy and a cancel": evolve(CANCEL, faults=1, kinds=("infer.busy",)),
    "a deadline at any time": evolve(CANCEL, moves=("time",)),
}


def sound(scenario: Scenario, found: Paths, library: Library, runs: int) -> None:
    """Drawn runs come to no state that was not found: what is taken for equal has the same future."""
    for seed in range(runs):
        with running(scenario, library) as run:
            for choice in chosen(seed, 60):
                run.step(choice)
                assert state(run) in found, run.choices
            run.rest()


def test_one_job_in_every_order(library: Library) -> None:
    found: Paths = {}
    explored = explore(ALONE, library, found=found)
    assert (explored.wrong, explored.complete) == ("", True)
    assert explored.ends >= 1
    assert len(found) == explored.states
    sound(ALONE, found, library, runs=10)


@pytest.mark.nightly
@pytest.mark.parametrize("scope", SCOPES)
def test_a_scope_in_every_order(library: Library, scope: str) -> None:
    found: Paths = {}
    explored = explore(SCOPES[scope], library, found=found)
    print(scope, explored)
    assert (explored.wrong, explored.complete) == ("", True)
    sound(SCOPES[scope], found, library, runs=40)


def test_a_bug_is_found_with_a_shortest_run(library: Library) -> None:
    """No shorter list of choices shows it: each that is as long as the one before was tried."""
    bug = next(b for b in BUGS if b.name == "answer set outside the claim")
    with bug.installed():
        explored = explore(CANCEL, library)
        assert "nobody had claimed that" in explored.wrong
        made = [line for line in explored.wrong.splitlines() if line.startswith("  ")]
        assert made[-1].endswith("cancel job 1")
        assert len(made) == 3, "the client looks, enqueues, and it is cancelled"


def test_where_it_stops_early_it_is_not_complete(library: Library) -> None:
    explored = explore(ALONE, library, states_max=5)
    assert (explored.states, explored.complete, explored.wrong) == (5, False, "")
