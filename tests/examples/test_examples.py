"""The worked examples give the published counts, hold, and a seeded bug in each is refuted."""

from __future__ import annotations

import pytest

from checker.explore import explore
from checker.graph import from_python
from checker.liveness import check
from checker.model import build
from checker.native import Program
from checker.result import Exploration, Finding
from examples import ewd840, two_phase_commit
from machines.rulebook import Rule, Rulebook

COMMIT, RING = two_phase_commit.RULEBOOK, ewd840.RULEBOOK
BEFORE_THE_START = 1


def run(rulebook: Rulebook, **values: int) -> Exploration:
    """By both engines, which must agree."""
    model = build(rulebook.scope(values))
    result, native = explore(model), Program(model).explore()
    assert (native.states, native.transitions, native.depth) == (result.states, result.transitions, result.depth)
    assert {p: f.rules for p, f in native.findings.items()} == {p: f.rules for p, f in result.findings.items()}
    return result


def lasso(rulebook: Rulebook, prop: str) -> Finding:
    found = check(from_python(build(rulebook.scope())))[prop]
    assert isinstance(found, Finding)
    return found


# -- counts ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("managers", "states"), [(3, 288), (5, 8832)])
def test_two_phase_commit_has_the_published_number_of_states(managers: int, states: int) -> None:
    assert run(COMMIT, managers=managers).states == states


def test_two_phase_commit_has_the_published_number_of_generated_states() -> None:
    """1,146 of the TLA+ module with 3 managers: every step and the initial state."""
    assert run(COMMIT, managers=3).transitions + 1 == 1146


@pytest.mark.parametrize(("nodes", "states"), [(3, 302), (4, 1566)])
def test_ewd840_has_the_published_number_of_states(nodes: int, states: int) -> None:
    assert run(RING, nodes=nodes).states == states + BEFORE_THE_START


@pytest.mark.parametrize(("nodes", "generated"), [(3, 2001), (4, 15986)])
def test_ewd840_has_the_published_number_of_generated_states(nodes: int, generated: int) -> None:
    """The published number counts a step once per true disjunct of its guard, and each initial state."""
    assert run(one_rule_per_disjunct(RING), nodes=nodes).transitions == generated


def one_rule_per_disjunct(rulebook: Rulebook) -> Rulebook:
    split = []
    for rule_id in ("initiator.probe", "node.pass"):
        rule = rulebook.rule(rule_id)
        *rest, disjunction = rule.guard.conjuncts()
        assert disjunction.op == "or"
        for n, disjunct in enumerate(disjunction.args):
            guard = disjunct
            for part in rest:
                guard = part & guard
            split.append(Rule(f"{rule_id}{n}", rule.actor, guard, over=rule.over, then=rule.then))
    return rulebook.replace(*split, drop=("initiator.probe", "node.pass"))


# -- verdicts ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rulebook", [COMMIT, RING], ids=lambda r: r.name)
def test_every_run_is_proved_and_fires_everything(rulebook: Rulebook) -> None:
    for each in rulebook.runs:
        model = build(rulebook.scope(each.values))
        result = explore(model)
        assert not result.findings
        assert result.reached == {g.prop.id for g in model.sometimes}
        assert all(result.fired)
        assert result.cells == set(model.cells)
        if each.liveness:
            assert set(check(from_python(model)).values()) == {None}


def test_a_manager_that_forgets_its_promise_breaks_consistency() -> None:
    """It changes its mind after it has said Prepared."""
    rm, manager = two_phase_commit.rm, two_phase_commit.Manager
    bug = Rule(
        "participant.forget",
        two_phase_commit.PARTICIPANT,
        rm.state == manager.Prepared,
        over=(rm.index,),
        fires={rm.state: "abort"},
    )
    found = run(COMMIT.replace(bug)).findings["consistent"]
    told = [f"{step}[{k}]" for k in range(3) for step in ("participant.prepare", "coordinator.receive_prepared")]
    assert found.rules == [*told, "coordinator.commit", "participant.commit[0]", "participant.forget[1]"]


def test_an_abort_that_is_never_sent_leaves_the_others_prepared_for_ever() -> None:
    rule = COMMIT.rule("coordinator.abort")
    found = lasso(COMMIT.replace(Rule(rule.id, rule.actor, rule.guard, fires=rule.fires)), "decided")
    assert found.rules == ["coordinator.abort", *(f"participant.prepare[{k}]" for k in range(3))]
    assert found.loop == len(found.trace) - 1


def test_a_node_that_stays_white_after_it_woke_another_breaks_detection() -> None:
    node, other, rule = ewd840.node, ewd840.other, RING.rule("work.send")
    bug = Rule(rule.id, rule.actor, rule.guard, over=rule.over, then={node.at(other).active: True})
    found = run(RING.replace(bug)).findings["detection_is_true"]
    assert found.rules == [
        "start.choose[1,0,0]",  # only node 0 is active, all are white
        "initiator.probe",
        "node.pass[2]",
        "node.pass[1]",
        "work.send[0,1]",
        "work.finish[0]",
    ]


def test_a_node_that_keeps_the_token_while_it_is_black_lets_termination_go_undetected() -> None:
    node, token, rule = ewd840.node, ewd840.token, RING.rule("node.pass")
    guard = (node.index > 0) & (token == node.index) & ~node.active & (node.color == ewd840.WHITE)
    bug = Rule(rule.id, rule.actor, guard, over=rule.over, then=rule.then)
    found = lasso(RING.replace(bug), "termination_is_detected")
    assert found.rules == ["start.choose[0,2,1]"]
    assert found.loop == 1
