"""The oracle: an executor that fires a rule and skips what belongs to it is seen, whatever its variables say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from checker.real import Scenario, Violated, play, running
from runtime.answers import ANSWERS
from runtime.calls import DeviceCalls
from runtime.calrt import Library
from runtime.engine import Engine
from runtime.executor import DeviceExecutor
from runtime.job import JobHandle
from runtime.kv import KvCoordinator
from runtime.timers import Timers

NOTHING: Callable[..., Any] = lambda *of, **more: None  # noqa: E731

# What an engine that fires a rule might leave out: what, who sees it, and a run in which it matters.
HANG = Scenario(faults=1, kinds=("infer.hang",), moves=())
SKIPPED = {
    "the slot is put into quarantine": (DeviceCalls, "quarantine", "the pool has", HANG),
    "its sequence is in doubt": (KvCoordinator, "mark_unknown", "KV is", HANG),
    "the generation ends": (DeviceCalls, "end_generation", "in generation 1; by the steps that should be 2", HANG),
    "the answer is given": (DeviceExecutor, "_answer", "no answer", Scenario(moves=())),
    "its client is told": (JobHandle, "tell", "nobody was told", Scenario(moves=())),
    "a timer is armed": (Timers, "_arm", "the timer of", Scenario(moves=())),
    "a timer is disarmed": (Timers, "_disarm", "the timer of", Scenario(moves=())),
    "others go on": (Engine, "_grant", "somebody is parked for", Scenario(moves=())),
}  # fmt: skip


def fails(scenario: Scenario, library: Library) -> str:
    """What a run says whose first faults come as soon as they can; "" if it is well."""
    for fault_at in range(4, 10) if scenario.faults else (0,):
        try:
            play(scenario, [0] * fault_at + [-1], library)
        except Violated as violated:
            return str(violated)
    return ""


@pytest.mark.parametrize("skipped", SKIPPED)
def test_an_effect_that_is_skipped_is_seen(library: Library, skipped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of every comparison with something real."""
    owner, name, seen, scenario = SKIPPED[skipped]
    assert fails(scenario, library) == "", "it is well as it is"
    monkeypatch.setattr(owner, name, (lambda *of: []) if name == "_grant" else NOTHING)
    said = fails(scenario, library)
    assert seen in said.splitlines()[0], said
    assert said.splitlines()[-1].startswith("play(Scenario("), "the run is printed as code"


def test_a_variable_that_somebody_changes_is_seen(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: DeviceCalls, job: Any) -> str:
        job.suspect = 1
        return prepare(self, job)

    prepare = DeviceCalls.prepare
    monkeypatch.setattr(DeviceCalls, "prepare", wrong)
    with pytest.raises(Violated, match="suspect is 1; by the steps that were taken it should be 0"):
        play(Scenario(moves=()), (), library)


def test_logits_that_are_not_the_oracles_are_seen(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: DeviceCalls, job: Any) -> str:
        said = convert(self, job)
        job.tag.logits[7] += 1
        return said

    convert = DeviceCalls.convert
    monkeypatch.setattr(DeviceCalls, "convert", wrong)
    with pytest.raises(Violated, match="other logits than the oracle"):
        play(Scenario(moves=()), (), library)


def test_kv_that_the_device_does_not_hold_is_seen(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor's own books agree with each other: only the device's truth differs."""
    commit = KvCoordinator.commit

    def shorter_from_now_on() -> None:
        with running(Scenario(moves=()), library) as run:
            monkeypatch.setattr(KvCoordinator, "commit", lambda self, seq, target: commit(self, seq, target - 1 or 1))
            run.end()

    with pytest.raises(Violated, match="the device holds 2 tokens of sequence 1; committed were 3"):
        shorter_from_now_on()


def test_another_kind_of_answer_than_claimed_is_seen(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = dict(zip(ANSWERS, [*ANSWERS.values()][1:], strict=False))
    monkeypatch.setattr("runtime.answers.ANSWERS", {**ANSWERS, **wrong})
    with pytest.raises(Violated, match="was answered CANCELLED"):
        play(Scenario(moves=()), (), library)


def test_a_step_that_is_not_allowed_is_seen(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    from seeded_bugs import with_rule

    without = with_rule("submitter.infer", "permits < (1 if mode == Reduced else inflight)")
    with without(), pytest.raises(Violated, match="its guard does not hold"):
        play(Scenario(slots=2, moves=()), (), library)
