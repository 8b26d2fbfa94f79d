"""A thread of the executor stands still between the step that begins a call and the call: a busy or paused host.

Theory. What a call needs belongs to the job when its rule is fired. Until the thread runs again, the clock may have
ended the job's generation and put its memory into quarantine. Then the call is late, and must be no bug of ours: the
actor that makes it lives on, and so does the service.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from executing import READY_S, Bench, executing
from moments import end, names, since, until

from runtime.calrt import Library
from runtime.status import StatusKind

PROMPT = list(b"standing still")


@contextmanager
def standing_before(b: Bench, effect: str) -> Iterator[threading.Event]:
    """The next call of that kind stands before it begins until the event, or the block's end; others are made."""
    table: Any = b.executor._table
    call: Callable[[Any], str] = table[effect]
    go, first = threading.Event(), threading.Lock()

    def late(job: Any) -> str:
        if first.acquire(blocking=False):
            go.wait(READY_S)
        return call(job)

    table[effect] = late
    try:
        yield go
    finally:
        go.set()
        table[effect] = call


@pytest.mark.parametrize("inflight", [1, 2])
def test_a_wait_that_begins_after_its_generation(library: Library, inflight: int) -> None:
    with executing(library, execution_ms=100, grace_ms=50, inflight=inflight) as b:
        with standing_before(b, "wait") as go:
            handle = b.enqueue(1, PROMPT)
            assert end(handle).status.kind is StatusKind.DEADLINE_EXCEEDED
            assert b.executor.wait_ready(READY_S)
            assert b.executor.calls.generation_id == 2
            before = len(b.sim.trace())
            go.set()
            until(lambda: "completion.wait.stale" in b.rules())
        assert names(since(b, before)).count("wait") == 0, "nothing of the ended generation is called"
        assert b.executor.health().ready, b.executor.health().why
        assert b.tokens(2, PROMPT, 2) == b.oracle.tokens(PROMPT, 2)
    assert b.sim.violations() == ()


def test_an_infer_that_begins_after_the_device_failed(library: Library) -> None:
    """A hanging infer() ends in Failed, and counts as made from its rule on. When it comes after all, its memory is
    there, and no actor dies of it."""
    with executing(library, stuck_ms=100, grace_ms=50) as b, standing_before(b, "infer") as go:
        handle = b.enqueue(1, PROMPT)
        assert not end(handle).status.ok
        until(lambda: not b.executor.health().live)
        go.set()
        until(lambda: not any(p.doing == "infer" for p in b.executor.crew.progress))
        assert names(b.sim.trace())[-1] == "infer"
        assert not [why for why in b.executor.health().why if "died" in why]
    assert b.sim.violations() == ()
