"""The rules that run are the rules that are explored: compiled rules against the checker's own reading of the rulebook.

The model is explored as the checker does it. The records are set to a state's own variables, and each rule is asked:
whatever step the model takes, the compiled rule takes, to the same own variables; and no guard differs.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from checker.explore import compile_model
from checker.model import Instance, Model, build
from machines.expr import Expr
from machines.ground import ground
from machines.protocol import RULEBOOK
from machines.rulebook import Rule
from runtime.compiled import IllegalTransition, Program

RUNS = {run.name: run for run in RULEBOOK.runs if run.tier == "fast" and run.expect == "PROVED"}
CHOSEN = [name for name in RUNS if name.endswith("1 job")]
STATES, EXAMPLES, SAMPLE = 30_000, 3, 300
RULES = 75  # of 108; the others need two jobs or more resets


class Mirror:
    """Records that are set from, and read back to, a state of the model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.program = Program(RULEBOOK, model.scope.values)
        self.shared = self.program.shared()
        self.elements: dict[str, list[Any]] = {}
        for sort in RULEBOOK.sorts:
            self.elements[sort.name] = [self.program.element(sort.name) for _ in range(model.env.sizes[sort.name])]
            getattr(self.shared, f"{sort.name}_elements").update(dict.fromkeys(self.elements[sort.name]))
        for link in RULEBOOK.maps:
            for i, e in enumerate(self.elements[link.source.name]):
                setattr(e, link.name, self.elements[link.target.name][link.function(i, model.env.params)])

    def places(self) -> list[tuple[int, Any, str]]:
        """(slot, record, variable) of every own variable."""
        return [
            (
                s.number,
                self.shared if s.var.sort is None else self.elements[s.var.sort.name][s.element or 0],
                s.var.name,
            )
            for s in self.model.slots
            if not s.var.world
        ]

    def set(self, state: tuple[int, ...]) -> None:
        for slot, record, name in self.places():
            setattr(record, name, state[slot])

    def differences(self, state: tuple[int, ...]) -> list[str]:
        return [
            self.model.slots[slot].name for slot, record, name in self.places() if getattr(record, name) != state[slot]
        ]

    def element(self, instance: Instance) -> Any:
        if not instance.rule.over:
            return None
        return self.elements[instance.rule.over[0].args[0].name][instance.binding[0]]


def enabled(model: Model, rule: Rule, instance: Instance, state: tuple[int, ...]) -> bool:
    """The own guard, evaluated on the tree: no code is generated."""
    binding = dict(zip(rule.over, instance.binding, strict=True))
    return bool(value(ground(rule.full_guard, model.env, binding), state))


def value(e: Expr, state: tuple[int, ...]) -> int:
    match e.op:
        case "const":
            return e.value
        case "slot":
            return state[e.args[0]]
        case "and":
            return int(all(value(a, state) for a in e.args))
        case "or":
            return int(any(value(a, state) for a in e.args))
        case "not":
            return int(not value(e.args[0], state))
        case "ite":
            test, then, otherwise = e.args
            return value(then if value(test, state) else otherwise, state)
        case _:
            a, b = (value(x, state) for x in e.args)
            return {"add": a + b, "sub": a - b, "eq": int(a == b), "lt": int(a < b), "le": int(a <= b)}[e.op]


Move = tuple[tuple[int, ...], Instance, tuple[int, ...]]


def explored(model: Model, fire: list[Any]) -> tuple[list[tuple[int, ...]], dict[str, list[Move]]]:
    """The first STATES states, breadth first, and of each rule the first EXAMPLES steps."""
    seen, order = {model.initial}, [model.initial]
    moves: dict[str, list[Move]] = defaultdict(list)
    for state in order:
        for instance in model.instances:
            if (result := fire[instance.number](state, set())) is None:
                continue
            if len(moves[instance.rule.id]) < EXAMPLES:
                moves[instance.rule.id].append((state, instance, result[0]))
            if result[0] not in seen and len(order) < STATES:
                seen.add(result[0])
                order.append(result[0])
    return order, moves


@pytest.mark.parametrize("name", CHOSEN)
def test_what_runs_is_what_is_explored(name: str) -> None:
    model = build(RULEBOOK.scope(RUNS[name].values))
    states, moves = explored(model, compile_model(model).fire)
    mirror = Mirror(model)
    rules = mirror.program.rules
    for before, instance, after in (m for some in moves.values() for m in some if m[1].rule.id in rules):
        mirror.set(before)
        assert rules[instance.rule.id].fire(mirror.shared, mirror.element(instance)), instance.name
        assert mirror.differences(after) == [], instance.name
    refused = 0
    for state in random.Random(name).sample(states, SAMPLE):
        mirror.set(state)
        for instance in (i for i in model.instances if i.rule.id in rules):
            rule, element = rules[instance.rule.id], mirror.element(instance)
            own = enabled(model, instance.rule, instance, state)
            assert rule.guard(mirror.shared, element) == own, (instance.name, model.show(state))
            if not own:
                assert not rule.fire(mirror.shared, element)
                assert mirror.differences(state) == []
                refused += 1
    assert len(moves) > RULES, "most rules were seen firing"
    assert refused > 10 * SAMPLE


def test_only_the_devices_rules_are_left_out() -> None:
    program = Program(RULEBOOK, {})
    assert {r.id for r in RULEBOOK.rules} - set(program.rules) == {
        r.id for r in RULEBOOK.rules if r.actor.name == "device"
    }


def test_an_impossible_event_is_raised_and_nothing_is_changed() -> None:
    program = Program(RULEBOOK, {})
    s, e = program.shared(), program.element("job")
    s.job_elements[e] = None
    e.seq_of = program.element("seq")
    e.call = 1  # Reserve, in a job that does not exist
    with pytest.raises(IllegalTransition, match=r"admission\.reserve\.ok: job is Absent, where admit is not possible"):
        program.rules["admission.reserve.ok"].fire(s, e)
    assert (e.state, e.kv, e.call, s.calls) == (0, 0, 1, 0)


def test_reads_and_writes() -> None:
    rules = Program(RULEBOOK, {}).rules
    ok = rules["admission.reserve.ok"]
    assert ok.reads == {("own", "call")}
    assert ok.writes == {
        ("own", "state"), ("own", "kv"), ("own", "call"), ("shared", "calls"), ("shared", "line"),
        ("shared", "bypassed"), ("any", "turn"),
    }  # fmt: skip
    assert ("any", "record") in rules["admission.reserve.prefill"].writes, "another job may share the sequence"
