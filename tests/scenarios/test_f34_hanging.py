"""F34 to F36: an idle executor sleeps, and its time limits hold though calls hang."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from driver import Driver, driving
from executing import READY_S, Bench, executing
from moments import books, standing, until, waiting

from runtime.calrt import Library
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
