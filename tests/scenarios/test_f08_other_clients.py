"""F08, F11, F12: who stops, and who does not.

A cancel concerns the jobs that it names: another client's job on the device ends right to the bit, and what nobody
waits for any more never reaches the device, whoever has gone and however.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import moments
import pytest
from attrs import evolve
from executing import READY_S, Bench, executing
from moments import books, end, names, says, since, standing, until, waiting
from places import DEADLINE_US, PATIENT, ledger, pass_time, settled

from runtime.calrt import Library
from runtime.executor import DeviceExecutor, Refused
from runtime.job import InferenceResult, JobContext, JobHandle
from runtime.status import Status, StatusKind, now_us

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
SLOTS = 2


class Line:
    """Client A's job on the device; behind it one that is queued, and one that waits for a slot. They are another
    client's, and have a deadline."""

    def __init__(self, b: Bench) -> None:
        self.b, self.before = b, ledger(b)
        self.threads: list[threading.Thread] = []
        self.running = b.enqueue(1, PROMPT)
        until(lambda: waiting(b))
        self.mark = len(b.calls())
        self.theirs = [self._client(seq_id, moment) for seq_id, moment in ((2, "queued"), (3, "admitted"))]

    def _client(self, seq_id: int, timing: str) -> JobHandle:
        """enqueue() of a job, which may not return; the handle is there when the job has come so far."""
        known = set(self.b.executor.records.jobs)
        request = evolve(self.b.request(seq_id, OTHER), deadline_us=now_us() + DEADLINE_US, request_id=77)
        self.threads.append(threading.Thread(target=self.b.executor.enqueue, args=(request,), daemon=True))
        self.threads[-1].start()
        until(lambda: set(self.b.executor.records.jobs) - known)
        (record,) = set(self.b.executor.records.jobs) - known
        context = record.tag
        moment = {"queued": lambda: context.timings.queued_us, "admitted": lambda: context.kv_id}[timing]
        until(moment)
        return context.handle


def stopped(b: Bench, stop: Callable[[Line], Any], kind: StatusKind) -> list[str]:
    """What was wrong when all that client's jobs were stopped like this, while A's job was on the device."""
    started = b.sim.truth("jobs_started")
    with standing(b):
        line = Line(b)
        stop(line)
        wrong = [f"theirs ended as {r.status}" for h in line.theirs if (r := end(h)).status.kind is not kind]
        for thread in line.threads:
            thread.join(moments.READY_S)
        if line.running.done():
            wrong.append("A's job ended, too")
        if set(names(since(b, line.mark))) & {"infer", "reset_ccu", "reset"}:
            wrong.append(f"the device was told {names(since(b, line.mark))}")
    result = end(line.running)
    if not result.status.ok or not says(b, result, PROMPT):
        wrong.append(f"A's job ended as {result.status}")
    following = b.run(1, [7], past=len(PROMPT))
    if not following.status.ok or not says(b, following, [*PROMPT, 7]):
        wrong.append(f"A's next job ended as {following.status}")
    for seq_id in (1, 2, 3):
        if not b.executor.seq_rm(seq_id).ok:
            wrong.append(f"sequence {seq_id} is not free")
    wrong += settled(b, line.before)
    if (ran := b.sim.truth("jobs_started") - started) != 2:
        wrong.append(f"{ran} jobs ran; A had 2")
    return wrong


def cancels(line: Line) -> None:
    for handle in line.theirs:
        handle.cancel()


def is_late(line: Line) -> None:
    pass_time(line.b, DEADLINE_US + 1)


def cancels_the_request(line: Line) -> None:
    assert line.b.executor.cancel_request(77) == len(line.theirs)


STOPS = [(cancels, StatusKind.CANCELLED), (is_late, StatusKind.DEADLINE_EXCEEDED),
         (cancels_the_request, StatusKind.CANCELLED)]  # fmt: skip


@pytest.mark.parametrize(("stop", "kind"), STOPS)
def test_f08_f11_what_is_stopped_before_the_device_and_what_is_not(
    library: Library, stop: Callable[[Line], None], kind: StatusKind
) -> None:
    with executing(library, **PATIENT, slots=SLOTS) as b:
        assert stopped(b, stop, kind) == []
    assert b.sim.violations() == ()


def test_f08_a_cancel_beside_a_running_job(library: Library) -> None:
    """Two in flight: the cancelled one runs to its end, and the other is right to the bit."""
    with executing(library, {"prefill_us": 20_000}, inflight=2, slots=SLOTS) as b:
        with standing(b):
            mine, theirs = b.enqueue(1, PROMPT), b.enqueue(2, OTHER)
            until(lambda: waiting(b) == 2)
            assert theirs.cancel()
            assert end(theirs).status.kind is StatusKind.CANCELLED
            assert b.sim.truth("jobs_running") == 2
        assert says(b, end(mine), PROMPT)
        until(lambda: not books(b)["work"])
        following = b.run(2, [7], past=len(OTHER))
        assert says(b, following, [*OTHER, 7])
    assert b.sim.violations() == ()


def request_of_three(b: Bench) -> None:
    """One of its jobs is on the device, one queued, one in the admission line; behind them another client's."""
    handles: list[JobHandle] = []
    with standing(b):
        for seq_id, request_id in ((1, 77), (2, 77), (3, 77), (4, 78)):
            request = evolve(b.request(seq_id, OTHER), request_id=request_id)
            threading.Thread(target=b.executor.enqueue, args=(request,), daemon=True).start()
            until(lambda: len(b.executor.records.jobs) == len(handles) + 1)
            handles.append(b.executor.records.contexts()[-1].handle)
            until(lambda: waiting(b))
        started = b.sim.truth("jobs_started")
        assert b.executor.cancel_request(77) == 3
        assert [end(handle).status.kind for handle in handles[:3]] == [StatusKind.CANCELLED] * 3
        assert not handles[3].done()
        assert b.executor.cancel_request(77) == 0, "all have their answer"
    assert says(b, end(handles[3]), OTHER)
    assert b.sim.truth("jobs_started") - started == 1, "of what was not on the device only the other client's ran"


def test_f12_a_cancelled_request_stops_with_all_its_jobs(library: Library) -> None:
    with executing(library, **PATIENT, slots=SLOTS) as b:
        request_of_three(b)
    assert b.sim.violations() == ()


# -- a client's thread that does not come back -------------------------------------------------------------------------
def interrupted(b: Bench, seq_id: int, moment: Callable[[], Any]) -> None:
    """enqueue() on the main thread, and Ctrl-C once that moment has come."""

    def press() -> None:
        until(moment)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    fingers = threading.Thread(target=press, daemon=True)
    fingers.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            b.enqueue(seq_id, OTHER).wait_until(now_us() + int(READY_S * 1e6))
    finally:
        fingers.join(READY_S)


def walks_away(b: Bench, where: str) -> None:
    """A client is interrupted while its job waits in the admission line, or for a slot: its job is cancelled, never
    runs, and is in nobody's way."""
    before, started = ledger(b), b.sim.truth("jobs_started")
    moment = {"line": "admission.reserve.refused.prefill", "slot": "admission.reserve.ok"}[where]
    with standing(b):
        mine = b.enqueue(1, PROMPT)
        until(lambda: waiting(b))
        for nth in range(1, 500 if where == "line" else 1):
            b.sim.fault("can_allocate", "refuse", nth=nth)
        seen = b.rules().count(moment)
        interrupted(b, 2, lambda: b.rules().count(moment) > seen)
        b.sim.faults_clear()
        until(lambda: len(b.executor.records.jobs) == 1)
    assert says(b, end(mine), PROMPT)
    assert b.sim.truth("jobs_started") - started == 1
    assert b.executor.ready()
    assert b.tokens(3, OTHER, 2) == b.oracle.tokens(OTHER, 2)
    assert all(b.executor.seq_rm(seq_id).ok for seq_id in (1, 2, 3))
    assert settled(b, before) == []


ONE_SLOT = PATIENT | {"kv_retry_ms": 20, "slots": 1}


@pytest.mark.parametrize("where", ["line", "slot"])
def test_f11_a_client_that_is_interrupted_in_enqueue(library: Library, where: str) -> None:
    with executing(library, **ONE_SLOT) as b:
        walks_away(b, where)
    assert b.sim.violations() == ()


def test_f11_admission_dies_inside_a_call(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """What became of the call is not known: everybody is answered, and nothing is served any more (F47)."""

    def bug(job: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("runtime.executor.LATEST_S", 0.2)
    with executing(library, close_ms=100) as b:
        with standing(b):
            mine = b.enqueue(1, PROMPT)
            b.executor._table["prepare"] = bug  # type: ignore[index]
            assert end(b.enqueue(2, OTHER)).status.kind is StatusKind.INTERNAL
            assert end(mine).status.kind is StatusKind.INTERNAL
        assert not b.executor.ready()
        with pytest.raises(Refused, match="submitter died"):
            b.enqueue(3, PROMPT)


# -- controls ----------------------------------------------------------------------------------------------------------
def cancels_everybody(b: Bench, patch: pytest.MonkeyPatch) -> None:
    one = b.executor._cancel
    patch.setattr(b.executor, "_cancel", lambda context: [one(c) for c in b.executor.records.contexts()] != [])


def resets_the_device(b: Bench, patch: pytest.MonkeyPatch) -> None:
    one, device = b.executor._cancel, b.executor.calls.device
    patch.setattr(b.executor, "_cancel", lambda context: (one(context), device.reset_ccu())[0])


def only_tells_the_client(b: Bench, patch: pytest.MonkeyPatch) -> None:
    def cancel(context: JobContext) -> bool:
        result = InferenceResult(Status(kind=StatusKind.CANCELLED), None, context.timings)
        first = context.handle.settle(result)
        context.handle.tell()
        return first

    patch.setattr(b.executor, "_cancel", cancel)


@pytest.mark.parametrize(
    ("mistake", "seen"),
    [
        (cancels_everybody, "A's job ended, too"),
        (resets_the_device, "the device was told"),
        (only_tells_the_client, "4 jobs ran"),
    ],
)
def test_control_f08_f11_a_mistake_is_seen(
    library: Library, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[Bench, pytest.MonkeyPatch], None], seen: str
) -> None:
    with executing(library, **PATIENT | {"close_ms": 100}, slots=SLOTS) as b:
        monkeypatch.setattr(moments, "READY_S", 0.5)
        mistake(b, monkeypatch)
        assert seen in "; ".join(stopped(b, cancels, StatusKind.CANCELLED))


def test_control_f11_nobody_takes_its_job_on(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.executor.LATEST_S", 0.2)
    with executing(library, **ONE_SLOT | {"close_ms": 100}) as b:
        monkeypatch.setattr(moments, "READY_S", 0.5)
        monkeypatch.setattr(DeviceExecutor, "_take_back", lambda self, job: None)
        with pytest.raises(AssertionError, match="the moment never came"):
            walks_away(b, "line")


def test_control_f12_only_one_stops(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def first(executor: DeviceExecutor, request_id: int) -> int:
        return next(c for c in executor.records.jobs.values() if c.request.request_id == request_id).handle.cancel()

    monkeypatch.setattr(DeviceExecutor, "cancel_request", first)
    with executing(library, **PATIENT | {"close_ms": 100}, slots=SLOTS) as b, pytest.raises(AssertionError):
        request_of_three(b)
