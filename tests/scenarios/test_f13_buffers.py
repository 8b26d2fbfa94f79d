"""F13, F14, F15, F17, F18: whose memory is it.

The pool lends the slot first that was given back last, so a slot that was given back too early is the next job's. What
must not be written holds a pattern while the device moves; what the device was told is read from its own trace.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import moments
import numpy as np
import pytest
from attrs import evolve
from executing import ALL_GOOD, Bench, executing
from moments import books, end, lanes, last, pool_of, says, since, standing, until, waiting
from places import PATIENT, Place, held

from runtime.buffers import BufferLease, LeaseGone
from runtime.calrt import Library
from runtime.executor import DeviceExecutor
from runtime.job import JobContext, JobHandle
from runtime.simulator import Call
from runtime.status import StatusKind

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
CANARY = np.uint16(0x5AA5)
RESETS_STOP_NOTHING = {
    "facts": {**ALL_GOOD, "reset_stops_dma": False, "reset_is_honest": False, "reset_clears_kv": False}
}


# -- F13 ---------------------------------------------------------------------------------------------------------------
def memory(b: Bench, handle: JobHandle) -> list[np.ndarray[Any, Any]]:
    """What the next job owns: the outputs of its slot, and of every slot that is free."""
    (context,) = [c for c in b.executor.records.jobs.values() if c.handle is handle]
    own = context.lease.slot.lanes.values() if context.lease else ()
    return [lane.host_logits for lane in (*own, *lanes(b))]


def harmed_by_a_cancel(b: Bench) -> list[str]:
    """What the end of the cancelled job on the device did to the next job: to its memory, and to its result."""
    with standing(b):
        old = b.enqueue(1, PROMPT)
        until(lambda: waiting(b))
        assert old.cancel()
        new = b.enqueue(2, OTHER)
        kept = memory(b, new)
        for part in kept:
            part.fill(CANARY)
        ended = b.sim.truth("jobs_completed")
        until(lambda: b.sim.truth("jobs_completed") > ended, move=b.sim.step)
        wrong = [f"{changed} elements overwritten" for part in kept if (changed := int((part != CANARY).sum()))]
    result = end(new)
    return wrong if result.status.ok and says(b, result, OTHER) else [*wrong, str(result.status)]


@pytest.mark.shows("S06", "I4")
def test_f13_a_cancelled_job_writes_into_nobodys_memory(library: Library) -> None:
    with executing(library, **PATIENT) as b:
        assert harmed_by_a_cancel(b) == []
        assert b.tokens(3, OTHER, 2) == b.oracle.tokens(OTHER, 2)
    assert b.sim.violations() == ()


@pytest.mark.shows("I4", "I8")
def test_f13_a_job_that_timed_out_and_is_still_running(library: Library) -> None:
    """No reset stops it: it goes on writing beside the jobs of the next generation."""
    with executing(library, {"reset_stops_dma": 0}, **PATIENT | RESETS_STOP_NOTHING) as b:
        with standing(b, prefill_us=1_000_000):
            old = b.enqueue(1, PROMPT)
            until(lambda: waiting(b))
            (record,) = b.executor.records.jobs
            theirs = record.tag.lease.slot.lanes[record.tag.request.task].host_logits
            b.sim.set(prefill_us=0)
            b.executor.engine.fire((b.executor.program.rules["clock.execution"],), record)
            assert end(old).status.kind is StatusKind.DEADLINE_EXCEEDED
            until(b.executor.ready, move=lambda: b.sim.advance(1))
            b.sim.set(prefill_us=5_000_000)
            new = b.enqueue(1, OTHER)
            until(lambda: waiting(b) == 2)
            kept = memory(b, new)
            for part in (*kept, theirs):
                part.fill(CANARY)
            b.sim.advance(1_500_000)
            until(lambda: "completion.wait.stale" in b.rules())
            assert not any((part != CANARY).any() for part in kept)
            assert (theirs != CANARY).any(), "it did write, where only quarantine was"
        assert says(b, end(new), OTHER)


def frees_what_is_cancelled(b: Bench, patch: pytest.MonkeyPatch) -> None:
    one = b.executor._cancel

    def cancel(context: JobContext) -> bool:
        won = one(context)
        assert context.lease is not None
        pool_of(b)._free.append(context.lease.slot)
        return won

    patch.setattr(b.executor, "_cancel", cancel)


def test_control_f13_a_cancel_that_frees_the_slot(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.executor.LATEST_S", 0.2)
    with executing(library, **PATIENT | {"close_ms": 100}) as b:
        frees_what_is_cancelled(b, monkeypatch)
        assert harmed_by_a_cancel(b) != []


# -- F14 ---------------------------------------------------------------------------------------------------------------
def shared(trace: Iterable[Call]) -> tuple[int, list[str]]:
    """(most jobs on the device at once, what two of them shared), from infer() to the return of its Wait()."""
    bound: dict[int, int] = {}
    jobs: dict[int, tuple[int, set[int]]] = {}
    moments_of = [(c.begin_us, c.number, c) for c in trace if c.call in ("infer", "bind_sequence")]
    moments_of += [(c.end_us, c.number, c) for c in trace if c.call == "wait"]
    most, wrong = 0, []
    for _, _, call in sorted(moments_of, key=lambda m: m[:2]):
        if call.call == "bind_sequence":
            bound[call.handle] = call.a
        elif call.call == "wait":
            jobs.pop(call.a, None)
        else:
            mine = (bound[call.handle], {call.handle, call.other})
            wrong += [f"{mine} and {its}" for its in jobs.values() if its[0] == mine[0] or its[1] & mine[1]]
            jobs[call.a] = mine
            most = max(most, len(jobs))
    return most, wrong


TWO = {"inflight": 2, "slots": 3, "execution_ms": 60_000}
SLOW = {"prefill_us": 5000, "decode_us": 5000}


@pytest.mark.shows("S06", "I3")
def test_f14_two_in_flight_share_no_memory_and_no_sequence(library: Library) -> None:
    """Three clients; one of them asks for its next token before it has the last one."""
    said: dict[int, list[int]] = {}
    with executing(library, SLOW, **TWO) as b:
        with standing(b):
            first, other = b.enqueue(7, PROMPT), b.enqueue(8, OTHER)
            until(lambda: waiting(b) == 2)
            follower = threading.Thread(target=lambda: said.update({7: [b.run(7, [5], len(PROMPT)).status.ok]}))
            follower.start()
            until(lambda: len(b.executor.records.jobs) == 3)
            assert b.sim.truth("jobs_running") == 2
        assert says(b, end(first), PROMPT)
        assert says(b, end(other), OTHER)
        follower.join(moments.READY_S)
        mark = len(b.calls())
        threads = [threading.Thread(target=lambda i=i: said.update({i: b.tokens(i, OTHER, 4)})) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(moments.READY_S)
        assert said == {7: [True]} | dict.fromkeys(range(3), b.oracle.tokens(OTHER, 4))
        trace = since(b, mark)
        assert shared(trace) == (2, [])
        one_slot = [evolve(call, handle=1, other=2 if call.other else 0) for call in trace]
        assert shared(one_slot)[1], "control: had they had one slot"
    assert b.sim.violations() == ()


# -- F15 ---------------------------------------------------------------------------------------------------------------
def lengths_after_a_stop(b: Bench, place: Place) -> tuple[int, int, int]:
    """(what the last Apply asked for, the length that is known, units in use), when a job that was planned to be much
    longer was cancelled before the device had it."""
    assert b.run(1, PROMPT).status.ok
    with held(b, place) as hold:
        threading.Thread(target=b.enqueue, args=(1, [5] * 200, len(PROMPT)), daemon=True).start()
        assert hold.there.wait(moments.READY_S)
        assert next(iter(b.executor.records.jobs.values())).handle.cancel()
    until(lambda: not b.executor.records.jobs)
    applied, kv = last(b, "apply"), b.executor.calls.kv
    assert kv is not None
    return applied.b, kv.length(applied.a), kv.size.units - b.sim.truth("kv_units_free")


STOPPED_AT = [Place("after", "reserve"), Place("before", "prepare"), Place("after", "prepare")]


def units(b: Bench) -> int:
    """What the committed prompt needs."""
    kv = b.executor.calls.kv
    assert kv is not None
    return kv.size.units_of(len(PROMPT))


@pytest.mark.parametrize("place", STOPPED_AT, ids=str)
def test_f15_what_is_freed_is_what_was_not_committed(library: Library, place: Place) -> None:
    with executing(library, **PATIENT) as b:
        assert lengths_after_a_stop(b, place) == (len(PROMPT), len(PROMPT), units(b))
        assert says(b, b.run(1, [7], past=len(PROMPT)), [*PROMPT, 7])


def test_control_f15_the_planned_length_stays(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreserve(job: Any) -> str:
        context = job.tag
        assert b.executor.calls.kv is not None
        return "failed" if b.executor.calls.kv.unreserve(context.kv_id, context.target_len) else "ok"

    with executing(library, **PATIENT) as b:
        monkeypatch.setitem(b.executor._table, "unreserve", unreserve)
        assert lengths_after_a_stop(b, STOPPED_AT[2]) != (len(PROMPT), len(PROMPT), units(b))


# -- F17 ---------------------------------------------------------------------------------------------------------------
def closed_under_a_job(b: Bench, ends: bool) -> list[str]:
    """What was wrong when the executor was closed with a job on the device, which ends, or does not."""
    said: list[bool] = []
    with standing(b):
        handle = b.enqueue(1, PROMPT)
        until(lambda: waiting(b))
        mark, closing = len(b.calls()), threading.Thread(target=lambda: said.append(b.executor.close()))
        closing.start()
        until(lambda: books(b)["shutdown"] or said)
        touched = [c.call for c in since(b, mark)]
        until(lambda: said, move=b.sim.step if ends else lambda: None)
        touched += [c.call for c in since(b, mark)] if not ends else []
    closing.join(moments.READY_S)
    wrong = [f"the device was told {name} under the job" for name in touched]
    if said != [ends] or end(handle).status.ok != ends:
        wrong.append(f"close() said {said}, the job ended as {end(handle).status}")
    return [*wrong, *(v.kind for v in b.sim.violations())]


@pytest.mark.parametrize("ends", [True, False])
def test_f17_closed_with_a_job_in_flight(library: Library, ends: bool) -> None:
    """It waits for the job; and when that does not end, it says so and touches nothing."""
    with executing(library, **PATIENT | {"close_ms": 10_000 if ends else 200}) as b:
        assert closed_under_a_job(b, ends) == []


def test_control_f17_a_close_that_does_not_wait(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def close(executor: DeviceExecutor) -> bool:
        return executor.calls.close()

    with executing(library, **PATIENT | {"close_ms": 200}) as b:
        monkeypatch.setattr(DeviceExecutor, "close", close)
        assert closed_under_a_job(b, ends=False) != []


# -- F18 ---------------------------------------------------------------------------------------------------------------
def loud(b: Bench) -> list[str]:
    """What was not, when the submitter was handed a job that had ended and whose slot is the next one's."""
    infer: Any = b.executor._table["infer"]
    old: list[Any] = []

    def submit(job: Any) -> str:
        old.append((job, job.tag.lease))
        observed: str = infer(old[0][0])
        return observed

    b.executor._table["infer"] = submit  # type: ignore[index]
    assert b.run(1, PROMPT).status.ok
    infers = b.calls().count("infer")
    result = b.run(2, OTHER)
    wrong = [] if result.status.kind is StatusKind.INTERNAL else [f"the next job ended as {result.status}"]
    if b.calls().count("infer") != infers:
        wrong.append("the device was told to infer")
    if b.executor.ready():
        wrong.append("it is ready all the same")
    return wrong if not old[0][1].live else [*wrong, "the lease of a job that has ended lives"]


def test_f18_the_submitter_looks_at_a_job_that_has_ended(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.executor.LATEST_S", 0.2)
    with executing(library, close_ms=100) as b:
        assert loud(b) == []


def test_f18_every_use_of_a_lease_that_has_ended(library: Library) -> None:
    with executing(library) as b:
        with held(b, Place("before", "infer")) as hold:
            handle = b.enqueue(1, PROMPT)
            assert hold.there.wait(moments.READY_S)
            (context,) = b.executor.records.jobs.values()
            lease = context.lease
        assert lease is not None
        assert end(handle).status.ok
        pool, counts = pool_of(b), pool_of(b).counts()
        for use in (lambda: lease.slot, lambda: lease.lane(context.request.task), lease.move,
                    lambda: pool.give_back(lease), lambda: pool.quarantine(lease)):  # fmt: skip
            with pytest.raises(LeaseGone):
                use()
        assert pool.counts() == counts


def test_control_f18_a_lease_that_lives_on(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def undo(job: Any) -> str:
        pool_of(b).give_back(job.tag.lease)
        return "ok"

    monkeypatch.setattr("runtime.executor.LATEST_S", 0.2)
    with executing(library, close_ms=100) as b:
        monkeypatch.setattr(BufferLease, "_end", lambda lease: None)
        monkeypatch.setitem(b.executor._table, "undo", undo)
        assert loud(b) != []
