"""Every step once more: what the rulebook allows is silent, and what somebody did past it is told."""

from __future__ import annotations

import pytest
from attrs import evolve
from executing import executing

from machines.expr import TRUE
from machines.protocol import RULEBOOK
from runtime.calrt import Library
from runtime.replay import Replay

PROMPT = [1, 2, 3]


def test_faults_cancels_and_recoveries_are_as_the_rulebook_allows(library: Library) -> None:
    with executing(library, recoveries_max=50) as b:
        b.tokens(7, PROMPT, 2)  # what is there already is taken over
        replay = Replay.of(b.executor)
        b.run(7, [5], past=4)
        for n, action in enumerate(("ccu_exception", "nan", "partial_kv", "short_tensor")):
            b.sim.fault("infer", action, nth=2)
            handle = b.enqueue(n, PROMPT)
            handle.cancel()
            b.run(n + 10, PROMPT)
            b.executor.seq_rm(n)
            assert b.executor.wait_ready(10)
        assert b.executor.calls.generation_id > 3
        b.executor.close()
        assert replay.findings(b.executor) == []
        assert replay.steps > 100
        assert replay.entries()[-1].rule == b.executor.engine.journal.entries()[-1].rule


def test_a_step_against_a_guard_is_told_and_no_step_after_it(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: an executor whose back-off ends when it never began."""
    rule = RULEBOOK.rule("clock.kv_retry")
    monkeypatch.setattr("runtime.executor.RULEBOOK", RULEBOOK.replace(evolve(rule, guard=TRUE)))
    with executing(library) as b:
        replay = Replay.of(b.executor)
        b.executor.engine.fire((b.executor.program.rules["clock.kv_retry"],))
        told = replay.findings(b.executor)
        assert told == [f"step {replay.steps}, clock.kv_retry: its guard does not hold: kv_short"]
        b.tokens(1, PROMPT, 1)
        assert replay.findings(b.executor) == told


def test_a_variable_that_was_changed_past_the_rules_is_told(library: Library) -> None:
    """Negative control."""
    with executing(library) as b:
        replay = Replay.of(b.executor)
        b.tokens(1, PROMPT, 1)
        assert replay.findings(b.executor) == []
        b.executor.engine._s.strikes += 1
        assert replay.findings(b.executor) == ["strikes is 1; by the steps that were taken it should be 0"]
        b.executor.engine._s.strikes -= 1
        (sequence,) = b.executor.records.sequences.values()
        sequence.record += 1
        (told,) = replay.findings(b.executor)
        assert told.startswith("seq 1: record is ")
        sequence.record -= 1


def test_a_rule_that_is_not_the_rulebooks_is_told(library: Library) -> None:
    """Negative control."""
    with executing(library) as b:
        replay = Replay.of(b.executor)
        stranger = b.executor.program.compiled(
            evolve(RULEBOOK.rule("clock.backoff"), id="stranger", guard=TRUE, fires=())
        )
        b.executor.engine.fire((stranger,))
        assert replay.findings(b.executor) == ["step 1, stranger: the rulebook has no such rule"]
