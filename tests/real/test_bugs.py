"""Each bug of the list is caught, as docs/seeded-bugs.md says; without it the same runs are well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from bugs import BUGS, Bug
from finding import Found, look, look_for
from seeded import line, rows

from checker.real import Plan, Scenario
from machines.protocol import RULEBOOK
from runtime import wakes
from runtime.calrt import Library
from runtime.cast import CAST
from runtime.compiled import CompiledRule, Program
from runtime.engine import Engine

Edge = tuple[str, str]
SLOW = 20  # runs until it is caught: nightly
ROWS = rows()


def runs_of(bug: Bug) -> int:
    return int(ROWS[bug.name].split(" | ")[2])


FAST = [bug for bug in BUGS if runs_of(bug) < SLOW]


def name(bug: Bug) -> str:
    return bug.name.replace(" ", "_")


def test_the_page_has_every_bug() -> None:
    assert [n for n in ROWS if n not in ("bug", "---")] == [bug.name for bug in BUGS]


@pytest.mark.parametrize("bug", FAST, ids=name)
def test_it_is_caught_as_the_page_says(bug: Bug, library: Library) -> None:
    found = look_for(bug, library)
    assert found is not None
    assert line(bug, found) == ROWS[bug.name], "python -m tests.real.seeded"


@pytest.mark.nightly
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug not in FAST], ids=name)
def test_it_is_caught_after_long(bug: Bug, library: Library) -> None:
    test_it_is_caught_as_the_page_says(bug, library)


@pytest.mark.parametrize("scenario", {repr(bug.scenario): bug.scenario for bug in BUGS}.values(), ids=str)
def test_without_the_bug_nothing_is_found(scenario: Scenario, library: Library) -> None:
    """Negative control: what is caught is the bug."""
    assert look(scenario, library, runs_max=2) is None


# -- wake edges --------------------------------------------------------------------------------------------------------
EDGES = Scenario(
    slots=2, inflight=2, moves=("cancel", "time", "close"), ends_after=60, faults=2,
    kinds=("infer.device", "reserve.refused", "infer.busy", "commit.throw"), clients=(Plan(),) * 3,
)  # fmt: skip


@contextmanager
def noting(used: Counter[Edge]) -> Iterator[None]:
    """Counts the edges along which somebody was granted something."""
    serve = Engine._serve

    def noted(self: Engine, concern: Any, element: Any, waiters: Any, steps: Any, granted: Any) -> None:
        before, by = len(granted), [step[0].id for step in steps if concern in step[2]]
        serve(self, concern, element, waiters, steps, granted)
        if len(granted) > before:
            used[by[-1], concern.rule.id] += 1

    with patch.object(Engine, "_serve", noted):
        yield


@contextmanager
def without(edge: Edge) -> Iterator[None]:
    """What a step of one rule may enable of another is not known."""
    concern = wakes._concern.__wrapped__

    def deaf(rule: CompiledRule, other: CompiledRule) -> Any:
        return None if (rule.id, other.id) == edge else concern(rule, other)

    with patch.object(wakes, "_concern", deaf):
        yield


def deleted(edge: Edge, library: Library, runs: int) -> Found | None:
    with without(edge):
        return look(EDGES, library, runs)


def edges(library: Library, runs: int) -> list[Edge]:
    used: Counter[Edge] = Counter()
    with noting(used):
        assert look(EDGES, library, runs) is None
    return sorted(used)


def redundant(edge: Edge) -> bool:
    """Along another edge from the same step the same actor is woken, who takes both rules."""
    rules = Program(RULEBOOK, {}).rules
    by, rule = edge
    others = [r.rule for r in rules.values() if r.id != rule and wakes._concern(rules[by], r)]
    takers = [part for part in CAST if part.takes(RULEBOOK.rule(rule))]
    return any(part.takes(other) and other.outcome is None for part in takers for other in others)


def missed(library: Library, runs: int) -> list[Edge]:
    every = edges(library, runs)
    assert len(every) >= 12
    found = {edge: deleted(edge, library, runs) for edge in every}
    return [edge for edge, f in found.items() if f is None and not redundant(edge)]


def test_wake_edges_deleted_one_by_one(library: Library) -> None:
    """Somebody is then parked for a rule that is enabled: each derived edge is needed."""
    assert missed(library, runs=6) == []


@pytest.mark.nightly
def test_wake_edges_of_many_runs_deleted_one_by_one(library: Library) -> None:
    assert missed(library, runs=100) == []
