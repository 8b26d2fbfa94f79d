"""F24, F25: what admission takes it gives back, whatever stops it; and what is lost for good is never lost in silence.

No interval ends by itself here (PATIENT), but for the retry after a refused Apply.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import moments
import pytest
from attrs import evolve
from executing import READY_S, SHORT, Bench, executing, unused
from moments import books, end, names, says, since, until
from places import PATIENT, ledger, settled

from runtime.calbin import sample
from runtime.calls import DeviceCalls
from runtime.calrt import Handle, Library
from runtime.cast import CAST, Part
from runtime.config import Config
from runtime.executor import DeviceExecutor
from runtime.status import StatusKind, now_us

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
OUT_OF_RANGE, UNAVAILABLE, UNSUPPORTED = 14, 18, 27  # of the job's own making, of the device, of the program


# -- F24 ---------------------------------------------------------------------------------------------------------------
def enqueue_calls(b: Bench) -> list[str]:
    """The calls that enqueue() makes for a job, in their order."""
    mark = len(b.calls())
    assert b.run(1, PROMPT).status.ok
    until(lambda: not b.executor.records.jobs)
    assert b.executor.seq_rm(1).ok
    seen = names(since(b, mark))
    return seen[: seen.index("infer")]


def balanced(b: Bench, before: dict[str, Any]) -> list[str]:
    """What is not as it was, or is not served, after a job that failed or was stopped on its way."""
    b.sim.faults_clear()
    until(lambda: not b.executor.records.jobs)
    if not b.executor.wait_ready(READY_S):
        return ["it is not Ready"]
    if not b.executor.seq_rm(1).ok:
        return ["the sequence is not free"]
    wrong = settled(b, before)
    result = b.run(1, PROMPT)
    if not result.status.ok or not says(b, result, PROMPT):
        wrong.append(f"the next job ended as {result.status}")
    until(lambda: not b.executor.records.jobs)
    return wrong if b.executor.seq_rm(1).ok else [*wrong, "the next sequence is not free"]


def fails_at(b: Bench, call: str, nth: int, fault: tuple[Any, ...]) -> list[str]:
    """The nth such call of enqueue() fails."""
    before = ledger(b)
    b.sim.fault(call, *fault, nth=nth)
    b.run(1, PROMPT)
    return [f"{call} {nth}: {fault}: {wrong}" for wrong in balanced(b, before)]


FAULTS = [("return", OUT_OF_RANGE, 0), ("return", OUT_OF_RANGE, 1), ("return", UNAVAILABLE, 0)]


def failures(call: str) -> list[tuple[Any, ...]]:
    """A yes-or-no call says no; another returns a code, and did what it was asked, or did not."""
    return [("refuse",)] if call in ("can_allocate", "apply") else FAULTS


def cancelled_after(b: Bench, nth: int) -> list[str]:
    """The client cancels right after the nth call that admission made."""
    before, call, made = ledger(b), Library.call, []

    def counting(library: Library, name: str, *arguments: Any) -> int:
        code = call(library, name, *arguments)
        if threading.current_thread().name == "calexec submitter":
            made.append(name)
            if len(made) == nth:
                next(iter(b.executor.records.jobs.values())).handle.cancel()
        return code

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Library, "call", counting)
        handle = b.enqueue(1, PROMPT)
    kind = end(handle).status.kind
    assert len(made) >= nth, "admission has another thread"
    wrong = [] if kind is StatusKind.CANCELLED else [f"it ended as {kind}"]
    return [f"cancelled after call {nth}, {made[nth - 1]}: {w}" for w in (*wrong, *balanced(b, before))]


QUICK = PATIENT | {"kv_retry_ms": 5, "recoveries_max": 50}


def test_f24_a_failure_of_each_call_of_enqueue(library: Library) -> None:
    with executing(library, **QUICK) as b:
        calls = enqueue_calls(b)
        steps = [(name, calls[: i + 1].count(name)) for i, name in enumerate(calls)]
        assert [wrong for step in steps for fault in failures(step[0]) for wrong in fails_at(b, *step, fault)] == []
    assert b.sim.violations() == ()


def test_f24_a_cancel_after_each_call_of_enqueue(library: Library) -> None:
    with executing(library, **QUICK) as b:
        assert [wrong for i in range(len(enqueue_calls(b))) for wrong in cancelled_after(b, i + 1)] == []
    assert b.sim.violations() == ()


@pytest.mark.parametrize(("effect", "seen"), [("unreserve", "kv was"), ("undo", "pool was")])
def test_control_f24_what_was_taken_is_kept(
    library: Library, monkeypatch: pytest.MonkeyPatch, effect: str, seen: str
) -> None:
    with executing(library, **QUICK | {"close_ms": 100}) as b:
        calls = enqueue_calls(b)
        monkeypatch.setattr(moments, "READY_S", 0.3)
        monkeypatch.setitem(b.executor._table, effect, lambda job: "ok")
        assert seen in "; ".join(cancelled_after(b, len(calls)))


# The same kind, where a generation is made: each call of configuring fails in turn.
CONFIGURING = ("configure", "create_kv", "tokens_per_unit", "units_total", "create_input", "create_output", "map_buf")


def left_by_a_start(library: Library, call: str) -> tuple[bool, int]:
    """(whether it became Ready, handles that are left once it was closed), of an executor whose start met a fault."""
    sim, model, create, made = unused(library), sample("tiny").with_suffix(".json"), Handle.__init__, []

    def created(handle: Handle, *arguments: Any) -> None:
        made.append(handle)  # a handle that Python forgets is not given back by that
        create(handle, *arguments)

    sim.fault(call, "return", UNAVAILABLE, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handle, "__init__", created)
        executor = DeviceExecutor(Config(manifest=str(model), device=sim.index, **SHORT))
        was_ready = executor.wait_ready(READY_S)
        executor.close()
    return was_ready, sum(not handle._released for handle in made)


@pytest.mark.parametrize("call", CONFIGURING)
def test_f24_a_failure_of_each_call_of_configuring(library: Library, call: str) -> None:
    assert left_by_a_start(library, call) == (True, 0), "the next generation is complete"


def test_control_f24_handles_of_a_start_that_are_forgotten(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(list[Handle]):
        def insert(self, *_: object) -> None:
            pass

    configure = DeviceCalls.begin_generation

    def forgetting(calls: DeviceCalls) -> Any:
        calls._begun = Forgetful()
        return configure(calls)

    monkeypatch.setattr(DeviceCalls, "begin_generation", forgetting)
    assert left_by_a_start(library, "create_input")[1] > 0


# -- F25 ---------------------------------------------------------------------------------------------------------------
def loses_a_slot(b: Bench, i: int) -> None:
    b.sim.fault("undo_slice", "return", OUT_OF_RANGE, 0)
    assert b.run(i, PROMPT).status.ok, "the result was there before"


def loses_kv(b: Bench, i: int) -> None:
    b.sim.fault("apply", "refuse", nth=2)  # the commit
    assert not b.run(i, PROMPT).status.ok


def loses_a_permit(b: Bench, i: int) -> None:
    b.sim.fault("infer", "return", UNSUPPORTED, 0)
    assert not b.run(i, PROMPT).status.ok


LOSSES = [(loses_a_slot, "lost_slots", 2), (loses_kv, "lost_kv", 2), (loses_a_permit, "lost_permits", 1)]
SCARCE = PATIENT | {"slots": 2, "sequences_max": 2}


def drains(b: Bench, lose: Callable[[Bench, int], None], what: str, budget: int) -> list[str]:
    """What was wrong when so much was lost that nothing is left. Until then it is served from what is left."""
    for i in range(budget):
        if i and books(b)[what] != i:
            return [f"{what} is {books(b)[what]} after {i}"]
        if i and b.executor.calls.generation_id != 1:
            return ["it drained too early"]
        lose(b, i)
        until(lambda: not books(b)["calls"])
        for seq_id in range(2, 5):
            b.executor.seq_rm(seq_id)
    deadline_us = now_us() + int(moments.READY_S * 1e6)
    while b.executor.calls.generation_id == 1 and now_us() < deadline_us:
        threading.Event().wait(0.005)
    if b.executor.calls.generation_id != 2 or not b.executor.wait_ready(READY_S):
        return [f"nothing is left, and it is generation {b.executor.calls.generation_id}"]
    if b.tokens(9, OTHER, 2) != b.oracle.tokens(OTHER, 2):
        return ["wrong tokens afterwards"]
    return [name for name in ("lost_slots", "lost_kv", "lost_permits") if books(b)[name]]


@pytest.mark.parametrize(("lose", "what", "budget"), LOSSES)
def test_f25_quarantine_that_takes_everything_trips_a_drain(
    library: Library, lose: Callable[[Bench, int], None], what: str, budget: int
) -> None:
    with executing(library, **SCARCE) as b:
        assert drains(b, lose, what, budget) == []
        assert b.rules().count("lifecycle.exhausted") == 1
    assert b.sim.violations() == ()


def without(part: Part, rule: str) -> Part:
    return evolve(part, takes=lambda r: part.takes(r) and r.id != rule)


@pytest.mark.parametrize(("lose", "what", "budget"), LOSSES)
def test_control_f25_nobody_looks_at_the_budget(
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    lose: Callable[[Bench, int], None],
    what: str,
    budget: int,
) -> None:
    cast = tuple(without(part, "lifecycle.exhausted") for part in CAST)
    monkeypatch.setattr("runtime.crew.CAST", cast)
    with executing(library, **SCARCE | {"close_ms": 100}) as b:
        monkeypatch.setattr(moments, "READY_S", 0.5)
        assert drains(b, lose, what, budget) == ["nothing is left, and it is generation 1"]
