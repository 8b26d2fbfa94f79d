"""Campaigns: the verdict of all runs together. Nearly every test here is a negative control: something is made wrong,
and the campaign must not be PROVED."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import click
import pytest
from attrs import evolve

import checker.campaign
from checker import engines, report
from checker.campaign import Campaign, Plan, RunResult, SelectionError, Task, execute, plan_campaign, plan_scope
from checker.engines import EngineError, Search
from checker.exits import Exit
from checker.judge import BUILT_IN_SENTENCES, Judgement
from checker.native import CompilerError, NativeError
from checker.progress import QuietBoard
from checker.result import Limits, Progress, ProgressCallback, Verdict
from machines.expr import TRUE
from machines.rulebook import Invariant, LeadsTo, Rule, Run, Sometimes, Step
from tests.checker.door import (
    CLOSES,
    COUNTED,
    GUEST,
    INTACT,
    KNOCK,
    PORTER,
    PROPERTIES,
    RULES,
    RUNS,
    SIZE,
    WORN,
    Door,
    damage,
    door,
    door_rulebook,
    used,
)

PYTHON = Search("python")
SMALL = (Run("small", liveness=True),)


def judged(plan: Plan, wanted: Search = PYTHON) -> Campaign:
    return Campaign(plan, execute(plan, wanted, QuietBoard()))


def campaign_of(*more: Rule, wanted: Search = PYTHON, **changes: Any) -> Campaign:
    return judged(plan_campaign(door_rulebook(*more, **changes)), wanted)


def summary(campaign: Campaign, prop: str) -> tuple[Judgement, str]:
    return next((s.judgement, s.note) for s in campaign.summaries if s.prop.id == prop)


# -- what it looks like when all is well ------------------------------------------------------------------------------
WITH_C = pytest.param("c", marks=pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"))


@pytest.mark.parametrize("engine", ["python", WITH_C])
def test_a_campaign_that_ends_as_declared_is_proved(engine: str) -> None:
    c = campaign_of(wanted=Search(engine))
    assert (c.exit, c.reasons) == (Exit.PROVED, ())
    counts = [(r.run.name, r.verdict, r.exploration.states, r.exploration.transitions) for r in c.results]
    assert counts == [
        ("small", Verdict.PROVED, 6, 14),
        ("careless", Verdict.REFUTED, 12, 32),
        ("large", Verdict.PROVED, 14, 32),
    ]
    assert [s.judgement for s in c.summaries] == [Judgement.PROVED] * (len(PROPERTIES) + len(BUILT_IN_SENTENCES))
    assert {s.prop.id: s.refutes for s in c.summaries if s.refutes} == {"intact": ("careless",)}
    assert c.results[1].findings["intact"].rules == ["open", "slam"]


def test_a_rulebook_without_runs_has_its_default_scope() -> None:
    c = campaign_of(runs=(), unfired={"door.Open.open": "opened only once"})
    assert [r.run.name for r in c.results] == ["default"]
    assert c.results[0].run.liveness
    assert c.exit is Exit.PROVED


# -- refuted ----------------------------------------------------------------------------------------------------------
def test_a_violated_invariant_refutes() -> None:
    c = campaign_of(runs=(Run("careless", {"manner": 1}, liveness=True),))
    assert c.exit is Exit.REFUTED
    assert c.reasons == ("run careless: violated: intact (2 steps)",)
    assert summary(c, "intact") == (Judgement.REFUTED, "in careless")
    assert summary(c, "counted") == (Judgement.PROVED, "")


def test_a_violated_step_property_refutes() -> None:
    wrong = Step("counted", "Opening is not counted.", holds=used.next == used, on="open")
    c = campaign_of(properties=(INTACT, wrong, WORN, CLOSES))
    assert c.exit is Exit.REFUTED
    assert summary(c, "counted")[0] is Judgement.REFUTED


def test_a_declared_refutation_that_does_not_come_refutes_the_campaign() -> None:
    c = campaign_of(runs=(*RUNS, Run("harmless", expect="REFUTED", by="intact")))
    assert c.exit is Exit.REFUTED
    assert c.reasons == ("run harmless: declared to be refuted by intact, but intact is not violated there",)


def test_a_refutation_by_another_property_does_not_count() -> None:
    c = campaign_of(runs=(*RUNS[:1], Run("careless", {"manner": 1}, expect="REFUTED", by="deadlock"), *RUNS[2:]))
    assert c.exit is Exit.REFUTED
    assert c.reasons == (
        "run careless: declared to be refuted by deadlock, but deadlock is not violated there; refuted instead: intact",
    )
    assert summary(c, "deadlock")[0] is Judgement.PROVED


def test_a_violated_leads_to_refutes_with_its_lasso() -> None:
    lazy = tuple(evolve(r, actor=GUEST) if r.id == "close" else r for r in RULES)
    c = campaign_of(rules=lazy)
    assert c.exit is Exit.REFUTED
    assert summary(c, "closes") == (Judgement.REFUTED, "in small")
    assert c.results[0].findings["closes"].loop is not None
    assert "for ever" in report.text(c)


@pytest.mark.parametrize(
    ("prop", "rule"),
    [
        ("illegal", Rule("break", GUEST, fires={door: "close"})),
        ("range", Rule("break", GUEST, door == Door.Open, then={used: used + 1})),
        ("receptive", Rule("break", GUEST, door == Door.Open, outcome=(KNOCK, ("heard",)))),
        ("deadlock", Rule("break", GUEST, then={damage: True})),
    ],
)
def test_built_in_properties_refute(prop: str, rule: Rule) -> None:
    # A damaged door does not move any more, so there is a deadlock once it is damaged.
    rules = tuple(evolve(r, guard=r.guard & ~damage) for r in (*RULES, rule))
    rules = rules if prop == "deadlock" else (*RULES, rule)
    c = campaign_of(rules=rules, properties=(COUNTED, WORN, CLOSES), runs=SMALL)
    assert c.exit is Exit.REFUTED
    assert summary(c, prop)[0] is Judgement.REFUTED
    assert prop in c.results[0].findings


# -- sometimes --------------------------------------------------------------------------------------------------------
TWICE = Sometimes("twice", "The door may be opened twice.", reached=used == 2)
FLYING = Sometimes("flying", "The door may fly.", reached=used == 5)


def test_a_sometimes_must_be_reached_in_one_run_only() -> None:
    c = campaign_of(properties=(*PROPERTIES, TWICE))
    assert [r.judged["twice"].judgement for r in c.to_prove] == [Judgement.NOT_REACHED, Judgement.PROVED]
    assert summary(c, "twice") == (Judgement.PROVED, "")
    assert c.exit is Exit.PROVED


def test_a_sometimes_that_is_reached_nowhere_refutes() -> None:
    c = campaign_of(properties=(*PROPERTIES, FLYING))
    assert c.exit is Exit.REFUTED
    assert c.reasons == ("sometimes flying: reached in no state of small, large",)


def test_a_run_that_is_to_be_refuted_does_not_count_for_a_sometimes() -> None:
    damaged = Sometimes("damaged", "The door may be damaged.", reached=damage)
    c = campaign_of(properties=(*PROPERTIES, damaged))
    assert c.exit is Exit.REFUTED
    assert summary(c, "damaged")[0] is Judgement.REFUTED


def test_part_of_a_campaign_cannot_say_that_a_sometimes_is_reached_nowhere() -> None:
    c = judged(plan_campaign(door_rulebook(properties=(*PROPERTIES, TWICE)), patterns=["small"]))
    assert summary(c, "twice") == (Judgement.UNDETERMINED, "reached in no state of small")
    assert c.exit is Exit.UNDETERMINED


def test_in_one_scope_a_sometimes_that_is_not_reached_is_refuted() -> None:
    c = judged(plan_scope(door_rulebook(properties=(*PROPERTIES, TWICE)), {"size": 1}))
    assert c.exit is Exit.REFUTED
    assert c.reasons == ("sometimes twice: reached in no state of scope",)


# -- never green ------------------------------------------------------------------------------------------------------
def test_a_leads_to_that_no_run_evaluates_is_undetermined() -> None:
    c = campaign_of(runs=RUNS[1:])
    assert c.exit is Exit.UNDETERMINED
    assert c.reasons == ("leads-to closes: evaluated in no run",)


def test_a_leads_to_whose_trigger_never_holds_is_undetermined() -> None:
    vacuous = LeadsTo("vacuous", "A flying door lands.", when=used == 5, then=used == 0)
    c = campaign_of(properties=(*PROPERTIES, vacuous))
    assert c.exit is Exit.UNDETERMINED
    assert summary(c, "vacuous")[1] == "vacuous: its trigger holds in no state of any run"


def test_a_property_that_applies_to_no_run_is_undetermined() -> None:
    c = campaign_of(properties=(*PROPERTIES, evolve(INTACT, id="big", applies=SIZE.expr == 2)))
    assert c.exit is Exit.UNDETERMINED
    assert c.reasons == ("invariant big: applies to no run",)


def test_in_one_scope_a_property_may_be_not_applicable() -> None:
    big = evolve(INTACT, id="big", applies=SIZE.expr == 2)
    c = judged(plan_scope(door_rulebook(properties=(*PROPERTIES, big)), {}))
    assert summary(c, "big")[0] is Judgement.NOT_APPLICABLE
    assert c.exit is Exit.PROVED


def test_a_step_property_about_rules_that_never_fire_is_undetermined() -> None:
    idle = Step("idle", "Slamming does nothing.", holds=TRUE, on="slam")
    c = campaign_of(properties=(*PROPERTIES, idle))
    assert summary(c, "idle") == (Judgement.UNDETERMINED, "evaluated in no run")
    assert c.exit is Exit.UNDETERMINED


def test_a_campaign_with_nothing_to_prove_proves_nothing() -> None:
    c = judged(plan_campaign(door_rulebook(), patterns=["careless"]))
    assert c.results[0].as_declared is Verdict.PROVED
    assert c.exit is Exit.UNDETERMINED
    assert c.reasons == ("no run here is to hold, so nothing was proved (1 of 4 runs)",)


@pytest.mark.parametrize("wanted", [Search("python", Limits(states=3)), Search("python", Limits(memory_mb=1))])
def test_a_limit_that_is_hit_is_undetermined(wanted: Search) -> None:
    c = campaign_of(wanted=wanted, runs=SMALL)
    assert c.exit is Exit.UNDETERMINED
    assert c.reasons[0].startswith("run small: limit of ")
    assert {j.judgement for j in c.results[0].judged.values()} <= {Judgement.UNDETERMINED, Judgement.PROVED}
    assert summary(c, "intact")[0] is Judgement.UNDETERMINED
    assert not c.coverage.judged


def test_a_limit_does_not_hide_what_was_found_before_it() -> None:
    c = campaign_of(wanted=Search("python", Limits(states=8)), runs=(RUNS[0], evolve(RUNS[1], expect="PROVED", by="")))
    assert c.exit is Exit.REFUTED


def test_a_declared_refutation_under_a_limit_is_undetermined_not_missing() -> None:
    c = campaign_of(wanted=Search("python", Limits(states=1)), runs=(RUNS[1],))
    assert c.results[0].as_declared is Verdict.UNDETERMINED
    assert c.exit is Exit.UNDETERMINED


def test_memory_exhausted_is_undetermined(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(checker.campaign, "search", no_memory)
    c = campaign_of(runs=SMALL)
    assert c.exit is Exit.UNDETERMINED
    assert c.reasons[0] == "run small: memory exhausted"


# -- coverage ---------------------------------------------------------------------------------------------------------
def test_a_rule_that_never_fires_is_not_covered() -> None:
    c = campaign_of(Rule("fly", GUEST, used == 5, then={damage: True}))
    assert c.exit is Exit.NOT_COVERED
    assert c.reasons == ("rule fly never fired",)


def test_a_row_that_never_fires_is_not_covered() -> None:
    rules = tuple(evolve(r, guard=r.guard & (door == Door.Closed)) if r.id == "open" else r for r in RULES)
    c = campaign_of(rules=rules)
    assert c.exit is Exit.NOT_COVERED
    assert c.reasons == ("row door.Open.open never fired",)


def test_a_declared_unreachable_row_is_excused() -> None:
    rules = tuple(evolve(r, guard=r.guard & (door == Door.Closed)) if r.id == "open" else r for r in RULES)
    assert campaign_of(rules=rules, unfired={"door.Open.open": "guests look first"}).exit is Exit.PROVED


def test_an_excuse_that_is_not_needed_is_stale() -> None:
    rules = tuple(evolve(r, unreachable="nobody oils") if r.id == "oil" else r for r in RULES)
    c = campaign_of(rules=rules, unfired={"door.Open.open": "guests look first"})
    assert c.exit is Exit.NOT_COVERED
    assert c.reasons == (
        "rule oil fired, but is declared unreachable (nobody oils)",
        "row door.Open.open fired, but is declared unreachable (guests look first)",
    )


def test_runs_that_are_to_be_refuted_cover_nothing() -> None:
    rules = tuple(evolve(r, unreachable="") for r in RULES)
    c = campaign_of(rules=rules)
    assert c.exit is Exit.NOT_COVERED
    assert c.reasons == ("rule slam never fired",)


def test_what_never_fired_in_one_scope_is_listed_and_does_not_fail_it() -> None:
    """`slam` has no instance under the careful policy, so it is not even listed; `fly` has one."""
    rules = tuple(evolve(r, unreachable="") for r in RULES)
    c = judged(plan_scope(door_rulebook(rules=(*rules, Rule("fly", GUEST, used == 5))), {}))
    assert c.coverage.problems == ["rule fly never fired", "row door.Open.open never fired"]
    assert (c.exit, c.coverage.judged) == (Exit.PROVED, False)
    assert "\n  rule fly never fired\n" in report.text(c)


def test_part_of_a_campaign_does_not_judge_coverage() -> None:
    c = judged(plan_campaign(door_rulebook(Rule("fly", GUEST, used == 5)), patterns=["small"]))
    assert c.coverage.problems
    assert not c.coverage.judged
    assert c.exit is Exit.PROVED


def test_a_violation_outweighs_coverage() -> None:
    c = campaign_of(Rule("fly", GUEST, used == 5), runs=(Run("careless", {"manner": 1}, liveness=True),))
    assert c.exit is Exit.REFUTED


# -- selection and order ----------------------------------------------------------------------------------------------
def names(plan: Plan) -> list[str]:
    return [t.run.name for t in plan.tasks]


def test_selection() -> None:
    book = door_rulebook()
    assert names(plan_campaign(book)) == ["small", "careless", "large"]
    assert names(plan_campaign(book, tier="nightly")) == ["small", "careless", "large", "huge"]
    assert names(plan_campaign(book, patterns=["*l*", "huge"])) == ["small", "careless", "large", "huge"]
    with pytest.raises(SelectionError, match="no run is named 'tiny'; door has small, careless, large, huge"):
        plan_campaign(book, patterns=["small", "tiny"])
    with pytest.raises(SelectionError, match="door has no run of tier fast"):
        plan_campaign(door_rulebook(runs=(Run("a", tier="nightly"),)))


class Recorder(QuietBoard):
    def __init__(self) -> None:
        self.begun: list[str] = []

    def started(self, task: Task) -> ProgressCallback:
        self.begun.append(task.run.name)
        return super().started(task)


def test_the_biggest_run_starts_first_and_results_come_in_declared_order() -> None:
    board = Recorder()
    results = execute(plan_campaign(door_rulebook()), PYTHON, board, workers=1)
    assert board.begun[0] == "large"
    assert [r.run.name for r in results] == ["small", "careless", "large"]


# -- engines ----------------------------------------------------------------------------------------------------------
class NoCompiler:
    def __init__(self, model: Any) -> None:
        raise CompilerError("no C compiler: 'cc' is not on PATH")


class Breaks:
    def __init__(self, model: Any) -> None:
        pass

    def explore(self, **ask: Any) -> None:
        raise NativeError("the C engine ended with exit code 9: no reason given")


def test_without_a_compiler_the_python_engine_runs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "Program", NoCompiler)
    c = campaign_of(wanted=Search("auto"))
    assert c.exit is Exit.PROVED
    assert {r.exploration.engine for r in c.results} == {"python"}
    note = "note: the Python engine ran, because there is no C engine: no C compiler: 'cc' is not on PATH"
    assert report.text(c).count(note) == 1


def test_a_demanded_c_engine_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "Program", NoCompiler)
    with pytest.raises(EngineError, match="no C compiler"):
        campaign_of(wanted=Search("c"))


def test_an_engine_that_breaks_down_is_not_hidden_by_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "Program", Breaks)
    with pytest.raises(EngineError, match="exit code 9"):
        campaign_of(wanted=Search("auto"), runs=RUNS[2:])


def test_when_one_run_breaks_down_the_others_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run would go on for ever; it ends at its next look at the progress callback."""
    started = threading.Event()

    def breaks_or_goes_on(model: Any, wanted: Search) -> None:
        if model.scope.values["size"] == 1:
            started.wait(10)
            raise EngineError("broken")
        started.set()
        assert wanted.progress is not None
        while True:
            wanted.progress(Progress(0, 0, 0, 0, 0.0, 0.0))
            time.sleep(0.001)

    monkeypatch.setattr(checker.campaign, "search", breaks_or_goes_on)
    with pytest.raises(EngineError, match="broken"):
        campaign_of(runs=(Run("breaks"), Run("goes on", {"size": 3})))


# -- reports ----------------------------------------------------------------------------------------------------------
def broken_campaign() -> Campaign:
    """Refuted, reached nowhere, and not applicable in one."""
    big = Invariant("big", "A big door is whole.", holds=~damage, applies=SIZE.expr == 2)
    return campaign_of(properties=(*PROPERTIES, FLYING, big), runs=(*RUNS, Run("bad", {"manner": 1, "size": 2})))


def test_one_trace_for_each_property_over_all_runs() -> None:
    """Two runs violate the same: the shortest trace is shown and the other run named; what was declared stays apart."""
    runs = (*RUNS, Run("bad", {"manner": 1, "size": 2}), Run("worse", {"manner": 1, "size": 3}))
    late = Rule("crush", PORTER, (used == SIZE.expr) & (door == Door.Open), then={damage: True})
    long = Run("long", {"size": 3})
    text = click.unstyle(report.text(campaign_of(runs=runs)))
    assert text.count("intact is REFUTED") == 2
    assert "careless: intact is REFUTED, as declared, 2 steps" in text
    assert text.count("bad: intact is REFUTED, 2 steps") == text.count("  also in: worse (2 steps)") == 1
    text = click.unstyle(report.text(campaign_of(late, runs=(long, *SMALL))))
    (other,) = re.findall(r"^  also in: long \((\d+) steps\)$", text, flags=re.MULTILINE)
    assert text.count("intact is REFUTED") == text.count("small: intact is REFUTED, 2 steps") == 1
    assert int(other) > 2


def test_one_violation_names_no_other_run() -> None:
    assert "also in" not in report.text(campaign_of(runs=(*RUNS, Run("bad", {"manner": 1, "size": 2}))))


def test_text_names_runs_properties_counterexamples_and_verdict() -> None:
    text = report.text(broken_campaign(), show="all")
    for part in (
        "careless  REFUTED by intact, as declared",
        "careless: intact is REFUTED, as declared, 2 steps",
        "  1  open                           door: Closed -> Open, used: 0 -> 1",
        "The door may fly. [reached in no state of small, large, bad]",
        "run bad: violated: intact (2 steps), big (2 steps)",
        "door.Open.open    reject  Open",
        "coverage: 7 of 7 rules, 3 of 3 rows fired",
        "REFUTED (exit 2)",
    ):
        assert part in click.unstyle(text)


def test_json_says_what_the_text_says() -> None:
    c = broken_campaign()
    data = json.loads(json.dumps(report.as_json(c)))
    assert (data["verdict"], data["exit_code"]) == ("REFUTED", 2)
    assert data["reasons"] == list(c.reasons)
    by_name = {r["name"]: r for r in data["runs"]}
    assert by_name["careless"]["scope"] == {"size": "1", "manner": "Careless"}
    assert (by_name["careless"]["verdict"], by_name["careless"]["as_declared"]) == ("REFUTED", True)
    assert (by_name["bad"]["verdict"], by_name["bad"]["as_declared"]) == ("REFUTED", False)
    assert by_name["bad"]["findings"][0]["steps"][1] == {"fired": "slam", "changed": "damage: 0 -> 1"}
    assert sum(by_name["large"]["fired"].values()) == by_name["large"]["transitions"]
    assert {p["id"]: p["verdict"] for p in data["properties"]}["flying"] == "REFUTED"


def test_junit_counts_failures_errors_and_skips() -> None:
    root = ElementTree.fromstring(report.as_junit(broken_campaign()))
    suites = {s.get("name"): s for s in root}
    assert (suites["runs"].get("tests"), suites["runs"].get("failures")) == ("4", "1")
    failure = suites["runs"].find("testcase[@name='bad']/failure")
    assert failure is not None
    assert "slam" in str(failure.text)
    assert suites["properties"].get("failures") == "3"  # intact, flying, big


def test_junit_of_a_limit_is_an_error() -> None:
    c = campaign_of(wanted=Search("python", Limits(states=3)), runs=SMALL)
    suites = {s.get("name"): s for s in ElementTree.fromstring(report.as_junit(c))}
    assert suites["runs"].get("errors") == "1"
    assert suites["coverage"].get("skipped") == "1"


def test_junit_of_a_proved_campaign_is_clean() -> None:
    root = ElementTree.fromstring(report.as_junit(campaign_of()))
    assert [(s.get("failures"), s.get("errors"), s.get("skipped")) for s in root] == [("0", "0", "0")] * 3


def test_the_listing_names_everything() -> None:
    text = click.unstyle(report.listing(door_rulebook()))
    for name in ("careless", "REFUTED by intact", "nightly", "Careful, Careless", "1..3", "The door may need oil."):
        assert name in text


def test_judgements_of_one_run() -> None:
    results: Mapping[str, RunResult] = {r.run.name: r for r in campaign_of().results}
    assert results["large"].judged["closes"].judgement is Judgement.NOT_EVALUATED
    assert results["careless"].judged["intact"].judgement is Judgement.REFUTED


def test_receptive_is_no_property_of_a_rulebook_without_calls() -> None:
    rules = tuple(r for r in RULES if not r.id.startswith("knock"))
    c = campaign_of(rules=rules, effects=())
    assert "receptive" not in {s.prop.id for s in c.summaries}
    assert c.exit is Exit.PROVED
