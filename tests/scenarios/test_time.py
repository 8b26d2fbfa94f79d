"""F34 to F39: an idle executor sleeps, time limits hold though calls hang, and four verdicts are told apart."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from driver import Driver, driving
from executing import READY_S, Bench, executing
from moments import books, end, standing, until, waiting

from runtime.calrt import Library
from runtime.config import Config, ConfigError
from runtime.executor import Refused
from runtime.job import InferenceResult, JobHandle
from runtime.removal import Removals
from runtime.status import Status, StatusKind, now_us

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
NOISE_S = 2.0  # of a busy machine


# -- F34: idle -------------------------------------------------------------------------------------------------------
LOOK_S = 1.0
CPU_MAX = 0.01
SWITCHES_MAX_PER_S = 10  # of all threads of the executor


@frozen
class Spent:
    """In a stretch of time: the process's share of one processor, and how often the executor's threads woke."""

    cpu: float
    switches: int


def spent(b: Bench, seconds: float = LOOK_S) -> Spent:
    threads = [t.native_id for t in b.executor.crew.threads if t.is_alive()]

    def woke() -> int:
        return sum(switches(t) for t in threads if t)

    before, cpu_s, began_s = woke(), time.process_time(), time.monotonic()
    threading.Event().wait(seconds)
    return Spent((time.process_time() - cpu_s) / (time.monotonic() - began_s), woke() - before)


def switches(native_id: int) -> int:
    """Voluntary context switches of a thread."""
    lines = Path(f"/proc/self/task/{native_id}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def check_asleep(b: Bench) -> None:
    found = spent(b)
    assert found.switches <= SWITCHES_MAX_PER_S * LOOK_S, f"it woke {found.switches} times"
    assert found.cpu < CPU_MAX, f"{found.cpu:.1%} of a processor"


@pytest.mark.parametrize("when", ["ready", "on the device", "failed"])
def test_f34_an_idle_executor_sleeps(library: Library, when: str) -> None:
    with executing(library, recoveries_max=0, execution_ms=60_000, request_ms_max=60_000) as b, standing(b):
        if when == "on the device":
            b.enqueue(1, PROMPT)
            b.enqueue(2, OTHER)
            until(lambda: waiting(b))
        if when == "failed":
            b.sim.fault("infer", "return", 18, 0)
            assert not b.run(1, PROMPT).status.ok
            until(lambda: not b.executor.wait_ready(0))
        check_asleep(b)


def test_f34_control_a_clock_that_polls(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with executing(library) as b:
        monkeypatch.setattr(b.executor.engine, "next_due_us", lambda: now_us() + 2000)
        b.executor.crew.clock.wake()
        with pytest.raises(AssertionError, match="woke"):
            check_asleep(b)


def test_f34_control_a_thread_that_spins(library: Library) -> None:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    with executing(library) as b:
        threading.Thread(target=spin, daemon=True).start()
        with pytest.raises(AssertionError, match="of a processor"):
            check_asleep(b)
        stop.set()


# -- F35: a Wait() that never returns --------------------------------------------------------------------------------
EXECUTION_MS = 200
HANGING = {"execution_ms": EXECUTION_MS, "grace_ms": 100, "close_ms": 500, "abandoned_max": 2, "recoveries_max": 5}


def firing(b: Bench, rule: str) -> list[str]:
    """The threads that fired this rule, from now on."""
    told, after = [], b.executor.engine.on_step

    def on_step(step: Any, element: Any) -> None:
        if step.id == rule:
            told.append(threading.current_thread().name)
        if after:
            after(step, element)

    b.executor.engine.on_step = on_step
    return told


def check_deadline(b: Bench, handle: JobHandle, began_us: int) -> None:
    """The client has its answer on time."""
    result = handle.wait_until(began_us + int((EXECUTION_MS / 1000 + NOISE_S) * 1e6))
    assert result, "the execution deadline fires"
    assert now_us() - began_us >= EXECUTION_MS * 1000
    assert (result.status.kind, result.status.stage) == (StatusKind.DEADLINE_EXCEEDED, "clock.execution")
    assert result.logits is None


def test_f35_a_wait_that_never_returns(library: Library) -> None:
    """Also not after the reset: it costs its agent, and nothing else."""
    with driving(library) as d, executing(library, **HANGING) as b:
        fired = firing(b, "clock.execution")
        for lost in (1, 2):
            d.hold_next("output_wait")
            began_us = now_us()
            check_deadline(b, b.enqueue(lost, PROMPT), began_us)
            assert b.executor.wait_ready(READY_S)
            assert d.held == ["output_wait"] * lost, "it never returned"
            assert b.tokens(9, OTHER, 3) == b.oracle.tokens(OTHER, 3), "the executor has recovered"
            assert b.executor.seq_rm(9).ok
        assert fired == ["calexec clock"] * 2
        quiet = books(b)
        d.let_go.set()
        until(lambda: not d.held and not books(b)["waits"])
        assert b.tokens(9, OTHER, 3) == b.oracle.tokens(OTHER, 3), "and their late return changes nothing"
        assert books(b)["device"] == quiet["device"]
    assert b.sim.violations() == ()


def test_f35_a_job_that_hangs_on_the_device(library: Library) -> None:
    with executing(library, **HANGING) as b:
        b.sim.fault("infer", "hang")
        began_us = now_us()
        check_deadline(b, b.enqueue(1, PROMPT), began_us)
        assert b.executor.wait_ready(READY_S)
        assert b.tokens(2, OTHER, 3) == b.oracle.tokens(OTHER, 3)


def test_f35_more_of_them_than_may_be_left_behind(library: Library) -> None:
    """The bound on abandoned waits: then it is Failed, and everybody is answered."""
    with driving(library) as d, executing(library, **HANGING) as b:
        for lost in range(HANGING["abandoned_max"] + 1):
            assert b.executor.wait_ready(READY_S), f"{lost} waits are left behind"
            d.hold_next("output_wait")
            check_deadline(b, b.enqueue(lost, PROMPT), now_us())
        assert not b.executor.wait_ready(READY_S)
        assert not b.run(9, OTHER).status.ok


@pytest.mark.nightly
def test_f35_control_a_deadline_that_does_not_cover_the_execution(library: Library) -> None:
    with driving(library) as d, executing(library, **{**HANGING, "execution_ms": 10_000}) as b:
        d.hold_next("output_wait")
        with pytest.raises(AssertionError, match="fires"):
            check_deadline(b, b.enqueue(1, PROMPT), now_us())


# -- F36: the driver spins with its lock held ------------------------------------------------------------------------
SPINNING = {
    "admission_ms": 400, "queue_ms": 400, "execution_ms": 400, "stuck_ms": 400, "grace_ms": 200, "close_ms": 300,
}  # fmt: skip
ALL_S = 1.5 + NOISE_S


def check_others(b: Bench, d: Driver, call: str) -> None:
    """One client's call spins; another is queued, others come while it spins: all of them are answered."""
    answers: dict[int, InferenceResult | Refused | None] = {}

    def client(number: int) -> None:
        try:
            answers[number] = b.enqueue(number, OTHER).wait_until(now_us() + int(ALL_S * 1e6))
        except Refused as refused:
            answers[number] = refused

    d.spin(call)
    clients = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(5)]
    began_s = time.monotonic()
    clients[0].start()
    until(lambda: call in d.held)
    for thread in clients[1:]:
        thread.start()
    for thread in clients:
        thread.join(max(0.0, began_s + ALL_S - time.monotonic()))
    assert d.held == [call], "it spins still"
    assert sorted(i for i, found in answers.items() if found) == [0, 1, 2, 3, 4], "everybody is answered"
    assert not any(isinstance(a, InferenceResult) and a.status.ok for a in answers.values())


RARER = [pytest.param(call, marks=pytest.mark.nightly) for call in ("input_set_csr", "output_get_status")]


@pytest.mark.parametrize("call", ["infer", "output_wait", "kv_apply", *RARER])
def test_f36_a_driver_that_spins_with_its_lock_held(library: Library, call: str) -> None:
    with driving(library) as d, executing(library, **SPINNING) as b:
        check_others(b, d, call)
        closing = threading.Thread(target=b.executor.close, daemon=True)
        closing.start()
        closing.join(SPINNING["close_ms"] / 1000 + NOISE_S)
        assert not closing.is_alive(), "and it can be closed"
        assert not b.executor.ready()


def check_remove_comes_back(b: Bench, d: Driver) -> None:
    assert b.run(1, PROMPT).status.ok
    d.spin("kv_apply")
    said: list[Status] = []
    client = threading.Thread(target=lambda: said.append(b.executor.seq_rm(1)), daemon=True)
    client.start()
    client.join(ALL_S)
    assert d.held == ["kv_apply"], "it spins still"
    assert said, "the client is told"
    assert (said[0].kind, said[0].stage) == (StatusKind.INTERNAL, "seq_rm")
    assert not b.executor.ready()


def test_f36_a_removal_that_spins(library: Library) -> None:
    with driving(library) as d, executing(library, **SPINNING) as b:
        check_remove_comes_back(b, d)


def test_f36_control_a_client_that_makes_the_call_itself(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Removals, "_made_aside", lambda removals, effect, s: removals._calls[effect.name](s))
    with driving(library) as d, executing(library, **SPINNING) as b:
        with pytest.raises(AssertionError, match="told"):
            check_remove_comes_back(b, d)
        d.let_go.set()


@pytest.mark.nightly
def test_f36_control_a_clock_that_calls_the_driver(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends a generation must not be stuck in the driver: it may be the clock."""
    with driving(library) as d, executing(library, **SPINNING) as b:
        device = b.executor.calls.device
        monkeypatch.setattr(b.executor.engine, "expire", lambda: device.memory_used() and None)
        with pytest.raises(AssertionError, match="everybody"):
            check_others(b, d, "output_wait")
        d.let_go.set()


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
    with driving(library) as d, executing(library, **{**SPINNING, "stuck_ms": 5000}) as b:
        d.hold("infer")
        assert "Infer has not returned" in end(b.enqueue(1, PROMPT)).status.text
        d.let_go.set()


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
