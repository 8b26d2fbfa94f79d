"""What one run says about each property.

Theory. A search gives findings, and the ids of sometimes-properties that it reached. That is not yet a verdict: a bound
may have been hit, a property may not apply to this scope, a step property may be about rules that never fired, a
leads-to is judged only where the graph was kept, and one whose trigger never holds says nothing. Only PROVED is green.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from attrs import frozen

from checker.coverage import fired_rules
from checker.liveness import Outcome, Vacuous
from checker.model import Model
from checker.result import RECEPTIVE, Exploration, Finding
from machines.rulebook import Invariant, LeadsTo, Property, Rulebook, Sometimes, Step
from machines.validate import BUILT_IN_PROPERTIES


class Judgement(enum.Enum):
    PROVED = "PROVED"
    REFUTED = "REFUTED"
    UNDETERMINED = "UNDETERMINED"
    NOT_REACHED = "not reached"
    VACUOUS = "vacuous"
    NOT_EVALUATED = "not evaluated"
    NOT_APPLICABLE = "not applicable"

    def __str__(self) -> str:
        return self.value


BUILT_IN_SENTENCES = {
    "deadlock": "Where no rule is enabled, the state is a declared legal end.",
    "range": "No variable leaves its range.",
    "illegal": "No rule fires an event that its machine has no row for.",
    "receptive": "Every return that a call can bring is taken by exactly one rule.",
}
assert tuple(BUILT_IN_SENTENCES) == BUILT_IN_PROPERTIES


def properties_of(book: Rulebook) -> tuple[Property, ...]:
    """The rulebook's properties and the built-in ones that it can have (receptive: only with calls)."""
    built_in = [Property(i, s) for i, s in BUILT_IN_SENTENCES.items() if i != RECEPTIVE or book.effects]
    return (*book.properties, *built_in)


def kind_of(prop: Property) -> str:
    """As reports name it: invariant, step, sometimes, leads-to or built-in."""
    return "built-in" if prop.id in BUILT_IN_SENTENCES else prop.kind


@frozen
class Judged:
    judgement: Judgement
    note: str = ""


def judge(model: Model, exploration: Exploration, liveness: Mapping[str, Outcome] | None) -> dict[str, Judged]:
    """Every property, by id. liveness: the outcome of each leads-to, None where it was not evaluated."""
    fired = fired_rules(model, exploration)
    return {p.id: _judge(p, model, exploration, liveness, fired) for p in properties_of(model.rulebook)}


def _judge(
    prop: Property,
    model: Model,
    exploration: Exploration,
    liveness: Mapping[str, Outcome] | None,
    fired: set[str],
) -> Judged:
    if prop.id in model.not_applicable or (prop.id == RECEPTIVE and not model.pending):
        return Judged(Judgement.NOT_APPLICABLE)
    if (finding := exploration.findings.get(prop.id)) is not None:
        return Judged(Judgement.REFUTED, finding.detail)
    if isinstance(prop, Sometimes) and prop.id in exploration.reached:
        return Judged(Judgement.PROVED)
    if isinstance(prop, LeadsTo) and liveness is None:
        return Judged(Judgement.NOT_EVALUATED, "this run keeps no graph (liveness)")
    if not exploration.complete:
        return Judged(Judgement.UNDETERMINED, exploration.stopped)
    match prop:
        case Sometimes():
            return Judged(Judgement.NOT_REACHED)
        case Step() if not any(prop.about_rule(r) for r in fired):
            return Judged(Judgement.NOT_EVALUATED, "none of the rules it is about fired")
        case Invariant() | Step() if not any(g.prop is prop for g in (*model.invariants, *model.steps)):
            return Judged(Judgement.NOT_EVALUATED, "this scope has no element that it is about")
        case LeadsTo():
            return _leads_to(prop, liveness or {})
    return Judged(Judgement.PROVED)


def _leads_to(prop: Property, liveness: Mapping[str, Outcome]) -> Judged:
    match liveness.get(prop.id, Vacuous(prop.id, "this scope has no element that it is about")):
        case Finding() as finding:
            return Judged(Judgement.REFUTED, finding.detail)
        case Vacuous() as vacuous:
            return Judged(Judgement.VACUOUS, vacuous.detail)
    return Judged(Judgement.PROVED)
