"""Executors with one bug each, for `calexec run --break NAME`: something that proves must be seen to be red.

Each bug is a few lines that change the running executor's classes, or the rulebook that the executor compiles. It comes
with the settings under which it shows, and says by which check of `run` it is meant to be caught.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from attrs import evolve

from machines.expr import all_of
from machines.protocol import RULEBOOK
from runtime.breaks import Bug
from runtime.calls import DeviceCalls
from runtime.calrt import BufStatus, Output
from runtime.executor import DeviceExecutor
from runtime.job import InferenceResult, JobHandle
from runtime.kv import KvCoordinator
from runtime.lane import Lane
from runtime.status import Status, StatusKind

__all__ = ["BUGS"]

SMALL = {"model": "tiny", "limit": 8, "count": 8, "clients": 4, "faults": 0.0, "cancel": 0.0}
SLOW = {**SMALL, "latency_decode_us": 4_000, "latency_prefill_us": 4_000}


def instead(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], AbstractContextManager[None]]:
    """What `make` makes of the original stands in its place."""

    @contextmanager
    def installed() -> Iterator[None]:
        with patch.object(owner, name, make(getattr(owner, name))):
            yield

    return installed


def with_rule(rule_id: str, *dropped: str) -> Callable[[], AbstractContextManager[None]]:
    """The executor's rulebook has this rule without these conjuncts of its guard."""
    rule = RULEBOOK.rule(rule_id)
    parts = rule.guard.conjuncts()
    assert set(dropped) <= {str(c) for c in parts}, [str(c) for c in parts]
    book = RULEBOOK.replace(evolve(rule, guard=all_of(*(c for c in parts if str(c) not in dropped))))
    return lambda: patch("runtime.executor.RULEBOOK", book)


def after_step(more: Callable[[DeviceExecutor, str, Any], None]) -> Callable[[], AbstractContextManager[None]]:
    """Something more is done after each step: told are the executor, the rule and what it was about."""

    def made(after: Any) -> Any:
        def wrong(self: DeviceExecutor, rule: Any, element: Any) -> None:
            after(self, rule, element)
            more(self, rule.id, element)

        return wrong

    return instead(DeviceExecutor, "_after", made)


# -- the bugs ----------------------------------------------------------------------------------------------------------
def another_ones_kv(reserve: Any) -> Any:
    """Of one that holds committed tokens: whatever the threads do, the job then does not go on from where its KV is."""

    def wrong(self: DeviceCalls, job: Any) -> str:
        there = [kv_id for kv_id in [*self._kv_ids.values()] if self._kv().length(kv_id)]
        fresh, self._next_kv_id = self._next_kv_id, itertools.chain(there[:1], self._next_kv_id)
        try:
            return str(reserve(self, job))
        finally:
            self._next_kv_id = fresh

    return wrong


def one_token_less(commit: Any) -> Any:
    return lambda self, sequence, target: commit(self, sequence, max(1, target - 1))


def swapped_results(settle: Any) -> Any:
    held: list[InferenceResult] = []

    def wrong(self: JobHandle, result: InferenceResult) -> bool:
        if result.logits is not None:
            held.append(result)
            result = held.pop(0) if len(held) > 1 else result
        return bool(settle(self, result))

    return wrong


def late_commit(executor: DeviceExecutor, rule: str, job: Any) -> None:
    """The Wait of an ended generation returns, and its job is taken for one of the present generation."""
    if rule == "completion.wait.stale":
        executor.wait_ready(10)
        assert executor.calls.kv is not None
        executor.calls.kv.commit(job.tag.kv_id, job.tag.target_len)


def answered_again(executor: DeviceExecutor, rule: str, job: Any) -> None:
    """A cancelled job's result is delivered all the same."""
    if rule == "completion.discard":
        status = Status(kind=StatusKind.OK, job_id=job.tag.job_id)
        job.tag.handle._result = InferenceResult(status, job.tag.logits, job.tag.timings)


def one_lease_lost(give_back: Any) -> Any:
    lost: list[Any] = []

    def wrong(self: DeviceCalls, job: Any) -> str:
        if lost:
            return str(give_back(self, job))
        lost.append(job.tag.lease)
        return "ok"

    return wrong


def freed_at_the_answer(executor: DeviceExecutor, rule: str, job: Any) -> None:
    """The slot of a job that is cancelled is in the pool at once, whatever the device does."""
    if rule == "client.cancel" and job.tag.lease is not None and job.tag.lease.live:
        executor.calls._pool()._free.append(job.tag.lease.slot)


def some_never_answered(tell: Any) -> Any:
    nth = itertools.count(1)
    return lambda self: tell(self) if next(nth) % 20 else None


def no_deadlines(timers: Any) -> Any:
    """F35: nothing bounds what the device does."""

    def wrong(*of: Any) -> Any:
        unbounded = dict.fromkeys(("clock.execution", "clock.request"), lambda s, element: None)
        return timers(*of) | unbounded

    return wrong


def instead_of_timers() -> AbstractContextManager[Any]:
    from runtime import executor

    return patch.object(executor, "timers", no_deadlines(executor.timers))


BUGS = (
    Bug(
        name="kv", about="a sequence that begins is handed the KV of one that is there", seen_as="unexplained",
        installed=instead(DeviceCalls, "reserve", another_ones_kv), settings={**SLOW, "limit": 24},
    ),
    Bug(
        name="kv-length", about="a commit is one token short", seen_as="violations",
        installed=instead(KvCoordinator, "commit", one_token_less), settings=SMALL,
    ),
    Bug(
        name="swap", about="a job's result goes to the next one that is done", seen_as="differences",
        installed=instead(JobHandle, "settle", swapped_results), settings=SMALL,
    ),
    Bug(
        name="stale", about="a Wait of an ended generation commits KV in the present one", seen_as="ledger",
        installed=after_step(late_commit), settings=SMALL, planned=(("infer", "hang", 10),),
    ),
    Bug(
        name="late", about="a job is submitted while the device drains", seen_as="wrong_steps",
        installed=with_rule("submitter.infer", "device == Ready"), settings={**SLOW, "faults": 0.05, "seed": 3},
    ),
    Bug(
        name="late-answer", about="nothing bounds what the device does", seen_as="unanswered",
        installed=instead_of_timers, settings={**SMALL, "deadline_ms": 1_500}, planned=(("infer", "hang", 10),),
        late_s=1.5,
    ),
    Bug(
        name="no-answer", about="every 20th client is never told", seen_as="unanswered",
        installed=instead(JobHandle, "tell", some_never_answered), settings={**SMALL, "deadline_ms": 1_000},
        late_s=1.0,
    ),
    Bug(
        name="double-answer", about="a cancelled job is answered again with its result", seen_as="changed_answers",
        installed=after_step(answered_again), settings={**SLOW, "cancel": 1.0},
    ),
    Bug(
        name="leak", about="one lease is never given back", seen_as="leases_left",
        installed=instead(DeviceCalls, "undo", one_lease_lost), settings=SMALL,
    ),
    Bug(
        name="leak-old", about="one lease is never given back, and its generation ends", seen_as="leases_left",
        installed=instead(DeviceCalls, "undo", one_lease_lost), settings=SMALL, planned=(("infer", "nan", 20),),
    ),
    Bug(
        name="no-status", about="GetStatus is not looked at", seen_as="unexplained",
        installed=instead(Output, "get_status", lambda ask: lambda self: (ask(self)[0], BufStatus.DONE)),
        settings=SMALL, planned=(("infer", "ccu_exception", 10),),
    ),
    Bug(
        name="early-free", about="a slot is free as soon as its job is cancelled", seen_as="violations",
        installed=after_step(freed_at_the_answer),
        settings={**SMALL, "clients": 1, "cancel": 1.0, "latency_decode_us": 20_000, "latency_prefill_us": 20_000},
    ),
    Bug(
        name="no-return", about="what infer() returned is not looked at", seen_as="violations",
        installed=instead(Lane, "infer", lambda infer: lambda self: infer(self) * 0), settings=SMALL,
        planned=(("infer", "throw", 10),),
    ),
)  # fmt: skip
