"""Clients on the stage: what a plain server does, one step at a time.

Theory. A client is an actor like the others: a generator that stops before each thing that it does, so that the
scheduler decides when that happens. Where a thread would block in `enqueue()` or `wait_until()`, it says what it waits
for. What it is told is held against what is true: logits against the independent oracle, over the tokens that the
sequence must have by all that it was told.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, field, frozen

from checker.real.scenario import Plan
from runtime.actors import Call
from runtime.executor import Refused
from runtime.job import InferenceRequest, InferenceResult, JobHandle
from runtime.manifest import CalTaskKind

if TYPE_CHECKING:
    from checker.real.run import Run

__all__ = ["Asked", "Client", "Pause", "Reported", "asking", "enqueue", "removing"]


@frozen(eq=False)
class Pause:
    """Stop before `what`, until `ready`."""

    what: str
    ready: Callable[[], bool] = lambda: True


@frozen(eq=False)
class Reported:
    """What the client's own call brought back is about to be told to the engine."""

    call: Call
    observed: str


@define(eq=False)
class Asked:
    """A job that was accepted. history: the tokens before its own, on which it goes on. result: the first that was
    seen."""

    handle: JobHandle
    sequence: int
    history: tuple[int, ...]
    tokens: tuple[int, ...]
    at_us: int
    deadline_us: int | None
    result: InferenceResult | None = None

    def entered(self) -> bool:
        return self.handle.entered.is_open

    def ok(self) -> bool:
        return self.handle.settled is not None and self.handle.settled.status.ok


Doing = Generator[Pause | Call | Reported, Any, None]


@define(eq=False)
class Client:
    """wish: what it wants to do next; None: it has ended."""

    name: str
    doing: Doing
    wish: Pause | Call | Reported | None = field(default=None)

    def __attrs_post_init__(self) -> None:
        self.wish = next(self.doing, None)

    def answer(self, answer: Any) -> None:
        try:
            self.wish = self.doing.send(answer)
        except StopIteration:
            self.wish = None


def asking(run: Run, number: int, plan: Plan) -> Doing:
    """Its jobs, on a sequence of its own; a new one where the old one is in doubt."""
    sequence, history = number, tuple[int, ...]()
    for count in plan.tokens:
        yield Pause("look whether jobs are served", run.serves_or_ended)
        if run.ended():
            return
        yield Pause(f"enqueue {count} tokens after {len(history)} of sequence {sequence}")
        asked = enqueue(run, sequence, history, count, plan.deadline_ms)
        if asked is None:
            continue
        yield Pause(f"return from enqueue() of job {asked.handle.job_id}", asked.entered)
        yield Pause(f"see the answer of job {asked.handle.job_id}", asked.handle.done)
        if asked.ok():
            history = (*asked.history, *asked.tokens)
            continue
        if plan.stubborn:
            continue
        yield from removing(run, sequence)
        sequence, history = sequence + 10, ()


def enqueue(run: Run, sequence: int, history: tuple[int, ...], count: int, deadline_ms: int) -> Asked | None:
    """Enqueue the next `count` tokens of a sequence; None: refused."""
    values = [(sequence * 7 + len(history) + i) % 251 for i in range(count)]
    task = CalTaskKind.Decode if history and count == 1 else CalTaskKind.PrefillIds
    deadline_us = run.clock.us + deadline_ms * 1000 if deadline_ms else None
    request = InferenceRequest(
        len(run.asked) + 1, sequence, task, len(history), np.array(values, np.int32), deadline_us
    )  # fmt: skip
    try:
        handle = run.executor._taken(request, lambda handle: handle)  # enqueue(), and it does not wait
    except Refused as refused:
        run.refused.append(refused.status)
        return None
    asked = run.asked[handle.job_id] = Asked(
        handle, sequence, history, tuple(values), run.clock.us, deadline_us
    )  # fmt: skip
    return asked


def removing(run: Run, sequence: int) -> Doing:
    """seq_rm, whose call is the scheduler's to make."""
    yield Pause(f"remove sequence {sequence}")
    removal = run.executor.removals.removal(sequence)
    try:
        call = next(removal)
        while True:
            observed = yield call
            yield Reported(call, observed)
            call = removal.send(observed)
    except StopIteration as ended:
        run.removed.append(ended.value)
