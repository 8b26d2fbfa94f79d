"""F26, F27: whoever can be served is served, by a timer or by a wake-up, and nobody else has to come for it.

Time is either the executor's own timers, short and with nobody calling, or no timer at all ends anything (PATIENT), so
that only a wake-up can.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import moments
import pytest
from executing import READY_S, Bench, executing
from moments import books, end, says, standing, until, waiting
from places import DEADLINE_US, LONG_MS, PATIENT, Place, held, ledger, pass_time, settled

from machines.admission import AdmissionMode
from runtime import executor as executor_module
from runtime.calrt import Library
from runtime.compiled import CompiledRule
from runtime.crew import Clock
from runtime.executor import DeviceExecutor
from runtime.job import JobHandle
from runtime.status import StatusKind, now_us

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
QUICK = PATIENT | {"kv_retry_ms": 5}


# -- F26 ---------------------------------------------------------------------------------------------------------------
TIMED = {"slots": 1, "admission_ms": 700, "execution_ms": 1000, "backoff_ms": 50, "kv_retry_ms": 20}


def by_itself(b: Bench, within_s: float) -> list[str]:
    """With a full pool, a job that hangs, and nobody who comes: what did not happen in time."""
    wrong: list[str] = []

    def comes(what: str, moment: Callable[[], Any]) -> None:
        latest_us = now_us() + int(within_s * 1e6)
        while not moment():
            if now_us() > latest_us:
                wrong.append(what)
                return
            threading.Event().wait(0.005)

    b.sim.fault("infer", "return", 17, 0)
    assert not b.run(7, OTHER).status.ok
    comes("the back-off ends", lambda: books(b)["mode"] == AdmissionMode.Open.code)
    b.sim.fault("infer", "hang")
    hanging = b.enqueue(1, PROMPT)
    handles: list[JobHandle] = []
    client = threading.Thread(target=lambda: handles.append(b.enqueue(2, OTHER)), daemon=True)
    client.start()
    comes("who waits for a slot is told", lambda: handles and handles[0].done())
    comes("who hangs is told", hanging.done)
    comes("the device is Ready again", lambda: b.executor.calls.generation_id == 2 and b.executor.ready())
    if not wrong:
        kinds = [end(handle).status.kind for handle in (hanging, *handles)]
        wrong += [str(kind) for kind in kinds if kind is not StatusKind.DEADLINE_EXCEEDED]
    return wrong


def test_f26_timers_fire_when_nobody_comes(library: Library) -> None:
    with executing(library, **TIMED) as b:
        assert by_itself(b, READY_S) == []
        assert b.tokens(3, OTHER, 2) == b.oracle.tokens(OTHER, 2)
    assert b.sim.violations() == ()


def test_f26_a_refused_apply_is_tried_again_when_nobody_comes(library: Library) -> None:
    """Three times, and nothing was freed meanwhile."""
    with executing(library, **QUICK) as b:
        for nth in range(1, 4):
            b.sim.fault("can_allocate", "refuse", nth=nth)
        assert says(b, b.run(4, OTHER), OTHER)
        assert b.rules().count("clock.kv_retry") == 3


def test_control_f26_the_clock_is_looked_at_when_work_comes(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    arrive = DeviceExecutor._arrive

    def look(executor: DeviceExecutor, request: Any) -> Any:
        while executor.engine.expire():
            pass
        return arrive(executor, request)

    def sleep(clock: Clock) -> None:
        while not clock._stopped:
            threading.Event().wait(0.01)

    monkeypatch.setattr(Clock, "run", sleep)
    monkeypatch.setattr(DeviceExecutor, "_arrive", look)
    monkeypatch.setattr(executor_module, "LATEST_S", 0.2)
    with executing(library, **TIMED | {"close_ms": 100}) as b:
        assert by_itself(b, 0.3)[0] == "the back-off ends"


# -- F27 ---------------------------------------------------------------------------------------------------------------
def client_of(b: Bench, seq_id: int, results: dict[int, Any], **more: Any) -> threading.Thread:
    """A client with one job; its result comes into `results`."""
    known = len(b.executor.records.jobs)
    thread = threading.Thread(target=lambda: results.update({seq_id: b.run(seq_id, OTHER, **more)}), daemon=True)
    thread.start()
    until(lambda: len(b.executor.records.jobs) > known)
    return thread


def hands_on(b: Bench) -> list[str]:
    """KV is full. The head of the line is late, and then KV is freed: the next one is served, by that alone."""
    results: dict[int, Any] = {}
    assert b.run(1, PROMPT).status.ok
    head = client_of(b, 2, results, deadline_us=now_us() + DEADLINE_US)
    following = [client_of(b, seq_id, results) for seq_id in (3,)]
    pass_time(b, DEADLINE_US + 1)
    head.join(READY_S)
    assert b.executor.seq_rm(1).ok
    for thread in following:
        thread.join(moments.READY_S)
    kinds = {seq_id: result.status.kind for seq_id, result in results.items()}
    right = {2: StatusKind.DEADLINE_EXCEEDED, 3: StatusKind.OK}
    return [] if kinds == right else [f"they ended as {kinds}"]


ONE_UNIT = PATIENT | {"sequences_max": 1}


def test_f27_the_head_is_late_and_the_next_is_served(library: Library) -> None:
    with executing(library, **ONE_UNIT) as b:
        assert hands_on(b) == []


def test_control_f27_a_wake_up_that_is_lost(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with executing(library, **ONE_UNIT | {"close_ms": 100}) as b:
        monkeypatch.setattr(moments, "READY_S", 0.3)
        awaited, removal = b.executor.engine.awaited, ("client.remove.ok", "client.discard")
        known = awaited.at

        def forgetful(rule: CompiledRule, place: int | None, phase: int | None) -> Any:
            concerns, over = known(rule, place, phase)
            return tuple(c for c in concerns if not (rule.id in removal and c.rule.sort)), over

        monkeypatch.setattr(awaited, "at", forgetful)
        assert hands_on(b) == ["they ended as {2: <StatusKind.DEADLINE_EXCEEDED: 'DEADLINE_EXCEEDED'>}"]


def freed_before_it_waits(b: Bench) -> list[str]:
    """Apply said no; before that is reported, KV is freed: nobody will be woken for it any more."""
    results: dict[int, Any] = {}
    assert b.run(1, PROMPT).status.ok
    b.sim.fault("can_allocate", "refuse")
    with held(b, Place("after", "reserve")) as hold:
        client = client_of(b, 2, results)
        assert hold.there.wait(READY_S)
        assert b.executor.seq_rm(1).ok
    client.join(moments.READY_S)
    return [] if 2 in results and results[2].status.ok else ["it waits, and KV is free"]


def test_f27_what_is_freed_before_it_waits_is_found_in_bounded_time(library: Library) -> None:
    with executing(library, **QUICK) as b:
        assert freed_before_it_waits(b) == []


def test_control_f27_without_the_bound(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with executing(library, **PATIENT | {"close_ms": 100, "kv_retry_ms": LONG_MS}) as b:
        monkeypatch.setattr(moments, "READY_S", 0.3)
        assert freed_before_it_waits(b) == ["it waits, and KV is free"]


def test_f27_many_clients_with_little_room(library: Library) -> None:
    """One slot and two sequences' KV for eight clients, half of whom give up at some point: who does not is served."""
    results: dict[int, Any] = {}

    def removed(seq_id: int) -> bool:
        return b.executor.seq_rm(seq_id).ok

    def client(number: int) -> None:
        for i in range(6):
            seq_id = 10 * number + i
            handle = b.enqueue(seq_id, PROMPT)
            if number % 2:
                handle.cancel()
            results[seq_id] = end(handle)
            until(partial(removed, seq_id))

    with executing(library, slots=1, sequences_max=2, kv_retry_ms=LONG_MS, admission_ms=60_000) as b:
        before = ledger(b)
        threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(results) == 48
        assert all(r.status.ok and says(b, r, PROMPT) for seq_id, r in results.items() if seq_id // 10 % 2 == 0)
        assert {r.status.kind for r in results.values()} <= {StatusKind.OK, StatusKind.CANCELLED}
        assert settled(b, before) == []
    assert b.sim.violations() == ()


def test_f27_a_token_that_fits_needs_no_free_unit(library: Library) -> None:
    """Its sequence holds the room already: that nothing is free is no reason to wait."""
    with executing(library, **PATIENT) as b:
        assert b.run(1, PROMPT).status.ok
        with standing(b):
            b.sim.fault("can_allocate", "refuse")
            handle = b.enqueue(1, [7], past=len(PROMPT))
            until(lambda: waiting(b))
        assert says(b, end(handle), [*PROMPT, 7])
