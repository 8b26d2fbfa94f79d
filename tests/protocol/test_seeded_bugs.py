"""Bugs seeded into the protocol: each is refuted, with exactly the pinned shortest list of steps.

The lists were read and judged by hand; they say how such a bug shows, so a change that alters one is to
be looked at, not just pinned anew.
"""

from __future__ import annotations

import pytest
from attrs import evolve

from checker import liveness
from checker.explore import explore
from checker.graph import from_python
from checker.model import build
from checker.native import Program
from checker.result import Finding
from machines.answer import ANSWER, AnswerState
from machines.expr import FALSE, Expr, all_of
from machines.protocol import RULEBOOK
from machines.protocol.effects import COMMIT
from machines.protocol.runs import EXIT, ONE_JOB, RUNS, SOUND
from machines.protocol.variables import job, kv_free, on_device, own_seq
from machines.rulebook import Rule, Rulebook
from machines.sequence import SEQUENCE, SequenceState
from machines.table import Entry

READY = [
    "client.arrive.prefill[0]", "lifecycle.configure", "lifecycle.configure.ok", "lifecycle.golden",
    "lifecycle.golden.passed", "admission.reserve.prefill[0]",
]  # fmt: skip
PREPARED = [*READY, "admission.reserve.ok[0]", "admission.prepare[0]", "admission.prepare.ok[0]"]
RUNNING = [*PREPARED, "submitter.infer[0]", "device.accept[0]", "submitter.infer.ok[0]"]
WAITING = [*RUNNING, "completion.wait[0]"]


def without(rule: Rule, *conjuncts: str) -> Rule:
    """The rule with these conjuncts of its guard removed; each must be there."""
    parts = rule.guard.conjuncts()
    assert set(conjuncts) <= {str(c) for c in parts}
    return evolve(rule, guard=all_of(*(c for c in parts if str(c) not in conjuncts)))


def refutation(book: Rulebook, values: dict[str, int], prop: str) -> list[str]:
    exploration = explore(build(book.scope({**values, **ONE_JOB})))
    assert exploration.complete
    assert prop in exploration.findings, sorted(exploration.findings)
    return exploration.findings[prop].rules


def test_the_protocol_itself_is_not_refuted() -> None:
    for values in (EXIT, SOUND["rebuild-golden"]):
        assert not explore(build(RULEBOOK.scope({**values, **ONE_JOB}))).findings


def test_slot_freed_at_execution_timeout() -> None:
    rule = RULEBOOK.rule("clock.execution")
    fires = tuple((target, "done" if str(target) == "job.slot" else event) for target, event in rule.fires)
    seeded = RULEBOOK.replace(evolve(rule, fires=fires))
    assert refutation(seeded, EXIT, "I4.memory") == [*RUNNING, "clock.execution[0]"]


def test_kv_committed_before_validation() -> None:
    seeded = RULEBOOK.replace(
        evolve(RULEBOOK.rule("completion.wait.ok"), begins=COMMIT),
        drop=[r.id for r in RULEBOOK.rules if r.id.startswith(("completion.convert.", "completion.judge"))],
        effects=[e for e in RULEBOOK.effects if e.name != "convert"],
    )
    assert refutation(seeded, EXIT, "I6.commit") == [
        *WAITING, "device.invalid[0]", "completion.wait.ok[0]", "completion.commit.ok[0]",
    ]  # fmt: skip


def test_an_output_judged_while_the_one_before_it_is_not() -> None:
    """The second job was given to a device that the first one had broken; nobody has looked at the first one yet."""
    seeded = RULEBOOK.replace(
        without(RULEBOOK.rule("completion.wait.ok"), "job.behind == 0"), drop=["completion.wait.ok.behind"]
    )
    exploration = Program(build(seeded.scope({**EXIT, "slots": 2, "faults": 1}))).explore()
    assert exploration.complete
    rules = exploration.findings["answer.valid"].rules
    assert rules[rules.index("submitter.infer[0]") :] == [
        "submitter.infer[0]", "device.accept[0]", "submitter.infer.ok[0]", "completion.wait[0]", "device.invalid[0]",
        "completion.wait.ok[0]", "submitter.infer[1]", "device.accept[1]", "submitter.infer.ok[1]",
        "completion.wait[1]", "device.done[1]", "completion.wait.ok[1]", "completion.convert.valid[1]",
        "completion.commit.ok[1]", "unwind.undo.ok[1]", "completion.deliver[1]",
    ]  # fmt: skip


def test_a_job_of_an_ended_generation_takes_a_place_in_the_order_of_the_new_one() -> None:
    """It needs one old and two new jobs: the run that has them must find it, and end where the old one is abandoned."""
    rule = RULEBOOK.rule("completion.abandon")
    parts = tuple(
        evolve(part, then=tuple((target, _of_any_generation(value)) for target, value in part.then))
        for part in rule.each
    )
    run = next(r for r in RUNS if r.name == "rebuild 3 jobs over a reset")
    seeded = RULEBOOK.replace(evolve(rule, each=parts))
    scope = seeded.scope({**run.values, "faults": 0}, run.without)
    rules = Program(build(scope)).explore(stop_at_first=True).findings["books.first"].rules
    last = next(k for k in reversed(range(len(rules))) if rules[k].startswith("lifecycle.golden.passed"))
    new = {"submitter.infer[1]", "submitter.infer.ok[1]", "submitter.infer[2]"}
    assert (rules[-1], len(rules)) == ("completion.abandon[0]", 35)
    assert new <= set(rules[last:])


def _of_any_generation(value: Expr) -> Expr:
    """The update as it is for a job of this generation."""
    if str(value) == "job.old":
        return FALSE
    return evolve(value, args=tuple(_of_any_generation(a) if isinstance(a, Expr) else a for a in value.args))


def test_answer_claimed_by_both_cancel_and_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    second = Entry("answer", AnswerState.Cancelled, "deliver", "goto", AnswerState.Ok)
    monkeypatch.setitem(ANSWER.entries, (AnswerState.Cancelled, "deliver"), second)
    seeded = RULEBOOK.replace(without(RULEBOOK.rule("completion.deliver"), "job.answer == Pending"))
    assert refutation(seeded, EXIT, "answer.once") == [
        *PREPARED, "submitter.infer[0]", "client.cancel[0]", "device.accept[0]", "submitter.infer.ok.stopped[0]",
        "completion.wait[0]", "device.done[0]", "completion.wait.ok[0]", "completion.convert.valid[0]",
        "completion.commit.ok[0]", "unwind.undo.ok[0]", "completion.deliver[0]",
    ]  # fmt: skip


def test_old_completion_updates_the_new_generation() -> None:
    seeded = RULEBOOK.replace(
        without(RULEBOOK.rule("completion.wait.ok"), "~job.old"),
        evolve(RULEBOOK.rule("completion.wait.stale"), guard=~on_device),
    )
    assert refutation(seeded, SOUND["rebuild-golden"], "range") == [
        *PREPARED, "submitter.infer[0]", "clock.stuck[0]", "device.accept[0]", "submitter.infer.ok[0]",
        "completion.wait[0]", "clock.grace.recover", "device.done[0]", "completion.wait.ok[0]",
    ]  # fmt: skip


def test_submit_while_draining() -> None:
    seeded = RULEBOOK.replace(without(RULEBOOK.rule("submitter.infer"), "device == Ready"))
    assert refutation(seeded, EXIT, "submit.serving") == [
        *READY, "admission.reserve.ok[0]", "admission.prepare[0]", "client.give_up", "admission.prepare.ok[0]",
        "submitter.infer[0]",
    ]  # fmt: skip


def test_sequence_of_an_older_generation_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Entry("sequence", SequenceState.Lost, "extend", "goto", SequenceState.Busy)
    monkeypatch.setitem(SEQUENCE.entries, (SequenceState.Lost, "extend"), lost)
    rule = without(RULEBOOK.rule("admission.reserve.extend"), "seq.record == Live")
    usable = own_seq.record.isin(SequenceState.Live, SequenceState.Lost)
    seeded = RULEBOOK.replace(evolve(rule, guard=rule.guard & usable & (kv_free > 0)))
    assert refutation(seeded, SOUND["rebuild-golden"], "kv.submit") == [
        *READY, "admission.reserve.failed[0]", "lifecycle.recover",
        "lifecycle.reset", "lifecycle.reset.ok", "lifecycle.configure", "lifecycle.configure.ok", "lifecycle.golden",
        "lifecycle.golden.passed", "records.forget[0]", "client.arrive.extend[0]", "admission.reserve.extend[0]",
        "admission.reserve.ok[0]", "admission.prepare[0]", "admission.prepare.ok[0]", "submitter.infer[0]",
    ]  # fmt: skip


def test_promise_never_answered_when_the_device_hangs() -> None:
    """Without the execution deadline (and the request's own): the device keeps the job, and so does everybody."""
    left_out = ("clock.execution", "clock.request")
    model = build(RULEBOOK.scope({**EXIT, **ONE_JOB}, left_out))
    finding = liveness.check(from_python(model))["live.answered"]
    assert isinstance(finding, Finding)
    assert finding.rules == WAITING
    assert finding.loop == len(WAITING), "nothing fair is enabled there: it stays so for ever"
    whole = build(RULEBOOK.scope({**EXIT, **ONE_JOB}))
    assert liveness.check(from_python(whole))["live.answered"] is None


def test_guards_of_seeds_are_named_as_they_stand() -> None:
    with pytest.raises(AssertionError):
        without(RULEBOOK.rule("submitter.infer"), "no such conjunct")
    assert str(job.answer == AnswerState.Pending) == "job.answer == Pending"
