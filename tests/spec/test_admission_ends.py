"""How waiting for KV ends, and what a second Apply() that fails costs (S01, S02, PR3), on the running executor.

§7: KvManager says no without a reason. Before the submit that is a wait, with a deadline and a cancel; after the device
is done it leaves doubt about one sequence, and about nothing else.
"""

from __future__ import annotations

import threading

import pytest
from executing import READY_S, Bench, executing
from moments import books, end, names, pool_of, says, since, standing, until, waiting

from runtime.calrt import Library
from runtime.executor import Refused
from runtime.job import JobHandle
from runtime.kv import KvCoordinator
from runtime.status import StatusKind, now_us

PROMPT = list("Grüße".encode())
OTHER = list(b"another prompt")
FULL = {"sequences_max": 1, "admission_ms": 60_000}  # one sequence has all there is


def waits_for_kv(b: Bench, seq_id: int, **more: int) -> tuple[JobHandle, threading.Thread]:
    """A job that stands in the line because another sequence holds all KV."""
    client = threading.Thread(target=lambda: b.enqueue(seq_id, OTHER, **more), daemon=True)
    client.start()
    until(lambda: books(b)["line"] == 1)
    (context,) = b.executor.records.contexts()
    return context.handle, client


def held_kv(b: Bench) -> int:
    """How many sequences have KV at the device."""
    return sum(b.sim.kv(kv_id)[0] >= 0 for kv_id in range(1, 20))


@pytest.mark.shows("S01", "PR3.cancel", "PR3.capacity")
def test_who_waits_for_kv_can_cancel(library: Library) -> None:
    """It is answered while it stands in the line, no call is made for it, and the line goes on."""
    with executing(library, **FULL) as b:
        assert says(b, b.run(1, PROMPT), PROMPT)
        held = held_kv(b)
        handle, client = waits_for_kv(b, 2)
        mark = len(b.calls())
        assert handle.cancel()
        assert end(handle).status.kind is StatusKind.CANCELLED
        client.join(READY_S)
        until(lambda: not books(b)["line"])
        assert not {"apply", "infer", "bind_sequence"} & set(names(since(b, mark)))
        assert held_kv(b) == held == 1
        assert b.executor.seq_rm(1).ok
        assert b.tokens(3, OTHER, 2) == b.oracle.tokens(OTHER, 2)
    assert b.sim.violations() == ()


@pytest.mark.shows("S01", "PR3.deadline", "§8.HTTP.504")
def test_who_waits_for_kv_has_a_deadline(library: Library) -> None:
    with executing(library, **FULL) as b:
        assert says(b, b.run(1, PROMPT), PROMPT)
        mark = len(b.calls())
        status = b.run(2, OTHER, deadline_us=now_us() + 200_000).status
        assert (status.kind, status.http) == (StatusKind.DEADLINE_EXCEEDED, 504)
        assert not {"apply", "infer"} & set(names(since(b, mark)))
        assert says(b, b.run(1, [7], past=len(PROMPT)), [*PROMPT, 7]), "who holds it goes on"


@pytest.mark.shows("§8.HTTP.429")
def test_what_finds_no_room_in_the_queue_is_refused(library: Library) -> None:
    with executing(library, jobs_max=2) as b:
        with standing(b):
            first = b.enqueue(1, PROMPT)
            until(lambda: waiting(b))
            second = b.enqueue(2, OTHER)
            with pytest.raises(Refused) as refused:
                b.enqueue(3, OTHER)
            assert (refused.value.status.kind, refused.value.status.http) == (StatusKind.RESOURCE_EXHAUSTED, 429)
        assert says(b, end(first), PROMPT)
        assert says(b, end(second), OTHER)


def commit_is_refused(b: Bench) -> None:
    """The second Apply of a job is refused: nothing is delivered, its sequence is in doubt, nobody else is harmed."""
    assert b.run(1, PROMPT).status.ok
    before = pool_of(b).counts()
    b.sim.fault("apply", "refuse", nth=2)
    result = b.run(2, OTHER)
    assert (result.status.ok, result.logits) == (False, None), "delivered without a commit"
    until(lambda: not books(b)["work"])
    assert (books(b)["lost_kv"], pool_of(b).counts()) == (1, before)
    assert not b.run(2, [7], past=len(OTHER)).status.ok, "nobody goes on from what is in doubt"
    assert says(b, b.run(1, [7], past=len(PROMPT)), [*PROMPT, 7])
    assert b.executor.ready()
    assert b.executor.calls.generation_id == 1


@pytest.mark.shows("S02")
def test_a_second_apply_that_fails_costs_its_job(library: Library) -> None:
    with executing(library) as b:
        commit_is_refused(b)
    assert b.sim.violations() == ()


def test_control_a_second_apply_that_nobody_looks_at(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = KvCoordinator.commit

    def blind(kv: KvCoordinator, kv_id: int, target: int) -> None:
        commit(kv, kv_id, target)

    with executing(library) as b:
        monkeypatch.setattr(KvCoordinator, "commit", blind)
        with pytest.raises(AssertionError, match="delivered without a commit"):
            commit_is_refused(b)
