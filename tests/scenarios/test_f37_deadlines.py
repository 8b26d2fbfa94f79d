"""F37 to F39: four verdicts of a deadline; the wall clock changes nothing; what is no time at all is refused."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from driver import driving
from executing import READY_S, Bench, executing
from moments import end, late, standing, until

from runtime.calrt import Library
from runtime.compiled import CompiledRule
from runtime.config import Config, ConfigError
from runtime.executor import Refused
from runtime.job import Claim, JobHandle
from runtime.status import Status, StatusKind, now_us

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
NOISE_S = 2.0  # of a busy machine


# -- F37: four verdicts ----------------------------------------------------------------------------------------------
def verdict(status: Status) -> str:
    """The first word of what a client is told about a deadline."""
    assert status.kind is StatusKind.DEADLINE_EXCEEDED
    return status.text.partition(":")[0]


OWN_US = 600_000  # the request's own deadline: time enough to come as far as it shall


def slow(b: Bench) -> JobHandle:
    """On the device, and its own deadline passes; the device goes on, and its KV is committed."""
    return b.enqueue(1, PROMPT, deadline_us=now_us() + OWN_US)


def starved(b: Bench) -> JobHandle:
    """Prepared, behind one that is on the device and within its time."""
    b.enqueue(1, PROMPT)
    return b.enqueue(2, OTHER, deadline_us=now_us() + OWN_US)


def never_started(b: Bench) -> JobHandle:
    for nth in range(1, 100):
        b.sim.fault("can_allocate", "refuse", nth=nth)
    return b.enqueue(1, PROMPT, deadline_us=now_us() + OWN_US)


def hung(b: Bench) -> JobHandle:
    b.sim.fault("infer", "hang")
    return b.enqueue(1, PROMPT)


VERDICTS: dict[str, Callable[[Bench], JobHandle]] = {
    "slow": slow, "starved": starved, "never started": never_started, "hung": hung,
}  # fmt: skip
PATIENT = {"admission_ms": 60_000, "queue_ms": 60_000, "request_ms_max": 60_000, "stuck_ms": 60_000}


def check_verdict(library: Library, name: str) -> None:
    with executing(library, **PATIENT, execution_ms=300 if name == "hung" else 60_000) as b:
        with nullcontext() if name == "hung" else standing(b):
            result = end(VERDICTS[name](b))
            assert verdict(result.status) == name
            b.sim.faults_clear()
        assert b.executor.wait_ready(READY_S)
        assert b.executor.calls.generation_id == (2 if name == "hung" else 1), "only one that is hung costs the device"
        assert b.tokens(5, OTHER, 2) == b.oracle.tokens(OTHER, 2)


@pytest.mark.parametrize("name", VERDICTS)
def test_f37_four_verdicts(library: Library, name: str) -> None:
    check_verdict(library, name)


def test_f37_control_one_verdict_for_all(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.answers.VERDICTS", dict.fromkeys(("clock.queue", "clock.execution"), "hung: "))
    with pytest.raises(AssertionError):
        check_verdict(library, "starved")


def test_f37_a_submit_that_hangs_is_not_starved_silently(library: Library) -> None:
    """Its queue deadline passes while it is inside infer(): the answer says so."""
    with driving(library) as d, executing(library, queue_ms=400, execution_ms=400, stuck_ms=5000) as b:
        d.hold("infer")
        assert "Infer has not returned" in end(b.enqueue(1, PROMPT)).status.text
        d.let_go.set()


def check_told_by_another(library: Library) -> None:
    """The deadline claims the answer; the job ends, and its wait agent settles it, before the clock comes to that."""
    with executing(library, **PATIENT, execution_ms=60_000) as b:
        with late(b, "clock.request") as go:
            with standing(b):
                handle = slow(b)
                until(lambda: "clock.request" in b.rules())
            until(lambda: handle.settled)
            assert not go.is_set()
            assert b.rules().index("clock.request") < b.rules().index("completion.discard"), "another step settled it"
            assert handle.settled is not None
            assert (verdict(handle.settled.status), handle.settled.status.stage) == ("slow", "clock.request")
            assert "Wait has not returned" in handle.settled.status.text, "as it was in the moment of the claim"
        assert end(handle).status is handle.settled.status
        assert b.tokens(5, OTHER, 2) == b.oracle.tokens(OTHER, 2)


def test_f37_the_verdict_is_the_claims_whoever_tells_it(library: Library) -> None:
    check_told_by_another(library)


def test_f37_control_the_verdict_of_whoever_comes_first(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the last step that writes an answer had claimed it."""

    def latest(rule: CompiledRule, job: Any) -> None:
        job.tag.claim = Claim(rule.id, job.call, job.tag.failure)

    monkeypatch.setattr("runtime.executor.claims", latest)
    with pytest.raises(AssertionError):
        check_told_by_another(library)


# -- F39: the wall clock, and deadlines that are none ----------------------------------------------------------------
class WallClock:
    """`time.time`, until it jumps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ahead_s, real, real_ns = 0.0, time.time, time.time_ns
        patch.setattr(time, "time", lambda: real() + self.ahead_s)
        patch.setattr(time, "time_ns", lambda: real_ns() + int(self.ahead_s * 1e9))


def check_own_deadline(b: Bench, wall: WallClock, by_s: float) -> None:
    """A deadline 150 ms away comes after 150 ms, though the wall clock jumps on the way."""
    with standing(b):
        began_us = now_us()
        handle = b.enqueue(1, PROMPT, deadline_us=began_us + 150_000)
        wall.ahead_s += by_s
        result = handle.wait_until(began_us + 150_000 + int(NOISE_S * 1e6))
        assert result, "it comes"
        assert result.status.kind is StatusKind.DEADLINE_EXCEEDED
        assert 150_000 <= now_us() - began_us < 150_000 + NOISE_S * 1e6, "not too early and not too late"


@pytest.mark.parametrize("by_s", [-86_400.0, 86_400.0])
def test_f39_the_wall_clock_changes_nothing(library: Library, monkeypatch: pytest.MonkeyPatch, by_s: float) -> None:
    with executing(library) as b:
        check_own_deadline(b, WallClock(monkeypatch), by_s)
        assert b.tokens(2, OTHER, 2) == b.oracle.tokens(OTHER, 2)


@pytest.mark.nightly
def test_f39_control_an_engine_that_follows_the_wall_clock(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with executing(library, close_ms=100) as b, monkeypatch.context() as patch:
        wall = WallClock(patch)
        patch.setattr(b.executor.engine, "now_us", lambda: time.time_ns() // 1000)
        with pytest.raises(AssertionError, match="comes"):
            check_own_deadline(b, wall, -86_400.0)


NOT_A_DEADLINE = [math.nan, math.inf, -math.inf, 1.5, "soon", True, -1, -(2**70), 2**63, 2**200]


def refuses_deadline(b: Bench, deadline: Any) -> str:
    """Why the request is refused, before anything is done for it."""
    calls = len(b.calls())
    with pytest.raises(Refused) as refused:
        b.enqueue(1, PROMPT, deadline_us=deadline)
    assert refused.value.status.kind is StatusKind.INVALID_ARGUMENT
    assert len(b.calls()) == calls
    return str(refused.value)


def test_f39_what_is_no_deadline_is_refused(library: Library) -> None:
    with executing(library) as b:
        for deadline in NOT_A_DEADLINE:
            assert "deadline_us" in refuses_deadline(b, deadline)
            handle = b.enqueue(1, PROMPT)
            with pytest.raises((ValueError, TypeError), match="deadline_us"):
                handle.wait_until(deadline)
            assert end(handle).status.ok
            assert b.executor.seq_rm(1).ok
        assert end(b.enqueue(1, PROMPT, deadline_us=0)).status.kind is StatusKind.DEADLINE_EXCEEDED, "long ago"
        assert end(b.enqueue(2, PROMPT, deadline_us=2**62)).status.ok, "the longest is request_ms_max"


def test_f39_control_a_deadline_is_looked_at(library: Library) -> None:
    with executing(library) as b, pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        refuses_deadline(b, now_us() + 1_000_000)


MS_KEYS = [name for name in Config.__annotations__ if name.endswith("_ms") or name.endswith("_ms_max")]


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 1.5, True, 2**63, "1"])
def test_f39_what_is_no_interval_is_refused(value: Any) -> None:
    assert len(MS_KEYS) == 12
    for name in MS_KEYS:
        with pytest.raises(ConfigError, match=name):
            Config(manifest="m", **{name: value})


@pytest.mark.parametrize("timeout_s", [math.nan, -1.0, math.inf, 1e300])
def test_f39_what_is_no_timeout_is_refused(library: Library, timeout_s: float) -> None:
    with executing(library) as b, pytest.raises(ValueError, match="timeout_s"):
        b.executor.wait_ready(timeout_s)
