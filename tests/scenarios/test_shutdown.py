"""F48, F49: the ways to stop. However the graceful one is disturbed, everybody is answered and close() returns.

The calls that hang are held in a driver of our own (driver.py); everything else is the executor over the simulator.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import pytest
from attrs import frozen
from driver import Driver, driving
from executing import READY_S, Bench, executing
from moments import books, end, says, standing, until, waiting

from runtime.calrt import Library
from runtime.crew import Crew
from runtime.executor import DeviceExecutor, Refused
from runtime.job import JobContext, JobHandle
from runtime.status import StatusKind, now_us

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
CLOSE_MS = 300
BRIEF = {"close_ms": CLOSE_MS, "grace_ms": 200, "stuck_ms": 200, "reset_ms": 300}
SLOW = {**BRIEF, "grace_ms": 60_000, "stuck_ms": 60_000, "reset_ms": 60_000, "golden_ms": 60_000}
LATEST_S = 0.5  # in place of the executor's own, so that the hard tier comes sooner
NOISE_S = 1.5  # of a busy machine
IN_ORDER_S = CLOSE_MS / 1000 + NOISE_S  # the protocol itself knows what to do
HARD_S = CLOSE_MS / 1000 + LATEST_S + NOISE_S  # it does not, or not yet; then there is the hard tier


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.executor.LATEST_S", LATEST_S)


@frozen
class Closed:
    """What close() said, and how long it took."""

    said: bool
    seconds: float


def closing(b: Bench) -> Callable[[], Closed]:
    """Begins to close in a thread of its own; called, it waits for the end. One that never comes fails the test."""
    done: list[Closed] = []
    began_s = time.monotonic()
    thread = threading.Thread(
        target=lambda: done.append(Closed(b.executor.close(), time.monotonic() - began_s)), daemon=True
    )
    thread.start()

    def ended() -> Closed:
        thread.join(READY_S)
        assert done, "close() never returned"
        return done[0]

    return ended


def check_stopped(b: Bench, handles: Iterable[JobHandle], closed: Closed, within_s: float) -> None:
    """What must hold after the graceful path hung."""
    assert closed.seconds < within_s, "close() has a budget"
    assert not closed.said, "it was not closed in order"
    answers = [h.wait_until(0) for h in handles]
    assert all(answers), "every handle is resolved"
    assert not any(a.status.ok for a in answers if a), "what is not known to be good is not delivered"
    assert not b.executor.ready()
    with pytest.raises(Refused) as refused:
        b.enqueue(9, PROMPT)
    assert refused.value.status.kind is StatusKind.UNAVAILABLE


def hung(b: Bench, d: Driver, call: str) -> list[JobHandle]:
    """Two clients' jobs, the first of which has come to where `call` never returns. Those that are not answered yet."""
    d.hold(call)
    if call == "device_reset_ccu":
        b.sim.fault("infer", "ccu_exception")
    handles = [b.enqueue(1, PROMPT)]
    until(lambda: call in d.held)
    if b.executor.ready():
        handles.append(b.enqueue(2, OTHER))
    return handles


# -- F49: the graceful path itself hangs -----------------------------------------------------------------------------
@pytest.mark.parametrize("call", ["output_wait", "infer", "device_reset_ccu", "input_undo_slice", "output_get_status"])
def test_f49_closing_while_a_call_never_returns(library: Library, call: str) -> None:
    with driving(library) as d, executing(library, **BRIEF) as b:
        handles = hung(b, d, call)
        closed = closing(b)()
        assert call in d.held, "it has not returned yet"
        check_stopped(b, handles, closed, IN_ORDER_S)
        assert not b.executor.abandoned, "the rulebook has a way for it"
    assert b.sim.violations() == ()


@pytest.mark.parametrize("call", ["device_reset_ccu", "device_configure"])
def test_f49_the_hard_tier_where_the_protocol_still_waits(library: Library, call: str) -> None:
    """The watchdogs are a minute away; close() does not wait for them."""
    with driving(library) as d, executing(library, **SLOW) as b:
        d.hold(call)
        b.sim.fault("infer", "ccu_exception")
        handles = [b.enqueue(1, PROMPT)]
        until(lambda: call in d.held)
        check_stopped(b, handles, closing(b)(), HARD_S)
        assert b.executor.abandoned


def test_f49_control_without_the_hard_tier(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """A close() that trusts the protocol to end is seen."""
    with driving(library) as d, executing(library, **{**SLOW, "reset_ms": 3500}) as b:
        with monkeypatch.context() as patch:
            patch.setattr(DeviceExecutor, "abandon", lambda executor: None)
            patch.setattr("runtime.executor.LATEST_S", READY_S)
            handles = hung(b, d, "device_reset_ccu")
            closed = closing(b)()
        with pytest.raises(AssertionError, match="budget"):
            check_stopped(b, handles, closed, HARD_S)


@pytest.mark.nightly
def test_f49_control_threads_that_are_known_to_be_stuck_are_not_joined(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def joined(crew: Crew, within_s: float) -> None:
        crew._engine.stop()
        crew.clock.stop()
        for thread in crew.threads:
            thread.join(IN_ORDER_S)

    with driving(library) as d, executing(library, **BRIEF) as b:
        handles = hung(b, d, "output_wait")
        monkeypatch.setattr(Crew, "stop", joined)
        with pytest.raises(AssertionError, match="budget"):
            check_stopped(b, handles, closing(b)(), IN_ORDER_S)


@pytest.mark.parametrize("call", ["output_release", "device_close"])
def test_f49_giving_back_never_returns(library: Library, call: str) -> None:
    """Everything was closed in order, and then CalRT does not let go."""
    with driving(library) as d, executing(library, **BRIEF) as b:
        assert says(b, b.run(1, PROMPT), PROMPT)
        d.hold(call)
        check_stopped(b, [], closing(b)(), HARD_S)
        assert call in d.held
        assert b.executor.abandoned


def check_abandoned(b: Bench, handles: Iterable[JobHandle]) -> None:
    """At once, whoever is stuck where."""
    answers = [h.wait_until(0) for h in handles]
    assert [a and a.status.kind for a in answers] == [StatusKind.UNAVAILABLE for _ in answers], "answered at once"
    assert not b.executor.ready()
    assert b.executor.seq_rm(1).kind is StatusKind.UNAVAILABLE
    with pytest.raises(Refused, match="abandoned"):
        b.enqueue(9, PROMPT)


def one_of_each(b: Bench, d: Driver) -> tuple[list[JobHandle], list[JobHandle]]:
    """A job on the device, one in the queue, and one whose client is parked inside enqueue(); those that come out."""
    d.hold("output_wait")
    handles = [b.enqueue(1, PROMPT), b.enqueue(2, OTHER)]
    late: list[JobHandle] = []
    threading.Thread(target=lambda: late.append(b.enqueue(3, OTHER)), daemon=True).start()
    until(lambda: books(b)["work"] == 3 and not books(b)["calls"] and "output_wait" in d.held)
    return handles, late


def test_f49_abandon_answers_everybody_at_once(library: Library) -> None:
    with driving(library) as d, executing(library, **SLOW) as b:
        handles, late = one_of_each(b, d)
        calls = b.calls()
        with b.executor.calls._kv()._calls:  # the one lock that is held over calls
            b.executor.abandon()
            check_abandoned(b, handles)
            until(lambda: late)
            check_abandoned(b, late)
        b.executor.abandon()
        assert not b.executor.close(), "nothing is given back"
        assert b.calls() == calls, "and no call was made for it"
        d.let_go.set()
        until(lambda: not books(b)["waits"])
        assert set(b.calls()[len(calls) :]) <= {"wait", "get_status", "tensor_size"}, "what comes back begins nothing"


def test_f49_a_job_that_arrives_while_all_are_answered(library: Library) -> None:
    """Between the look whether anybody serves and the list of jobs."""
    with executing(library) as b:
        add = b.executor.records.add

        def just_then(context: JobContext) -> object:
            b.executor.abandon()
            return add(context)

        b.executor.records.add = just_then  # type: ignore[method-assign]
        with pytest.raises(Refused, match="abandoned"):
            b.enqueue(1, PROMPT)
        assert not b.executor.records.jobs


def test_f49_control_an_abandon_that_forgets_the_parked(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with driving(library) as d, executing(library, **SLOW) as b:
        handles, _ = one_of_each(b, d)
        with monkeypatch.context() as patch:
            patch.setattr(DeviceExecutor, "_answer_all", lambda *_: None)
            b.executor.abandon()
        with pytest.raises(AssertionError, match="answered at once"):
            check_abandoned(b, handles)
        b.executor.abandon()
        check_abandoned(b, handles)


# -- F48: a second stop while the first is on its way ----------------------------------------------------------------
def check_closed_twice(b: Bench) -> None:
    """One job on the device and one in the queue; two threads close, then a third."""
    with standing(b):
        submitted = b.enqueue(1, PROMPT)
        until(lambda: waiting(b))
        queued = b.enqueue(2, OTHER)
        first = closing(b)
        until(b.executor._closer.locked)
        assert end(queued).status.kind is StatusKind.UNAVAILABLE
        second = closing(b)
        assert submitted.wait_until(now_us() + 50_000) is None, "it is waited for, also by the second"
    closed = (first(), second(), closing(b)())
    assert submitted.done()
    assert [c.said for c in closed] == [True] * 3, "they all say the same"
    assert says(b, end(submitted), PROMPT)


def test_f48_closing_twice_at_once(library: Library) -> None:
    with executing(library, close_ms=20_000) as b:
        check_closed_twice(b)
    assert b.sim.violations() == ()
    assert b.sim.truth("buffers_alive") == 0


def test_f48_control_a_second_close_that_does_not_wait(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    close = DeviceExecutor.close

    def hasty(executor: DeviceExecutor) -> bool:
        return bool(executor._given_back) if executor._closer.locked() else close(executor)

    with executing(library, close_ms=20_000) as b:
        monkeypatch.setattr(DeviceExecutor, "close", hasty)
        with pytest.raises(AssertionError, match="the same"):
            check_closed_twice(b)


def test_f48_the_first_close_is_interrupted(library: Library) -> None:
    """Ctrl-C in the thread that closes; whoever closes again goes on where it was."""
    with executing(library, close_ms=20_000) as b:
        with standing(b):
            handle = b.enqueue(1, PROMPT)
            until(lambda: waiting(b))
            wait_for = b.executor.engine.wait_for

            def interrupted(*_: object) -> bool:
                b.executor.engine.wait_for = wait_for  # type: ignore[method-assign]
                raise KeyboardInterrupt

            b.executor.engine.wait_for = interrupted  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                b.executor.close()
            assert not handle.done()
        assert b.executor.close()
        assert says(b, end(handle), PROMPT)
    assert b.sim.truth("buffers_alive") == 0
