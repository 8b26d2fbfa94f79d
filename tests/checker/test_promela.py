"""The Promela export: what it says is what the engines do, and SPIN, which shares no code with us, counts the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, event, given, settings

from checker.explore import explore
from checker.graph import from_edges
from checker.model import Model, build
from checker.native import Program
from checker.promela import Step, export, safety_properties, violations
from checker.result import Limits
from checker.spin import SpinError, SpinProgram
from checker.vector import evaluate, holds
from examples.ewd840 import RULEBOOK as RING
from examples.two_phase_commit import RULEBOOK as COMMIT
from examples.two_phase_commit import Manager, rm
from machines.expr import Domain, Expr
from machines.protocol import RULEBOOK as PROTOCOL
from machines.rulebook import Actor, Rule, Rulebook, variable
from tests.checker.second_opinion import spin_or_skip
from tests.checker.strategies import Drawn, rulebooks

QUICK_COMPILE = ("gcc", "-O0", "-w", "-DSAFETY", "-DNOREDUCE")
SMALL = Limits(states=2000)


def test_a_missing_spin_fails_where_it_is_demanded() -> None:
    with pytest.raises(pytest.fail.Exception, match="not on PATH"):
        spin_or_skip({"CALEXEC_REQUIRE_SPIN": "1"}, lambda _: None)
    with pytest.raises(pytest.skip.Exception):
        spin_or_skip({}, lambda _: None)
    spin_or_skip({"CALEXEC_REQUIRE_SPIN": "1"}, lambda name: f"/usr/bin/{name}")


def test_without_spin_the_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SpinError, match="'spin' is not on PATH"):
        SpinProgram(build(COMMIT.scope()))


def test_a_compiler_that_fails_is_one_line(spin: None) -> None:
    with pytest.raises(SpinError, match="gcc failed with exit code 1: "):
        SpinProgram(build(COMMIT.scope()), compile_command=("gcc", "-no-such-flag"))


# -- counts -----------------------------------------------------------------------------------------------------------
def counts(rulebook: Rulebook, values: Mapping[str, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """(states, transitions + 1) by the C engine, and as SPIN says it."""
    model = build(rulebook.scope(values))
    ours = Program(model).explore(traces=False)
    assert ours.complete
    with SpinProgram(model, compile_command=QUICK_COMPILE) as program:
        theirs = program.run(ours.states)
    return (ours.states, ours.transitions + 1), (theirs.states, theirs.transitions)


@pytest.mark.parametrize(
    ("rulebook", "values"),
    [
        (COMMIT, {"managers": 3}),
        (COMMIT, {"managers": 5}),
        (RING, {"nodes": 3}),
        (PROTOCOL, {"jobs": 1}),
        (PROTOCOL, {"jobs": 2, **PROTOCOL.runs[0].values}),
        pytest.param(PROTOCOL, {"jobs": 2}, marks=pytest.mark.nightly),
    ],
    ids=lambda x: getattr(x, "name", None) or ",".join(f"{k}={v}" for k, v in x.items()),
)
def test_spin_counts_the_same(spin: None, rulebook: Rulebook, values: Mapping[str, int]) -> None:
    ours, theirs = counts(rulebook, values)
    assert theirs == ours


def test_spin_counts_another_rulebook_otherwise(spin: None) -> None:
    """The control: one rule changed on one side only."""
    rule = COMMIT.rule("participant.choose_abort")
    tight = Rule(rule.id, rule.actor, rule.guard & (rm.prepared_sent == 1), over=rule.over, fires=rule.fires)
    model = build(COMMIT.replace(tight, unfired={}).scope())
    with SpinProgram(model, compile_command=QUICK_COMPILE) as program:
        changed = program.run(1000)
    assert (changed.states, changed.transitions) != (288, 1146)


def test_a_path_longer_than_allowed_is_not_a_result(spin: None) -> None:
    model = build(COMMIT.scope())
    with (
        SpinProgram(model, compile_command=QUICK_COMPILE) as program,
        pytest.raises(SpinError, match="longer than 5 steps"),
    ):
        program.run(5)


# -- verdicts ---------------------------------------------------------------------------------------------------------
def verdict(model: Model, checks: tuple[str, ...]) -> str:
    with SpinProgram(model, checks, compile_command=QUICK_COMPILE) as program:
        return program.run(10_000).refuted


def forgetful() -> Rulebook:
    return COMMIT.replace(
        Rule("participant.forget", COMMIT.actors[1], rm.state == Manager.Prepared, over=(rm.index,),
             fires={rm.state: "abort"})
    )  # fmt: skip


def test_spin_gives_the_same_verdict_on_each_property(spin: None) -> None:
    for rulebook in (COMMIT, forgetful()):
        model = build(rulebook.scope())
        for prop in safety_properties(model):
            refuted = prop in explore(model).findings
            assert verdict(model, (prop,)) == (prop if refuted else "")


@pytest.mark.parametrize("expect", ["PROVED", "REFUTED"])
def test_spin_gives_the_declared_verdict_on_a_run_of_the_protocol(spin: None, expect: str) -> None:
    """All safety properties of a run with one job; and the property by which one is to be refuted."""
    run = next(r for r in PROTOCOL.runs if r.expect == expect and r.values.get("jobs") == 1)
    model = build(PROTOCOL.scope(run.values, run.without))
    checks = (run.by,) if run.by else safety_properties(model)
    ours = Program(model).explore(traces=False)
    with SpinProgram(model, checks, compile_command=QUICK_COMPILE) as program:
        theirs = program.run(ours.states)
    assert theirs.refuted == run.by
    if expect == "PROVED":
        assert (theirs.states, theirs.transitions) == (ours.states, ours.transitions + 1)


def corner_book() -> Rulebook:
    """One rulebook that ends its runs in every built-in way: dead ends, and values outside their ranges."""
    actor, low, high = Actor("actor"), variable("low", Domain(3), 1), variable("high", Domain(3))
    return Rulebook(
        "corners",
        [actor],
        [],
        [],
        [low, high],
        [
            Rule("actor.swap", actor, then={low.ref: high.ref, high.ref: low.ref}),
            Rule("actor.down", actor, low.ref < 3, then={low.ref: low.ref - 1}),
            Rule("actor.shift", actor, then={low.ref: high.ref + 1, high.ref: low.ref, }),
        ],
    )  # fmt: skip


def test_simultaneous_updates_and_lost_steps(spin: None) -> None:
    model = build(corner_book().scope())
    ours = explore(model)
    assert "range" in ours.findings
    assert Program(model).explore().states == ours.states
    with SpinProgram(model, compile_command=QUICK_COMPILE) as program:
        theirs = program.run(ours.states)
    assert (theirs.states, theirs.transitions) == (ours.states, ours.transitions + 1)
    assert verdict(model, ("range",)) == "range"
    assert verdict(model, ("deadlock",)) == ""


def test_an_unknown_property_is_named() -> None:
    with pytest.raises(ValueError, match="nonsense cannot be exported; allowed are deadlock, range"):
        export(build(COMMIT.scope()), ["nonsense"])


# -- random rulebooks -------------------------------------------------------------------------------------------------
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(rulebooks())
def test_the_exported_expressions_do_what_the_engine_does(drawn: Drawn) -> None:
    """Without SPIN: every guard, every written value and every violation, over all reachable states."""
    model = build(drawn.book.scope())
    edges, order = [], []
    result = explore(model, limits=SMALL, graph=edges, order=order)
    assume(result.complete)
    graph = from_edges(model, edges, order)
    steps = [Step.of(model, inst) for inst in model.instances]
    for step in steps:
        mine = graph.instance == step.instance.number
        source, target = graph.source[mine], graph.target[mine]
        enabled = np.zeros(len(graph.states), dtype=bool)
        enabled[source] = True
        assert (holds(step.leads_on, graph.states) == enabled).all()
        for slot in range(len(model.slots)):
            value = step.writes.get(slot, Expr("slot", (slot, False)))
            assert (evaluate(value, graph.states[source]) == graph.states[target, slot]).all()
    violated = {prop for prop, bad in violations(model, steps).items() if holds(bad, graph.states).any()}
    event("violated" if violated else "clean")
    assert violated == set(result.findings)


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # shrinking would compile hundreds of programs
    suppress_health_check=list(HealthCheck),
)
@given(rulebooks())
def test_spin_agrees_on_random_rulebooks(spin: None, drawn: Drawn) -> None:
    model = build(drawn.book.scope())
    ours = explore(model, limits=SMALL)
    assume(ours.complete and ours.states > 3)
    with SpinProgram(model, compile_command=QUICK_COMPILE) as program:
        theirs = program.run(ours.states)
    assert (theirs.states, theirs.transitions) == (ours.states, ours.transitions + 1)
    refuted = verdict(model, safety_properties(model))
    event("refuted" if refuted else "clean")
    assert refuted in ours.findings if ours.findings else refuted == ""
