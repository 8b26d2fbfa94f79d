"""Moments of a running executor: the device stands still until a test moves it, and a call stands until it is let go.

Nothing here waits for a span of time: it waits for what must come, and a moment that never comes fails the test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from executing import READY_S, Bench

from machines.protocol import RULEBOOK
from runtime.buffers import BufferPool
from runtime.calbin import sample
from runtime.compiled import CompiledRule
from runtime.job import InferenceResult
from runtime.lane import Lane
from runtime.manifest import load_manifest
from runtime.simulator import Call, SimulatorError
from runtime.status import now_us


def until(moment: Callable[[], Any], move: Callable[[], Any] = lambda: None) -> None:
    """Wait for a moment, moving the device meanwhile if it must be."""
    latest_us = now_us() + int(READY_S * 1e6)
    while not moment():
        assert now_us() < latest_us, "the moment never came"
        move()
        threading.Event().wait(0.002)


@contextmanager
def standing(b: Bench, **settings: int) -> Iterator[None]:
    """The device moves only by `step` and `advance`; afterwards it runs again, and what was left on it ends first."""
    b.sim.set(clock=1, **settings)
    try:
        yield
    finally:
        until(lambda: _runs_again(b))


def _runs_again(b: Bench) -> bool:
    """Not while there is a job on it, and one may come as soon as another has ended."""
    while b.sim.step():
        pass
    try:
        b.sim.set(clock=0)
    except SimulatorError:
        return False
    return True


@contextmanager
def reset_held(b: Bench) -> Iterator[threading.Event]:
    """The executor's next reset stops before it calls CalRT, until the block ends. Yields: it has come there."""
    calls, there, go = b.executor.calls, threading.Event(), threading.Event()
    rung = calls.rung

    def hold() -> int:
        there.set()
        go.wait(READY_S)
        return rung()

    calls.rung = hold
    try:
        yield there
    finally:
        go.set()


@contextmanager
def late(b: Bench, rule: str) -> Iterator[threading.Event]:
    """What follows the first step of this rule comes only when the event is set: its thread is slow. Whatever follows
    other steps comes in the meantime."""
    engine, go = b.executor.engine, threading.Event()
    after, to_come = engine.on_step, [rule]
    assert after is not None

    def slowly(step: CompiledRule, element: Any) -> None:
        if [step.id] == to_come:
            to_come.clear()
            assert go.wait(READY_S)
        after(step, element)

    engine.on_step = slowly
    try:
        yield go
    finally:
        go.set()


def since(b: Bench, number: int) -> list[Call]:
    """Calls of the ABI trace from that one on."""
    return [c for c in b.sim.trace() if c.number >= number]


def names(calls: Iterable[Call]) -> list[str]:
    return [c.call for c in calls]


def last(b: Bench, name: str) -> Call:
    """The latest call of that name."""
    return [c for c in b.sim.trace() if c.call == name][-1]


def waiting(b: Bench) -> int:
    """Threads that are inside Wait()."""
    return sum(c.call == "wait" and c.end_us < 0 for c in b.sim.trace())


def pool_of(b: Bench) -> BufferPool:
    """Of the present generation."""
    pool = b.executor.calls.pool
    assert pool is not None
    return pool


def lanes(b: Bench) -> list[Lane]:
    """Those of every free slot."""
    return [lane for slot in pool_of(b)._free for lane in slot.lanes.values()]


def end(handle: Any) -> InferenceResult:
    """The job's result; one that never comes is a failure of the test."""
    result: InferenceResult | None = handle.wait_until(now_us() + int(READY_S * 1e6))
    assert result is not None, "the handle was never resolved"
    return result


def says(b: Bench, result: InferenceResult, tokens: list[int]) -> bool:
    """Whether the logits are the oracle's for a sequence of these tokens, to the bit."""
    assert result.logits is not None
    row = b.oracle.row(tokens).astype(np.uint32) << 16  # BF16 is the upper half of FP32
    return bool((result.logits.view(np.uint32) == row).all())


def books(b: Bench) -> dict[Any, int]:
    """Every variable that the rulebook declares for the executor: by its name, or by sort, element and name."""

    def look(s: Any) -> dict[Any, int]:
        found = {v.name: getattr(s, v.name) for v in own if v.sort is None}
        for sort in RULEBOOK.sorts:
            for e in getattr(s, f"{sort.name}_elements"):
                who = getattr(e.tag, "job_id", e.tag)
                found |= {(sort.name, who, v.name): getattr(e, v.name) for v in own if v.sort is sort}
        return found

    own = [v for v in RULEBOOK.variables if not v.world]
    return dict(b.executor.engine.read(look))


MANIFEST = load_manifest(sample("tiny").with_suffix(".json"))
