"""Simplified step properties: on every step of a model they have the value of the original."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import checker.simplify
from checker.explore import explore
from checker.model import Model, StateTuple, build
from checker.simplify import Known, simplify
from machines.expr import Expr, ite
from machines.ground import fold
from machines.printing import to_python
from machines.rulebook import Step
from tests.checker.door import Door, call, damage, door, door_rulebook, used

PROPERTIES = tuple(
    Step(name, "for the test", holds=holds)
    for name, holds in {
        "unwritten": ~(damage & ~damage.next),
        "machine": ~((door == Door.Open) & (door.next == Door.Open)),
        "guard": (used < 2) | (door == Door.Closed),
        "constant": (used.next == 0) | (used <= used.next),
        "call": (call == call.next) | (door == door.next),
        "ite": ite(door.next == Door.Open, used.next, used) <= 2,
    }.items()
)


def model() -> Model:
    return build(door_rulebook(properties=PROPERTIES, runs=()).scope({"size": 3, "manner": 1}))


def steps(m: Model) -> list[tuple[int, StateTuple, StateTuple]]:
    """Every (instance, before, after)."""
    edges: list[tuple[int, int, int]] = []
    order: list[StateTuple] = []
    explore(m, graph=edges, order=order)
    return [(n, order[a], order[b]) for a, b, n in edges]


def truth(e: Expr, before: StateTuple, after: StateTuple) -> bool:
    return bool(eval(to_python(e, lambda k, primed: f"{'t' if primed else 's'}[{k}]"), {"s": before, "t": after}))


def differences(m: Model) -> int:
    known = [Known.of(m, i) for i in m.instances]
    return sum(
        truth(g.holds, before, after) != truth(simplify(g.holds, known[n]), before, after)
        for n, before, after in steps(m)
        for g in m.steps
    )


def test_the_value_stays_and_most_of_it_is_decided() -> None:
    m = model()
    assert len(steps(m)) > 50
    assert differences(m) == 0
    simplified = [simplify(g.holds, Known.of(m, i)) for i in m.instances for g in m.steps]
    assert sum(e.is_const for e in simplified) > len(simplified) / 2


def allowed_too_little(m: Model, guard: Expr) -> dict[int, frozenset[int]]:
    return {slot.number: frozenset({0}) for slot in m.slots}


def nothing_is_written(m: Model, inst: Any) -> Known:
    return Known({}, {}, frozenset())


@pytest.mark.parametrize("mistake", [allowed_too_little, nothing_is_written])
def test_a_wrong_simplification_is_noticed(mistake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    if mistake is allowed_too_little:
        monkeypatch.setattr(checker.simplify, "_allowed", mistake)
    else:
        monkeypatch.setattr(Known, "of", mistake)
    assert differences(model()) > 0


def test_a_count_of_decided_and_open_parts() -> None:
    slots = [Expr("slot", (k, False)) for k in (0, 1)]
    total = Expr("sum", (fold("eq", [slots[0], Expr("const", (1, "1"))]), slots[1], Expr("const", (2, "2"))))
    known = Known({0: frozenset({1})}, {}, frozenset())
    assert simplify(total, known).args[-1].value == 3
    assert simplify(total, Known({0: frozenset({1}), 1: frozenset({3})}, {}, frozenset())).value == 4
