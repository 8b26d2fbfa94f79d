"""F48, F49: the ways to stop. However the graceful one is disturbed, everybody is answered and close() returns.

The calls that hang are held in a driver of our own (driver.py); everything else is the executor over the simulator.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from attrs import frozen
from driver import Driver, driving
from executing import READY_S, Bench, executing
from moments import books, end, says, standing, until, waiting

from runtime import executor as module
from runtime.calrt import Library
from runtime.executor import LATEST_S, DeviceExecutor, Refused
from runtime.job import JobHandle
from runtime.status import StatusKind, now_us

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
CLOSE_MS = 300
BRIEF = {
    "close_ms": CLOSE_MS, "grace_ms": 200, "stuck_ms": 200, "reset_ms": 300, "configure_ms": 5000, "golden_ms": 5000,
}  # fmt: skip
NOISE_S = 2.0  # of a busy machine
IN_ORDER_S = CLOSE_MS / 1000 + NOISE_S  # the protocol itself knows what to do
HARD_S = CLOSE_MS / 1000 + LATEST_S + NOISE_S  # it does not; the hard tier does


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


def check_stopped(b: Bench, handles: list[JobHandle], closed: Closed, within_s: float) -> None:
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


# -- F49: the graceful path itself hangs -----------------------------------------------------------------------------
def hung(b: Bench, d: Driver, call: str) -> list[JobHandle]:
    """Jobs of two clients, of which the first is where `call` never returns."""
    d.hold(call)
    if call == "device_reset_ccu":
        b.sim.fault("infer", "ccu_exception")
    handles = [b.enqueue(1, PROMPT)]
    until(lambda: call in d.held)
    with_other = b.executor.ready()
    return [*handles, b.enqueue(2, OTHER)] if with_other else handles


@pytest.mark.parametrize("call", ["output_wait", "infer", "device_reset_ccu", "input_undo_slice", "output_get_status"])
def test_f49_closing_while_a_call_never_returns(library: Library, call: str) -> None:
    with driving(library) as d, executing(library, **BRIEF) as b:
        handles = hung(b, d, call)
        if call == "input_undo_slice":  # the job was good, and is delivered, before its slot is given back
            handles = handles[1:]
        closed = closing(b)()
        assert call in d.held, "it has not returned yet"
        check_stopped(b, handles, closed, IN_ORDER_S)
        assert not b.executor.abandoned, "the rulebook has a way for it"
    assert b.sim.violations() == ()
