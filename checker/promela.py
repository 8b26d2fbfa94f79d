"""A model as Promela, for a second opinion by SPIN: same states, same transitions, same verdicts, other people's code.

Theory. One process stands at the head of one loop for ever; each instance is one option of the loop, a `d_step`, so one
step here is one step of SPIN's and a state is the variables alone. Therefore SPIN's stored states are ours, and its
transitions are ours and one (it counts the initial state). Needed for that: `spin -o2` (else it drops variables that
are written but not read) and `-DNOREDUCE`.

    spin -o2 -a model.pml && gcc -O2 -DSAFETY -DNOREDUCE -o pan pan.c && ./pan -E

Updates are simultaneous: a value that reads a variable which the same step writes goes through a `hidden` one first.
A step that leaves a range or fires an impossible event is taken and leads nowhere in the engines: here it leads back.

With `checks`, each safety property is one more option, enabled where the property is violated, which fails an assertion
(`assert(0 == 3)` for the property numbered 3 in the header). Where nothing is violated it is never enabled, so the
counts stay equal. Step properties need no next state: the values that the step writes are put in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import numpy as np
from attrs import frozen

from checker.model import Instance, Model, TableStep
from checker.result import DEADLOCK, ILLEGAL, RANGE, RECEPTIVE
from checker.vector import evaluate
from machines.expr import Expr, any_of, const, same
from machines.ground import fold, fold_and, fold_or
from machines.printing import to_promela

IMPOSSIBLE, REJECTED = -1, -2


def safety_properties(model: Model) -> tuple[str, ...]:
    """The ids of what an export can check, in the order of its numbers: the built-in ones first."""
    declared = (g.prop.id for g in (*model.invariants, *model.steps))
    return tuple(dict.fromkeys((DEADLOCK, RANGE, ILLEGAL, RECEPTIVE, *declared)))


def export(model: Model, checks: Iterable[str] = ()) -> str:
    """The model as Promela. checks: ids of safety properties (see `safety_properties`) to assert."""
    numbers = {prop: n for n, prop in enumerate(safety_properties(model))}
    wanted = list(checks)
    if unknown := [prop for prop in wanted if prop not in numbers]:
        raise ValueError(f"{', '.join(unknown)} cannot be exported; allowed are {', '.join(numbers)}")
    steps = [Step.of(model, inst) for inst in model.instances]
    bad = violations(model, steps)
    lines = [*_header(model, {p: numbers[p] for p in wanted}), *_declarations(model, steps), ""]
    lines += ["active proctype rulebook() {", "  do"]
    for step in steps:
        lines += _options(model, step)
    for prop in wanted:
        if not _never(bad[prop]):
            lines.append(f"  :: d_step {{ {_text(model, bad[prop])} -> assert(0 == {numbers[prop]}) }}  /* {prop} */")
    return "\n".join([*lines, "  od", "}", ""])


# -- one instance -----------------------------------------------------------------------------------------------------
@frozen(eq=False)
class Step:
    """An instance as expressions over the state before it: when it is enabled, when it is illegal or leaves a range
    (then it leads nowhere), and what it writes."""

    instance: Instance
    enabled: Expr
    illegal: Expr
    out_of_range: Expr
    writes: Mapping[int, Expr]

    @classmethod
    def of(cls, model: Model, inst: Instance) -> Step:
        enabled, illegal = [inst.guard], []
        writes: dict[int, Expr] = {}
        for fired in inst.steps:
            possible = _values_allowed(model, inst.guard, fired.slot)
            enabled.append(_not(_is_in(fired.slot, [s for s in possible if fired.targets[s] == REJECTED])))
            illegal.append(_is_in(fired.slot, [s for s in possible if fired.targets[s] == IMPOSSIBLE]))
            writes[fired.slot] = _target(fired, possible)
        writes |= dict(inst.updates)
        out = [_outside(model, slot, value) for slot, value in inst.updates]
        return cls(inst, fold_and(enabled), fold_or(illegal), fold_or(out), writes)

    @property
    def leads_on(self) -> Expr:
        return fold_and([self.enabled, _not(self.illegal), _not(self.out_of_range)])


def _slot(slot: int) -> Expr:
    return Expr("slot", (slot, False))


def _not(e: Expr) -> Expr:
    return fold("not", [e])


def _never(e: Expr) -> bool:
    return e.is_const and not e.value


def _is_in(slot: int, values: Iterable[int]) -> Expr:
    return any_of(*(Expr("eq", (_slot(slot), const(v))) for v in values))


def _values_allowed(model: Model, guard: Expr, slot: int) -> list[int]:
    """The values of one slot that the guard's conjuncts about it alone permit."""
    values = np.arange(model.slots[slot].hi + 1)
    state = np.zeros((len(values), len(model.slots)), dtype=values.dtype)
    state[:, slot] = values
    allowed = np.ones(len(values), dtype=bool)
    for part in guard.conjuncts():
        if {n.args[0] for n in part.walk() if n.op == "slot"} == {slot}:
            allowed &= evaluate(part, state) != 0
    return [int(v) for v in values[allowed]]


def _target(fired: TableStep, sources: list[int]) -> Expr:
    """The machine's new state as an expression over its old one."""
    moves = [(s, fired.targets[s]) for s in sources if fired.targets[s] >= 0]
    by_target = sorted(moves, key=lambda move: move[1])
    groups = [(target, [s for s, _ in group]) for target, group in groupby(by_target, key=lambda move: move[1])]
    if not groups:
        return _slot(fired.slot)
    value = const(groups[-1][0])
    for target, members in groups[:-1]:
        value = Expr("ite", (_is_in(fired.slot, members), const(target), value))
    return value


def _outside(model: Model, slot: int, value: Expr) -> Expr:
    """Where the value leaves the slot's range; FALSE where it plainly cannot."""
    lo, hi = _bounds(model, value)
    below, above = Expr("lt", (value, const(0))), Expr("lt", (const(model.slots[slot].hi), value))
    return fold_or([part for part, may in ((below, lo < 0), (above, hi > model.slots[slot].hi)) if may])


def _bounds(model: Model, e: Expr) -> tuple[int, int]:
    """An interval that holds every value of the expression."""
    match e.op:
        case "const":
            return e.value, e.value
        case "slot":
            return 0, model.slots[e.args[0]].hi
        case "ite":
            (a, b), (c, d) = _bounds(model, e.args[1]), _bounds(model, e.args[2])
            return min(a, c), max(b, d)
        case "add":
            (a, b), (c, d) = _bounds(model, e.args[0]), _bounds(model, e.args[1])
            return a + c, b + d
        case "sub":
            (a, b), (c, d) = _bounds(model, e.args[0]), _bounds(model, e.args[1])
            return a - d, b - c
        case "sum":
            known = sum(a.value for a in e.args if a.is_const)
            return known, known + sum(not a.is_const for a in e.args)
        case _:
            return 0, 1


# -- properties -------------------------------------------------------------------------------------------------------
def violations(model: Model, steps: list[Step]) -> dict[str, Expr]:
    """For each safety property: in which states it is violated, or some step violates it."""
    bad: dict[str, list[Expr]] = {prop: [] for prop in safety_properties(model)}
    bad[DEADLOCK].append(fold_and([*(_not(s.enabled) for s in steps), _not(model.legal_end)]))
    for s in steps:
        bad[ILLEGAL].append(fold_and([s.enabled, s.illegal]))
        bad[RANGE].append(fold_and([s.enabled, _not(s.illegal), s.out_of_range]))
    for p in model.pending:
        takers = Expr("sum", (*p.takers, const(0)))
        bad[RECEPTIVE].append(fold_and([p.when, _not(Expr("eq", (takers, const(1))))]))
    for g in model.invariants:
        bad[g.prop.id].append(_not(g.holds))
    for g in model.steps:
        for s in steps:
            if g.prop.about_rule(s.instance.rule.id):  # type: ignore[attr-defined]
                bad[g.prop.id].append(fold_and([s.leads_on, _not(_after(g.holds, s.writes))]))
    return {prop: fold_or(parts) for prop, parts in bad.items()}


def _after(e: Expr, writes: Mapping[int, Expr]) -> Expr:
    """A step property over the state before: next values are what the step writes."""
    if e.op == "slot":
        slot, primed = e.args
        return writes.get(slot, _slot(slot)) if primed else e
    if e.is_const:
        return e
    args = [_after(a, writes) for a in e.args]
    return Expr("sum", tuple(args)) if e.op == "sum" else fold(e.op, args)


# -- printing ---------------------------------------------------------------------------------------------------------
def _header(model: Model, checks: Mapping[str, int]) -> Iterator[str]:
    yield f"/* Generated from rulebook {model.rulebook.name}, scope ({model.scope}). Do not edit. */"
    for prop, n in checks.items():
        yield f"/* assertion 0 == {n}: {prop} */"


def name_of(model: Model, slot: int) -> str:
    """A slot's variable; the prefix keeps it apart from Promela's keywords."""
    return "v_" + model.slots[slot].name.replace(".", "_")


def _text(model: Model, e: Expr) -> str:
    return to_promela(e, lambda slot, _: name_of(model, slot))


def _declarations(model: Model, steps: list[Step]) -> Iterator[str]:
    for s in model.slots:
        kind = "bit" if s.hi <= 1 else "byte" if s.hi <= 255 else "int"
        yield f"{kind} {name_of(model, s.number)} = {s.initial};"
    for n in range(max((len(_entangled(s.writes)) for s in steps), default=0)):
        yield f"hidden int t_{n};"


def _options(model: Model, step: Step) -> Iterator[str]:
    name = step.instance.name
    if not _never(step.leads_on):
        yield f"  :: d_step {{ {_text(model, step.leads_on)} -> {_assignments(model, step)} }}  /* {name} */"
    lost = fold_and([step.enabled, fold_or([step.illegal, step.out_of_range])])
    if not _never(lost):
        yield f"  :: d_step {{ {_text(model, lost)} -> skip }}  /* {name}: illegal or out of range */"


def _entangled(writes: Mapping[int, Expr]) -> list[int]:
    """The slots whose new value reads another slot that is written too."""
    return [
        slot
        for slot, value in writes.items()
        if any(n.op == "slot" and n.args[0] != slot and n.args[0] in writes for n in value.walk())
    ]


def _assignments(model: Model, step: Step) -> str:
    entangled = _entangled(step.writes)
    out = [f"t_{n} = {_text(model, step.writes[slot])}" for n, slot in enumerate(entangled)]
    for slot, value in step.writes.items():
        if slot not in entangled and not same(value, _slot(slot)):
            out.append(f"{name_of(model, slot)} = {_text(model, value)}")
    out += [f"{name_of(model, slot)} = t_{n}" for n, slot in enumerate(entangled)]
    return "; ".join(out) or "skip"
