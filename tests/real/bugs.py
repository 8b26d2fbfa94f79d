"""Executors with one bug each, for the scheduler to find: the list of what such systems got wrong.

A bug changes the shipped classes, or the rulebook that the executor compiles (the oracle's own is not changed). It
comes with the scenario in which it is looked for: which faults and moves there are; when they happen is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from attrs import evolve, frozen
from seeded_bugs import instead, with_rule

from checker.real import Plan, Scenario
from checker.real.stage import Stage
from machines.protocol import RULEBOOK
from machines.protocol import variables as v
from runtime.buffers import BufferPool, BufferSlot
from runtime.calls import DeviceCalls
from runtime.calrt import BufStatus, Library, Output
from runtime.cast import timers
from runtime.engine import Engine
from runtime.executor import DeviceExecutor
from runtime.generations import Generations
from runtime.golden import digest
from runtime.job import InferenceResult
from runtime.kv import KvCoordinator
from runtime.lane import Lane
from runtime.status import Status, StatusKind

__all__ = ["BUGS", "Bug"]

Installed = Callable[[], AbstractContextManager[Any]]


@frozen
class Bug:
    """One line of the list. installed: inside of it the executor has the bug."""

    name: str
    about: str
    installed: Installed
    scenario: Scenario


def with_update(rule_id: str, target: Any, value: Any) -> Installed:
    """The executor's rulebook has this rule with another update of one variable (None: without it)."""
    rule = RULEBOOK.rule(rule_id)
    then = {t: x for t, x in rule.then if str(t) != str(target)}
    assert len(then) < len(rule.then) or value is not None
    changed = then if value is None else {**then, target: value}
    book = RULEBOOK.replace(evolve(rule, then=tuple(changed.items())))
    return lambda: patch("runtime.executor.RULEBOOK", book)


# -- slots and KV ------------------------------------------------------------------------------------------------------
def freed(self: DeviceCalls, context: Any) -> None:
    """The slot of a job in doubt goes back into the pool."""
    if context.lease is not None and context.lease.live:
        pool, slot = context.lease._pool, context.lease.slot
        pool._leased.discard(slot)
        pool._free.append(slot)
        context.lease._end()


def freed_before_undo(give_back: Any) -> Any:
    def wrong(self: BufferPool, lease: Any) -> Any:
        slot = lease.slot
        self._leased.remove(slot)
        self._free.append(slot)
        lease._end()
        return slot.undo()

    return wrong


def reused(begin: Any) -> Any:
    """What is in quarantine is in the new generation's pool."""

    def wrong(self: Generations) -> Any:
        failure = begin(self)
        if failure is None and self.pool is not None:
            self.pool._free += [slot for pool in self.pools[:-1] for slot in pool.quarantined()]
        return failure

    return wrong


def rolled_back(self: DeviceCalls, context: Any) -> None:
    """The KV of a job that may have been started goes back to the old length."""
    if self.kv is not None:
        self.kv.unreserve(context.kv_id, context.request.past_len)


def committed_first(convert: Any) -> Any:
    def wrong(self: DeviceCalls, job: Any) -> str:
        self.commit(job)
        return str(convert(self, job))

    return wrong


# -- results -----------------------------------------------------------------------------------------------------------
def first_element_only(read: Any) -> Any:
    """A row with a NaN behind its first element is taken for good."""

    def wrong(self: Lane, count: int, target: Any) -> Any:
        failure = read(self, count, target)
        finite = failure is None or "not finite" not in failure.text or "element 0 " in failure.text
        return failure if finite else None

    return wrong


def without_a_claim(cancel: Any) -> Any:
    def wrong(self: DeviceExecutor, context: Any) -> bool:
        status = Status(kind=StatusKind.CANCELLED, job_id=context.job_id, stage="cancel")
        context.handle.settle(InferenceResult(status, None, context.timings))
        context.handle.tell()
        return True

    return wrong


def dropped_while_closing(answer: Any) -> Any:
    def wrong(self: DeviceExecutor, rule: Any, job: Any) -> None:
        if not self.engine.read(lambda s: s.shutdown):
            answer(self, rule, job)

    return wrong


# -- waking ------------------------------------------------------------------------------------------------------------
def one_less(finish: Any) -> Any:
    return lambda self, steps, granted: finish(self, steps, granted[:-1])


def before_written(in_halves: Any) -> Any:
    """Who was granted something is let go before what follows the steps has been done."""

    def wrong(self: Stage, do: Any, half: Any = None) -> Any:
        answer = in_halves(self, do, half)
        for later in self.halves:
            for waiter in later.granted:
                waiter.token.release()
            later.granted = []
        return answer

    return wrong


def by_the_wall() -> AbstractContextManager[Any]:
    return patch("runtime.executor.timers", lambda config, now_us: timers(config, lambda: int(time.time() * 1e6)))


def expires_once() -> AbstractContextManager[Any]:
    """An exception ended the clock's thread in its first step: nobody looks at the timers again."""
    done: set[Any] = set()
    expire, due = Engine.expire, Engine.next_due_us

    def once(self: Engine) -> Any:
        done.add(self)
        return expire(self)

    return patch.multiple(Engine, expire=once, next_due_us=lambda self: None if self in done else due(self))


def calling_inside(noted: Any) -> Any:
    """What a step wants of the device is asked inside the monitor."""

    def wrong(self: Engine, *of: Any) -> Any:
        Library.load().version()
        return noted(self, *of)

    return wrong


class Length(str):
    """A digest that is as good as any other of its length."""

    def __ne__(self, other: object) -> bool:
        return len(self) != len(str(other))

    __hash__ = str.__hash__


def by_length() -> AbstractContextManager[Any]:
    return patch("runtime.calls.digest", lambda rows: Length(digest(rows)))


CALM = Scenario(moves=(), faults=0)


def faulty(*kinds: str, **more: Any) -> Scenario:
    return Scenario(**{"moves": (), "kinds": kinds, "faults": 2, **more})


LEFT_BEHIND = faulty(
    "wait.device", "infer.hang", "infer.device", slots=2, inflight=2, moves=("time",), clients=(Plan(),) * 3,
    unlike_ms=(("grace_ms", 10), ("execution_ms", 1000), ("stuck_ms", 1000)),
)  # fmt: skip
"""A generation ends while another job is on the device."""

BUGS = (
    Bug(
        "lease released at the timeout", "the slot of a job that may still be on the device is free",
        lambda: patch.object(DeviceCalls, "quarantine", freed), faulty("infer.hang", "wait.timeout"),
    ),
    Bug(
        "released before UndoSlice", "a slot is free before its slices are undone, and whatever that says",
        instead(BufferPool, "give_back", freed_before_undo), faulty("undo.device"),
    ),
    Bug(
        "slices are not undone", "UndoSlice is never called",
        lambda: patch.object(BufferSlot, "undo", lambda self: None), CALM,
    ),
    Bug(
        "status not read", "GetStatus is not looked at",
        instead(Output, "get_status", lambda ask: lambda self: (ask(self)[0], BufStatus.DONE)),
        faulty("infer.ccu_exception"),
    ),
    Bug(
        "return code not read", "what infer() returned is not looked at",
        instead(Lane, "infer", lambda infer: lambda self: infer(self) * 0), faulty("infer.device", "infer.throw"),
    ),
    Bug(
        "commit before the finite check", "KV is committed, and then the output is looked at",
        instead(DeviceCalls, "convert", committed_first), faulty("infer.nan"),
    ),
    Bug(
        "finite check on the first element", "the others are not looked at",
        instead(Lane, "read", first_element_only), faulty("infer.nan_last"),
    ),
    Bug(
        "no generation compare", "a Wait that returns late is taken for one of the present generation",
        with_rule("completion.wait.timeout", "~job.old", "job.state in {Submitted, CancelRequested}"),
        LEFT_BEHIND,
    ),
    Bug(
        "slot number compared alone", "the slot of an abandoned job is taken for one of the present generation",
        with_update("completion.abandon", v.lost_slots, v.lost_slots + 1),
        LEFT_BEHIND,
    ),
    Bug(
        "past_len taken from the request", "it is not compared with what was committed",
        lambda: patch.object(KvCoordinator, "mismatch", lambda self, *of: None),
        Scenario(faults=0, moves=("cancel",), cancels=3, clients=(Plan((3, 1, 1, 1, 1), 0, True),) * 2),
    ),
    Bug(
        "one wake-up too few", "the last of those who were granted something is not woken",
        instead(Engine, "_finish", one_less), CALM,
    ),
    Bug(
        "notify before write", "who was granted something goes on before what follows the step was done",
        instead(Stage, "in_halves", before_written), faulty("infer.hang", "infer.device", fine=True),
    ),
    Bug(
        "deadline from the wall clock", "what is left of a request's deadline is counted by another clock",
        by_the_wall,
        Scenario(faults=0, moves=("time",), clients=(Plan((3, 1, 1), 40), Plan())),
    ),
    Bug(
        "submit after a drain was seen", "infer() is called though the device drains",
        with_rule("submitter.infer", "device == Ready"), faulty("wait.device", "infer.nan", slots=2),
    ),
    Bug(
        "cancel flag read once", "infer() is called for a job that was cancelled meanwhile",
        with_rule("submitter.infer", "job.answer == Pending"), Scenario(faults=0, moves=("cancel",), cancels=4),
    ),
    Bug(
        "answer set outside the claim", "cancel() resolves the handle and claims nothing",
        instead(DeviceExecutor, "_cancel", without_a_claim), Scenario(faults=0, moves=("cancel",)),
    ),
    Bug(
        "permit returned twice", "one too many after a Busy submit",
        with_update("submitter.infer.busy", v.permits, v.permits - 2), faulty("infer.busy", slots=2, inflight=2),
    ),
    Bug(
        "permit never returned", "the permit of a job that is done stays taken",
        with_update("completion.wait.ok", v.permits, None), CALM,
    ),
    Bug(
        "Apply retried without a wake", "a refused reservation is tried again though nothing was freed",
        with_rule("admission.reserve.prefill", "~kv_short"), faulty("reserve.refused"),
    ),
    Bug(
        "KV rolled back after maybe started", "the KV of a job that a failed infer() may have started is given back",
        lambda: patch.object(DeviceCalls, "doubt", rolled_back), faulty("infer.device", "infer.request"),
    ),
    Bug(
        "quarantined slot re-added on rebuild", "the pool of a new generation has it",
        instead(Generations, "begin_generation", reused), faulty("infer.hang", "infer.device"),
    ),
    Bug(
        "Lost ignored", "a sequence of an ended generation is continued",
        with_rule("admission.reserve.extend", "seq.record == Live"), faulty("infer.device", "commit.throw"),
    ),
    Bug(
        "golden compared by length", "any digest is as good as any other",
        by_length,
        faulty("infer.ccu_exception", "reset.ignore", policy="rebuild-golden", faults=4),
    ),
    Bug(
        "late completion decrements in-flight", "a stale return gives back a permit of the new generation",
        with_update("completion.wait.stale", v.permits, v.permits - 1),
        LEFT_BEHIND,
    ),
    Bug(
        "timer dies on an exception", "nobody looks at the timers after the first one",
        expires_once, faulty("reserve.refused", faults=4, clients=(Plan(),)),
    ),
    Bug(
        "close drops queued", "nobody is answered while it closes",
        instead(DeviceExecutor, "_answer", dropped_while_closing), Scenario(faults=0, moves=("close",), ends_after=0),
    ),
    Bug(
        "a call inside the monitor", "the device is asked while the monitor is held (§5.2)",
        instead(Engine, "_noted", calling_inside), CALM,
    ),
)  # fmt: skip
