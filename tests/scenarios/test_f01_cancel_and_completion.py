"""F01, F02, F03, F19: a client that stops, a deadline that passes and a job that ends, at the same moment.

The job is stopped at each place of its way in turn; there everything else that can end it happens, in every order. Of
each job it is asked the same: one end, one answer, which is that of whoever came first, and the ledger as before.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import moments
import pytest
from executing import READY_S, Bench, executing
from moments import end, says, standing, until, waiting
from places import (
    DEADLINE_US,
    PATIENT,
    PLACES,
    Place,
    answers_again,
    held,
    keeps_the_slot,
    ledger,
    lived,
    pass_time,
    settled,
    wrong_ends,
)

from machines.answer import ANSWER, AnswerState
from runtime.answers import ANSWERS
from runtime.calrt import Library
from runtime.engine import Journal
from runtime.job import JobHandle
from runtime.status import StatusKind, now_us

PROMPT = list("Grüße".encode())
SEQ = 1
KINDS = {
    "cancel": StatusKind.CANCELLED,
    "deadline": StatusKind.DEADLINE_EXCEEDED,
    "completion": StatusKind.OK,
}
Orders = tuple[tuple[str, ...], ...]


def orders(*events: str) -> Orders:
    return tuple(itertools.permutations(events))


class Meeting:
    """One job of sequence 1 with a deadline, enqueued by a client's own thread; `problems`: what was not right."""

    def __init__(self, b: Bench) -> None:
        self.b, self.before, self.started = b, ledger(b), b.sim.truth("jobs_started")
        self.problems: list[str] = []
        b.executor.engine.journal = Journal(1024)  # of this meeting alone
        request = b.request(SEQ, PROMPT, deadline_us=now_us() + DEADLINE_US)
        self.handles: list[JobHandle] = []
        self.client = threading.Thread(target=lambda: self.handles.append(b.executor.enqueue(request)), daemon=True)

    def begin(self) -> None:
        self.client.start()
        until(self.known)

    def known(self) -> bool:
        """Its handle: of the executor's own books while enqueue() has not returned."""
        self.handles += [context.handle for context in self.b.executor.records.contexts()]
        return bool(self.handles)

    @property
    def handle(self) -> JobHandle:
        return self.handles[0]

    def happens(self, order: tuple[str, ...], complete: Callable[[], None]) -> str:
        """The events, in their order. Who is to have won: the first, but for an answer that was given before."""
        answered = len(lived(self.b, self.handle.job_id, ANSWER, "answer")) > 1
        won = "completion" if answered else order[0]
        for event in order:
            match event:
                case "cancel":
                    self.expect(self.handle.cancel() == (won == "cancel"), "cancel() said something else")
                case "deadline":
                    pass_time(self.b, DEADLINE_US + 1)
                case "completion":
                    complete()
        return won

    def ends(self, won: str) -> None:
        self.client.join(READY_S)
        result = end(self.handle)
        self.expect(result.status.kind is KINDS[won], f"{won} was first, and the answer is {result.status}")
        self.expect((result.logits is not None) == (won == "completion"), "logits without OK, or OK without logits")
        if won == "completion" and result.logits is not None:
            self.expect(says(self.b, result, PROMPT), "the logits are not the oracle's")
        until(lambda: not self.b.executor.records.jobs)
        self.problems += wrong_ends(self.b, self.handle.job_id)
        self.expect(end(self.handle) is result, "the answer changed afterwards")
        self.goes_on()
        self.problems += settled(self.b, self.before)

    def goes_on(self) -> None:
        """The sequence is as long as what the device did: the next job on it is right."""
        ran = self.b.sim.truth("jobs_started") > self.started
        following, past = ([7], len(PROMPT)) if ran else (PROMPT, 0)
        result = self.b.run(SEQ, following, past)
        self.expect(result.status.ok, f"the next job of the sequence: {result.status}")
        if result.logits is not None:
            self.expect(says(self.b, result, [*PROMPT, 7] if ran else PROMPT), "the next job's logits are wrong")
        self.expect(self.b.executor.seq_rm(SEQ).ok, "the sequence is not free again")

    def expect(self, right: bool, text: str) -> None:
        if not right:
            self.problems.append(text)


def meet(b: Bench, place: Place, order: tuple[str, ...]) -> list[str]:
    """What was wrong with a job that met these events at this place."""
    meeting = Meeting(b)
    with held(b, place) as hold:
        meeting.begin()
        assert hold.there.wait(READY_S), f"the job never came to {place}"

        def complete() -> None:
            hold.go()
            until(lambda: not b.executor.records.jobs)

        won = meeting.happens(order, complete)
    meeting.ends(won)
    return [f"{place}, {', '.join(order)}: {problem}" for problem in meeting.problems]


def meet_everywhere(library: Library, places: tuple[Place, ...], which: Orders) -> list[str]:
    with executing(library, **PATIENT) as b:
        wrong = [problem for place in places for order in which for problem in meet(b, place, order)]
    assert b.sim.violations() == ()
    return wrong


def test_f01_a_cancel_and_the_end_of_the_job(library: Library) -> None:
    assert meet_everywhere(library, PLACES, orders("cancel", "completion")) == []


def test_f02_cancel_deadline_and_end_in_every_order(library: Library) -> None:
    assert meet_everywhere(library, PLACES, orders("cancel", "deadline", "completion")) == []


def test_f19_a_deadline_and_the_end_of_the_job(library: Library) -> None:
    assert meet_everywhere(library, PLACES, orders("deadline", "completion")) == []


@pytest.mark.shows("I7")
@pytest.mark.parametrize("order", orders("cancel", "deadline", "completion"), ids="-".join)
def test_f03_while_wait_blocks(library: Library, order: tuple[str, ...]) -> None:
    """Wait() succeeds after the answer was given: the KV's length is committed, and the lease comes back."""
    with executing(library, **PATIENT) as b:
        meeting = Meeting(b)
        with standing(b):
            meeting.begin()
            until(lambda: waiting(b))
            won = meeting.happens(order, lambda: until(lambda: not b.executor.records.jobs, move=b.sim.step))
        meeting.ends(won)
        assert meeting.problems == []
    assert b.sim.violations() == ()


# -- controls: a mistake, and where it must be seen --------------------------------------------------------------------
def answers_after_the_cancel(b: Bench, patch: pytest.MonkeyPatch) -> None:
    answers_again(b, patch, "completion.discard")


def says_cancelled_to_everybody(b: Bench, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JobHandle, "cancel", lambda handle: handle._cancel() or True)


def keeps_the_reservation(b: Bench, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(b.executor._table, "unreserve", lambda job: "ok")


def commits_nothing(b: Bench, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(b.executor._table, "commit", lambda job: "ok")


def delivers_to_the_cancelled(b: Bench, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(ANSWERS, AnswerState.Cancelled, StatusKind.OK)


def sees_no_deadline(b: Bench, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(b.executor.engine, "expire", lambda: None)
    patch.setattr(b.executor.engine, "next_due_us", lambda: None)


SUBMITTED, QUEUED, DELIVERED = Place("before", "wait"), Place("before", "infer"), Place("after", "completion.deliver")


@pytest.mark.parametrize(
    ("mistake", "place", "order", "seen"),
    [
        (answers_after_the_cancel, SUBMITTED, ("cancel", "deadline", "completion"), "and the answer is OK"),
        (says_cancelled_to_everybody, DELIVERED, ("completion", "cancel"), "cancel() said something else"),
        (keeps_the_slot, SUBMITTED, ("cancel", "completion"), "pool was"),
        (keeps_the_reservation, Place("after", "prepare"), ("cancel", "completion"), "kv was"),
        (commits_nothing, SUBMITTED, ("cancel", "completion"), "the next job of the sequence"),
        (delivers_to_the_cancelled, QUEUED, ("cancel", "completion"), "cancel was first, and the answer is OK"),
        (sees_no_deadline, SUBMITTED, ("deadline", "completion"), "deadline was first, and the answer is OK"),
    ],
)
def test_control_a_mistake_is_seen(
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    mistake: Callable[[Bench, pytest.MonkeyPatch], None],
    place: Place,
    order: tuple[str, ...],
    seen: str,
) -> None:
    with executing(library, **PATIENT | {"close_ms": 100}) as b:
        assert meet(b, place, order) == []
        with monkeypatch.context() as patch:
            patch.setattr(moments, "READY_S", 0.3)
            mistake(b, patch)
            assert seen in "; ".join(meet(b, place, order))
