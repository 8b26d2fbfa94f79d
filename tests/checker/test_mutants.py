"""The mutation study: what is removed, how a fate is found, and that the committed page is about this rulebook."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from checker.mutants import (
    EQUIVALENT,
    ILLEGAL_ROW,
    INVALID,
    KILLED,
    OPEN,
    RESTATED,
    Mutant,
    as_json,
    as_markdown,
    fingerprint,
    mutants_of,
    restates,
    sort_findings,
    study,
)
from examples.two_phase_commit import RULEBOOK as TWO_PHASE
from machines.protocol import RULEBOOK
from machines.rulebook import Run
from machines.table import RulebookError

PAGE = Path(__file__).parents[2] / "docs" / "mutants.md"


def test_every_conjunct_update_and_event_is_removed_once() -> None:
    rule = RULEBOOK.rule("admission.refuse")
    mine = [m for m in mutants_of(RULEBOOK) if m.rule.id == rule.id]
    guards = [m for m in mine if m.kind == "guard"]
    assert {m.what for m in guards} == {str(c) for c in rule.guard.conjuncts()}
    own = len(rule.then) + sum(len(e.then) for e in rule.each)
    assert sum(m.kind == "update" for m in mine) == own
    assert sum(m.kind == "event" for m in mine) == len(rule.fires)
    for m in guards:
        assert len(m.rule.guard.conjuncts()) == len(rule.guard.conjuncts()) - 1


def test_what_only_says_for_which_policy_a_rule_is_there_is_not_removed() -> None:
    rule = RULEBOOK.rule("submitter.infer.trusted.device")
    assert not [m for m in mutants_of(RULEBOOK) if m.rule.id == rule.id and m.kind == "guard"]


def test_an_assertion_that_reads_only_what_the_guard_reads_is_no_kill() -> None:
    rule = RULEBOOK.rule("submitter.infer")
    assert restates(RULEBOOK, "submit.live", rule)
    assert not restates(RULEBOOK, "kv.submit", rule), "it reads the device's KV"
    assert not restates(RULEBOOK, "I4.memory", rule), "an invariant is no assertion about the step"
    assert sort_findings(RULEBOOK, rule, ["submit.live"]) == (RESTATED, ("submit.live",))
    assert sort_findings(RULEBOOK, rule, ["illegal"]) == (ILLEGAL_ROW, ("illegal",))
    assert sort_findings(RULEBOOK, rule, ["illegal", "submit.live"])[0] == RESTATED
    assert sort_findings(RULEBOOK, rule, ["illegal", "submit.live", "kv.submit"]) == (KILLED, ("kv.submit",))
    assert sort_findings(RULEBOOK, rule, []) == (OPEN, ())


def test_fates_of_two_phase_commit() -> None:
    """Small enough to say by hand what constrains what."""
    fates = {f.mutant.id: f for f in study(TWO_PHASE, [Run("three", {"managers": 3}, liveness=True)])}
    assert len(fates) == len(mutants_of(TWO_PHASE))
    hasty = fates["coordinator.commit: guard every(rm: rm.tm_knows)"]
    assert hasty.fate == KILLED
    assert "consistent" in hasty.by[0]
    silent = fates["coordinator.commit: update commit_sent := True"]
    assert silent.fate == KILLED, "nobody ever commits"
    assert {f.fate for f in fates.values()} <= {KILLED, RESTATED, ILLEGAL_ROW, INVALID, EQUIVALENT, OPEN}
    page = as_markdown(TWO_PHASE, list(fates.values()))
    assert all(f"`{f.mutant.what}`" in page for f in fates.values() if f.fate != KILLED)
    assert fingerprint(TWO_PHASE) in page
    assert fingerprint(TWO_PHASE) in as_json(TWO_PHASE, list(fates.values()))


def test_a_scope_that_refutes_the_original_is_refused() -> None:
    """Otherwise every mutant would count as killed there."""
    with pytest.raises(RulebookError, match=r"the rulebook itself is refuted by I4\.memory"):
        study(
            RULEBOOK, [Run("bad", {"jobs": 1, "sequences": 1, "process_exit_stops_dma": 1, "busy_starts_nothing": 0})]
        )


def test_the_committed_page_is_about_the_present_rulebook() -> None:
    assert f"Fingerprint of the rulebook: {fingerprint(RULEBOOK)}" in PAGE.read_text(encoding="utf-8")


def test_a_changed_rulebook_makes_the_page_stale() -> None:
    rule = RULEBOOK.rule("submitter.infer")
    weaker = next(m for m in mutants_of(RULEBOOK) if isinstance(m, Mutant) and m.rule.id == rule.id)
    assert fingerprint(RULEBOOK.replace(weaker.rule)) != fingerprint(RULEBOOK)
    assert fingerprint(evolve(RULEBOOK, mutation_runs=())) != fingerprint(RULEBOOK)
