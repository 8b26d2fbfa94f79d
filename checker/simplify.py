"""What a step property still asks once a rule instance has fired: the parts that the instance decides are put in.

Theory. Most step properties say nothing about most rules: they speak of slots that the rule does not write. Whatever
the instance's guard fixes of the state before, and whatever it writes as a constant, is known when the property is
judged; a slot that it does not write has its old value. With that put in and folded, most properties become TRUE and
need no code. The value is the same in every state in which the instance fires; in others it means nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np
from attrs import frozen

from checker.model import Instance, Model
from checker.vector import evaluate
from machines.expr import FALSE, TRUE, Expr, const, same
from machines.ground import fold, fold_and, fold_or

Values = frozenset[int]
TRIED_MAX = 4096  # combinations of values


@frozen(eq=False)
class Known:
    """Possible values of slots before (`now`) and after (`then`) an instance fired. then: written slots only."""

    now: Mapping[int, Values]
    then: Mapping[int, Values]
    written: frozenset[int]

    @classmethod
    def of(cls, model: Model, inst: Instance) -> Known:
        now = _allowed(model, inst.guard)
        then = {slot: frozenset({value.value}) for slot, value in inst.updates if value.is_const}
        for s in inst.steps:
            sources = now.get(s.slot, range(len(s.targets)))
            then[s.slot] = frozenset(s.targets[v] for v in sources if s.targets[v] >= 0)
        written = [*(slot for slot, _ in inst.updates), *(s.slot for s in inst.steps)]
        return cls(now, then, frozenset(written))

    def values(self, slot: int, primed: bool) -> Values | None:
        return (self.then if primed and slot in self.written else self.now).get(slot)


def _allowed(model: Model, guard: Expr) -> dict[int, Values]:
    """The values of each slot that the guard's conjuncts about that slot alone permit."""
    allowed: dict[int, Values] = {}
    for part in guard.conjuncts():
        slots = {n.args[0] for n in part.walk() if n.op == "slot"}
        if len(slots) == 1:
            (slot,) = slots
            values = np.arange(model.slots[slot].hi + 1)
            states = np.zeros((len(values), len(model.slots)), dtype=values.dtype)
            states[:, slot] = values
            permitted = frozenset(int(v) for v in values[evaluate(part, states) != 0])
            allowed[slot] = allowed.get(slot, permitted) & permitted
    return allowed


def simplify(e: Expr, known: Known) -> Expr:
    """The same value in every step of the instance, with what is known put in."""
    match e.op:
        case "const":
            return e
        case "slot":
            return _slot(e, known)
        case "eq" | "lt" | "le":
            return _comparison(e, known)
        case "sum":  # the last argument is a number, the others count as 0 or 1
            items = [simplify(a, known) for a in e.args[:-1]]
            decided = sum(bool(a.value) for a in items if a.is_const) + e.args[-1].value
            unsure = [a for a in items if not a.is_const]
            return Expr("sum", (*unsure, const(decided))) if unsure else const(decided)
    args = [simplify(a, known) for a in e.args]
    if e.op == "and":
        return _without_opposites(fold_and(args), "and", FALSE)
    if e.op == "or":
        return _without_opposites(fold_or(args), "or", TRUE)
    return fold(e.op, args)


def always(e: Expr, model: Model, known: Known) -> bool:
    """Whether a simplified expression is true whatever its slots hold: tried, when they are few and small."""
    if e.is_const:
        return bool(e.value)
    reads = {n.args for n in e.walk() if n.op == "slot"}
    slots = sorted(slot for slot, _ in reads)
    if any(primed for _, primed in reads):
        return False
    ranges = [sorted(known.now.get(n, range(model.slots[n].hi + 1))) for n in slots]
    many = math.prod(map(len, ranges))
    if many > TRIED_MAX:
        return False
    states = np.zeros((many, len(model.slots)), dtype=np.int32)
    states[:, slots] = np.array(list(itertools.product(*ranges)), dtype=np.int32).reshape(many, len(slots))
    return bool(np.all(evaluate(e, states)))


def _slot(e: Expr, known: Known) -> Expr:
    slot, primed = e.args
    values = known.values(slot, primed)
    if values is not None and len(values) == 1:
        return const(next(iter(values)))
    return e if slot in known.written else Expr("slot", (slot, False))


def _comparison(e: Expr, known: Known) -> Expr:
    """A comparison of a slot with a constant is decided when all possible values agree."""
    a, b = (simplify(x, known) for x in e.args)
    for slot, other, slot_first in ((a, b, True), (b, a, False)):
        values = known.values(*slot.args) if slot.op == "slot" and other.is_const else None
        if values:
            pairs = [(const(v), other) if slot_first else (other, const(v)) for v in values]
            answers = {fold(e.op, list(pair)).value for pair in pairs}
            if len(answers) == 1:
                return const(bool(answers.pop()))
    return fold(e.op, [a, b])


def _without_opposites(e: Expr, op: str, decided: Expr) -> Expr:
    """`x & ~x` is false and `x | ~x` is true."""
    if e.op != op:
        return e
    positive = [a for a in e.args if a.op != "not"]
    return decided if any(_among(a.args[0], positive) for a in e.args if a.op == "not") else e


def _among(e: Expr, items: Iterable[Expr]) -> bool:
    return any(same(e, x) for x in items)
