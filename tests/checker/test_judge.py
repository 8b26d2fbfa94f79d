"""What may not be green: a property without an element, and fairness that two sorts would share."""

from __future__ import annotations

from checker import liveness
from checker.explore import explore
from checker.graph import from_python
from checker.judge import Judgement, judge
from checker.model import build
from checker.result import Finding
from machines.expr import FALSE, TRUE, Domain, Param, Sort, ite
from machines.rulebook import Actor, Invariant, LeadsTo, Rule, Rulebook, Step, variable

OURS = Actor("ours")
NATURE = Actor("nature", environment=True)


def test_a_property_about_no_element_is_not_evaluated() -> None:
    cats = Param("cats", 0, 0, 3)
    cat = Sort("cat", cats.expr)
    mood, day = variable("mood", Domain(1), sort=cat), variable("day", Domain.boolean())
    book = Rulebook(
        "cats", [OURS], [cats], [cat], [mood, day],
        [Rule("turn", OURS, then={day.ref: ite(day.ref, 0, 1)})],
        properties=[
            Step("never", "The mood never is as it is.", over=cat, holds=~(cat.mood.next == cat.mood.next)),
            Invariant("none", "No mood is fine.", over=cat, holds=FALSE),
        ],
    )  # fmt: skip
    for wanted, judgement in ((0, Judgement.NOT_EVALUATED), (1, Judgement.REFUTED)):
        model = build(book.scope({"cats": wanted}))
        judged = judge(model, explore(model), None)
        assert {judged["never"].judgement, judged["none"].judgement} == {judgement}


def alternating(fair_apart: bool) -> Rulebook:
    """Nature lets the actor serve the element of one sort, then that of the other, never one of them continuously."""
    left, right = Sort("left", 1), Sort("right", 1)
    a, b = variable("done", Domain(1), sort=left), variable("done", Domain(1), sort=right)
    turn = variable("turn", Domain.boolean())
    return Rulebook(
        "alternating", [OURS, NATURE], [], [left, right], [a, b, turn],
        [
            Rule("flip", NATURE, then={turn.ref: ite(turn.ref, 0, 1)}),
            Rule("serve.left", OURS, turn.ref & (left.done == 0), left, then={left.done: 1}),
            Rule("serve.right", OURS, ~turn.ref & (right.done == 0), right, then={right.done: 1},
                 fair="right" if fair_apart else ""),
        ],
        properties=[LeadsTo("served", "The left one is served.", over=left, when=left.done == 0, then=left.done == 1)],
        legal_end=TRUE,
    )  # fmt: skip


def test_elements_of_different_sorts_are_served_apart() -> None:
    """Element 0 of one sort is not element 0 of the other: taken together they would be enabled all the time."""
    for fair_apart in (False, True):
        model = build(alternating(fair_apart).scope())
        assert isinstance(liveness.check(from_python(model))["served"], Finding)
    groups = {i.fair_group for i in build(alternating(False).scope()).instances}
    assert groups == {"", "ours[left0]", "ours[right0]"}
