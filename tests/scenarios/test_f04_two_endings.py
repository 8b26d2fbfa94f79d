"""F04, F05: two endings for one job, and a completion for a job that nobody knows any more.

A job stands behind its `Wait()`, which has returned and is not reported yet. Then two things end it, in each order:
what the host does, what the clock sees, what happens to the device, and the report itself.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from executing import READY_S, Bench, executing
from moments import books, end, last, pool_of, says, since, standing, until, waiting
from places import DEADLINE_US, ENDS, PATIENT, Hold, Place, answers_again, held, keeps_the_slot, lived, pass_time

from machines.answer import ANSWER
from machines.job import JOB
from machines.protocol.effects import WAIT
from runtime.actors import Outcomes
from runtime.calls import DeviceCalls
from runtime.calrt import Library
from runtime.compiled import CompiledRule
from runtime.engine import Journal
from runtime.executor import Refused
from runtime.job import JobContext, JobHandle
from runtime.status import StatusKind, now_us

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
FAULTS = {"success": None, "exception": ("infer", "ccu_exception"), "invalid": ("infer", "nan"),
          "timeout": ("wait", "timeout"), "unavailable": ("wait", "return", 18, 0)}  # fmt: skip
STOPPED = ("cancel", "deadline", "execution", "reset", "close")
PAIRS = [
    *itertools.permutations(STOPPED, 2),
    *((stop, report) for stop in STOPPED for report in FAULTS),
    *((report, stop) for stop in STOPPED for report in FAULTS),
]
TOLD = {
    "success": StatusKind.OK, "cancel": StatusKind.CANCELLED, "deadline": StatusKind.DEADLINE_EXCEEDED,
    "execution": StatusKind.DEADLINE_EXCEEDED,
}  # fmt: skip


class Stand:
    """A job whose Wait() has returned, and is not reported while the hold stands."""

    def __init__(self, b: Bench, hold: Hold, fault: tuple[Any, ...] | None) -> None:
        self.b, self.hold = b, hold
        if fault:
            b.sim.fault(*fault)
        self.handle = b.enqueue(1, PROMPT, deadline_us=now_us() + DEADLINE_US)
        assert hold.there.wait(READY_S)
        (self.record,) = b.executor.records.jobs
        self.closing = False

    def happens(self, what: str) -> None:
        if what in FAULTS:
            self.hold.go()
            until(lambda: reports(self.b, self.handle.job_id))
        else:
            getattr(self, what)()

    def cancel(self) -> None:
        was_answered = self.was_answered()
        assert self.handle.cancel() != was_answered

    def was_answered(self) -> bool:
        return len(lived(self.b, self.handle.job_id, ANSWER, "answer")) > 1

    def deadline(self) -> None:
        pass_time(self.b, DEADLINE_US + 1)

    def execution(self) -> None:
        self.due("clock.execution", self.record)

    def reset(self) -> None:
        """Another job's fault makes the device drain, and the grace period passes."""
        self.b.executor.wait_ready(READY_S)
        self.b.sim.fault("bind_sequence", "return", 18, 0)
        with suppress(Refused):
            assert not self.b.run(2, OTHER).status.ok
        self.b.sim.faults_clear()
        self.due("clock.grace.recover")

    def close(self) -> None:
        """Closing begins, and its time passes."""
        self.closing = True
        fired = self.b.executor.engine.fire((self.b.executor.program.rules["client.close"],))
        assert fired is not None
        self.due("clock.grace.close")

    def due(self, clock: str, element: Any = None) -> None:
        """The clock's rule, if it is enabled still: what its timer does."""
        self.b.executor.engine.fire((self.b.executor.program.rules[clock],), element)


def reports(b: Bench, job_id: int) -> list[str]:
    """What took the return of the job's Wait()."""
    takers = {rule.id for observed in WAIT.classes for rule in Outcomes(b.executor.program).of(WAIT, observed)}
    return [e.rule for e in b.executor.engine.journal.entries()
            if e.rule in takers and e.element[0] == job_id]  # fmt: skip


def ended_twice(b: Bench, first: str, second: str) -> list[str]:
    """What was wrong when both of these ended one job."""
    b.executor.engine.journal = Journal(1024)  # of this pair alone
    fault = FAULTS.get(first) or FAULTS.get(second)
    with held(b, Place("after", "wait")) as hold:
        stand = Stand(b, hold, fault)
        stand.happens(first)
        until(lambda: stand.was_answered() or stand.handle.done())
        stand.happens(second)
    until(lambda: reports(b, stand.handle.job_id))
    wrong = [] if first_won(b, stand.handle, first, fault) else [f"{first} was first: {end(stand.handle).status}"]
    states, answers = (lived(b, stand.handle.job_id, *x) for x in ((JOB, "state"), (ANSWER, "answer")))
    if len(set(answers)) != 2 or sum(s in ENDS for s in states) > 1:
        wrong.append(f"it was {states} and {answers}")
    if len(took := reports(b, stand.handle.job_id)) != 1:
        wrong.append(f"the return of Wait() was counted as {took}")
    left = [] if died(b) else {True: at_the_end, False: goes_on}[stand.closing](b)
    return [*wrong, f"a thread has died: {b.executor._dead}"] if died(b) else [*wrong, *left]


def died(b: Bench) -> bool:
    """It is asked again when all else has been looked at: whoever dies may do that after its step was seen."""
    return bool(b.executor._dead) or not all(t.is_alive() for t in b.executor.crew.threads)


def first_won(b: Bench, handle: JobHandle, first: str, fault: tuple[Any, ...] | None) -> bool:
    """A success is right to the bit; another ending gives nothing, and says what it was. What is an error says what had
    failed, and a Timeout of Wait() is told as a deadline (§8)."""
    result = end(handle)
    if first == "success":
        return result.status.ok and says(b, result, PROMPT)
    errors = [StatusKind.UNAVAILABLE, StatusKind.INTERNAL]
    if fault == FAULTS["timeout"]:
        errors.append(StatusKind.DEADLINE_EXCEEDED)
    return result.status.kind in ([TOLD[first]] if first in TOLD else errors) and result.logits is None


def at_the_end(b: Bench) -> list[str]:
    """It is Failed or Closed: nobody is served, nobody waits."""
    until(lambda: books(b)["waits"] == 0)
    with suppress(Refused):
        b.enqueue(3, OTHER)
        return ["a job was accepted after closing"]
    return []


def goes_on(b: Bench) -> list[str]:
    """Jobs are served and right, and nothing is held any more."""
    if not b.executor.wait_ready(READY_S):
        return ["it is not Ready again"]
    wrong = [] if b.tokens(3, OTHER, 2) == b.oracle.tokens(OTHER, 2) else ["wrong tokens afterwards"]
    until(lambda: not b.executor.records.jobs)
    left = {name: books(b)[name] for name in ("calls", "work", "leftovers", "waits", "line", "permits", "lost_slots")}
    counts = pool_of(b).counts()
    if not all(b.executor.seq_rm(seq_id).ok for seq_id in (1, 2, 3)):
        wrong.append("a sequence cannot be removed")
    if any(left.values()) or counts.leased or counts.free != b.executor.config.slots + 1:
        wrong.append(f"left: {left}, {counts}")
    return wrong


SETTINGS = PATIENT | {"recoveries_max": 50}


@pytest.mark.parametrize("first", [*STOPPED, *FAULTS])
def test_f04_the_first_of_two_endings_wins(library: Library, first: str) -> None:
    """Where nothing is closed the executor goes on from one pair to the next."""
    seconds = [second for a, second in PAIRS if a == first]
    lasting = [second for second in seconds if "close" not in (first, second)]
    wrong = {}
    for group in ([lasting] if lasting else []) + [[second] for second in seconds if second not in lasting]:
        with executing(library, **SETTINGS) as b:
            wrong |= {f"{first}, {second}": found for second in group if (found := ended_twice(b, first, second))}
        assert b.sim.violations() == ()
    assert wrong == {}


# -- a completion that belongs to nobody -------------------------------------------------------------------------------
def test_f05_a_completion_after_its_generation_and_its_client_have_gone(library: Library) -> None:
    """It is counted once as stale; of all that the rulebook declares only the Wait() under way and its record go."""
    with executing(library, **SETTINGS) as b:
        with held(b, Place("after", "wait")) as hold:
            stand = Stand(b, hold, None)
            stand.reset()
            assert not end(stand.handle).status.ok
            assert b.executor.wait_ready(READY_S)
            assert b.executor.seq_rm(2).ok
            until(lambda: len(b.executor.records.jobs) == 1)
            job_id, counts, before = stand.handle.job_id, pool_of(b).counts(), books(b)
            logits, values = weakref.ref(stand.record.tag.logits), weakref.ref(stand.record.tag.request.values)
            hold.go()
            until(lambda: not b.executor.records.jobs)
            assert reports(b, job_id) == ["completion.wait.stale"]
            after = books(b)
            gone = {key for key in before if key not in after}
            assert gone == {key for key in before if key[:2] == ("job", job_id)}
            assert {key: after[key] for key in after if after[key] != before[key]} == {"waits": 0}
            assert pool_of(b).counts() == counts
            del stand
            until(lambda: gc.collect() < 0 or logits() is values() is None)
        assert b.tokens(2, OTHER, 2) == b.oracle.tokens(OTHER, 2)
    assert b.sim.violations() == ()


def test_f05_a_completion_that_comes_twice(library: Library) -> None:
    """The second one meets the next job in the same slot, which is running: that one is not done, and not delivered."""
    with executing(library, **SETTINGS) as b:
        b.sim.fault("infer", "double")
        assert says(b, b.run(1, PROMPT), PROMPT)
        first = last(b, "infer")
        with standing(b):
            handle = b.enqueue(2, OTHER)
            until(lambda: last(b, "infer") != first and (handle.done() or waiting(b)))
            second = next(c for c in since(b, first.number + 1) if c.call == "infer")  # golden runs may follow already
            assert second.handle == first.handle, "the slot that was given back last"
            until(handle.done, move=b.sim.step)
        result = end(handle)
        assert not result.status.ok or says(b, result, OTHER)
        until(lambda: b.executor.seq_rm(2).ok)  # the drain that a failed one leads to may begin later than its answer
        assert b.tokens(2, OTHER, 2) == b.oracle.tokens(OTHER, 2)


# -- controls ----------------------------------------------------------------------------------------------------------
def a_late_success_is_delivered(b: Bench, patch: pytest.MonkeyPatch) -> None:
    answers_again(b, patch, "completion.wait.stale")


def an_assertion_ends_a_thread(b: Bench, patch: pytest.MonkeyPatch) -> None:
    def quarantine(calls: DeviceCalls, context: JobContext) -> None:
        raise AssertionError("a mistake")

    patch.setattr(DeviceCalls, "quarantine", quarantine)


@pytest.mark.parametrize(
    ("mistake", "first", "second", "seen"),
    [
        (a_late_success_is_delivered, "execution", "success", "execution was first: OK"),
        (an_assertion_ends_a_thread, "exception", "cancel", "a thread has died: completion"),
        (keeps_the_slot, "cancel", "success", "left: "),
    ],
)
def test_control_f04_a_mistake_is_seen(
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    mistake: Callable[[Bench, pytest.MonkeyPatch], None],
    first: str,
    second: str,
    seen: str,
) -> None:
    monkeypatch.setattr("runtime.executor.LATEST_S", 0.2)
    with executing(library, **SETTINGS | {"close_ms": 100}) as b:
        mistake(b, monkeypatch)
        assert seen in "; ".join(ended_twice(b, first, second))


def test_control_f05_a_stale_completion_that_counts(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that took a slot of the new generation would be seen in its pool."""
    with executing(library, **SETTINGS) as b, held(b, Place("after", "wait")) as hold:
        stand = Stand(b, hold, None)
        stand.reset()
        assert b.executor.wait_ready(READY_S)
        counts, after = pool_of(b).counts(), b.executor._after

        def step(rule: CompiledRule, element: Any) -> None:
            after(rule, element)
            if rule.id == "completion.wait.stale":
                pool_of(b).quarantine(pool_of(b).lease())

        monkeypatch.setattr(b.executor.engine, "on_step", step)
        hold.go()
        until(lambda: reports(b, stand.handle.job_id))
        until(lambda: pool_of(b).counts() != counts)
