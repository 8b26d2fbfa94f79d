"""The pool: made once, lent once, given back clean or kept for ever (S06, S07, §5.1, FI15).

The device watches every access to memory in flight; each test ends with no violation and no handle left (`bench_of`).
"""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from card import D2H_US, H2D_US, PREFILL_US
from pools import DECODE, EMBEDS, IDS, Bench, bench_of, model_of

from runtime.buffers import (
    QUARANTINE_PATTERN,
    BufferLease,
    BufferPool,
    BufferSlot,
    LateWrite,
    LeaseGone,
    PoolMisused,
)
from runtime.calrt import Library
from runtime.lane import Lane
from runtime.prepare import program
from runtime.status import Failure

THREE = np.array([1, 2, 3])


@pytest.fixture
def bench(library: Library) -> Iterator[Bench]:
    with bench_of(library) as bench:
        yield bench


def places(pool: BufferPool) -> tuple[int, int, int]:
    counts = pool.counts()
    assert pool.abstract() == {"free": counts.free, "lost_slots": counts.quarantined}
    return counts.free, counts.leased, counts.quarantined


# -- made once --
@pytest.mark.shows("S07", "PR4.addresses")
def test_everything_is_made_and_mapped_once(bench: Bench) -> None:
    """S07: 3 submodels with 2 handles and 3 mapped tensors each, per slot; jobs make nothing."""
    pool = bench.built(2)
    calls = [call for call, _ in bench.calls()]
    assert (calls.count("create_input"), calls.count("create_output"), calls.count("map_buf")) == (6, 6, 18)
    before = len(calls)
    addresses = set()
    for i in range(100):
        lease = pool.lease()
        addresses.add(lease.lane(IDS).host_logits.ctypes.data)
        assert np.array_equal(bench.call(lease, IDS, i, THREE), bench.oracle.row(THREE.tolist()))
        assert pool.give_back(lease) is None
        assert bench.kv.apply(i, 0)[0] == 0
    later = {call for call, _ in bench.calls()[before:]}
    assert later & {"create_input", "create_output", "map_buf", "destroy_input", "destroy_output"} == set()
    assert len(addresses) == 1
    assert bench.sim.truth("buffers_created") == 12


@pytest.mark.shows("S06")
def test_slots_share_no_memory(bench: Bench) -> None:
    pool = bench.built(2)
    lanes = [lane for lease in (pool.lease(), pool.lease()) for lane in lease.slot.lanes.values()]
    memory = [host for lane in lanes for host in (lane.host_input, lane.host_position, lane.host_logits)]
    assert len(memory) == 18
    assert not any(np.shares_memory(a, b) for i, a in enumerate(memory) for b in memory[:i])


def test_a_slot_has_the_bytes_of_the_manifest(bench: Bench) -> None:
    pool = bench.built(2)
    contracts = bench.model.submodels.values()
    size = sum(t.byte_size for c in contracts for t in (c.token_or_embed, c.position, c.logits))
    assert pool.counts().byte_size == 2 * size
    assert pool.counts().quarantined_bytes == 0
    pool.quarantine(pool.lease())
    assert (pool.counts().byte_size, pool.counts().quarantined_bytes) == (2 * size, size)


@pytest.mark.parametrize(
    ("call", "nth", "stage"),
    [
        ("create_input", 1, "create input of tiny_prefill"),
        ("create_input", 5, "create input of tiny_prefill_embeds"),
        ("create_output", 1, "create output of tiny_prefill"),
        ("create_output", 6, "create output of tiny_decode"),
        ("map_buf", 1, "map input_ids of tiny_prefill"),
        ("map_buf", 2, "map position_ids of tiny_prefill"),
        ("map_buf", 18, "map logits of tiny_decode"),
    ],
)
def test_a_build_that_fails_leaves_nothing_and_can_be_tried_again(
    bench: Bench, call: str, nth: int, stage: str
) -> None:
    pool = bench.pool(2)
    bench.sim.fault(call, "return", 24, nth=nth)
    failure = pool.build()
    assert failure is not None
    assert (failure.stage, failure.code) == (stage, 24)
    assert bench.sim.truth("buffers_alive") == 0
    assert places(pool) == (0, 0, 0)
    with pytest.raises(PoolMisused, match="the pool is not built"):
        pool.lease()
    assert pool.build() is None
    assert places(pool) == (2, 0, 0)
    with pytest.raises(PoolMisused, match="the pool is built; it must be not built"):
        pool.build()


@pytest.mark.shows("S08")
def test_a_submodel_is_found_by_its_exact_name_alone(bench: Bench) -> None:
    """§10.2, S08: the calbin is tiny's, the generation another model's."""
    pool = BufferPool(bench.library, bench.device, bench.calbin, model_of("qwen3-tile8"), 1)
    failure = pool.build()
    assert failure is not None
    assert failure.code == 0
    assert "is there 0 times; expected once" in failure.text
    assert bench.sim.truth("buffers_alive") == 0


def test_a_pool_has_at_least_one_slot(bench: Bench) -> None:
    with pytest.raises(ValueError, match="a pool has 0 slots; at least 1"):
        bench.pool(0)


# -- lent once --
def test_the_slot_that_was_given_back_last_is_lent_first(bench: Bench) -> None:
    """F13: reuse is likely."""
    pool = bench.built(3)
    leases = [pool.lease() for _ in range(3)]
    assert [lease.slot.number for lease in leases] == [0, 1, 2]
    for i in (1, 2, 0):
        assert pool.give_back(leases[i]) is None
    assert [pool.lease().slot.number for _ in range(1)] == [0]


def test_a_slot_that_is_not_there_is_a_bug(bench: Bench) -> None:
    pool = bench.built(3)
    kept = [pool.lease()]
    pool.quarantine(pool.lease())
    kept.append(pool.lease())
    with pytest.raises(PoolMisused, match="no slot is free; of 3, 2 are lent, 0 being given back, 1 in quarantine"):
        pool.lease()
    assert places(pool) == (0, 2, 1)
    assert pool.give_back(kept.pop()) is None
    assert pool.lease().live


def test_a_lease_that_was_moved_is_dead(bench: Bench) -> None:
    """§4.2: move-only."""
    pool = bench.built(1)
    old = pool.lease()
    slot = old.slot
    new = old.move()
    assert (old.live, new.live) == (False, True)
    assert new.slot is slot
    uses: list[Callable[[BufferLease], object]] = [
        lambda it: it.slot, lambda it: it.lane(IDS), BufferLease.move, pool.give_back, pool.quarantine,
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(LeaseGone, match="moved on, given back or quarantined"):
            use(old)
    assert places(pool) == (0, 1, 0)
    del old
    gc.collect()
    assert places(pool) == (0, 1, 0)
    assert pool.give_back(new) is None
    assert places(pool) == (1, 0, 0)


@pytest.mark.parametrize("end", [BufferPool.give_back, BufferPool.quarantine])
def test_a_lease_that_ended_is_dead(bench: Bench, end: Callable[[BufferPool, BufferLease], object]) -> None:
    """Its slot may be somebody else's by now."""
    pool = bench.built(1)
    lease = pool.lease()
    end(pool, lease)
    for use in (pool.give_back, pool.quarantine):
        with pytest.raises(LeaseGone):
            use(lease)
    dead = places(pool)
    del lease
    assert places(pool) == dead


def test_two_threads_that_move_one_lease_do_not_both_get_it(bench: Bench) -> None:
    pool = bench.built(1)
    for _ in range(200):
        lease, got = pool.lease(), []
        barrier = threading.Barrier(2)

        def move(lease: BufferLease = lease, got: list = got, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            try:
                got.append(lease.move())
            except LeaseGone:
                got.append(None)

        threads = [threading.Thread(target=move) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert sum(g is not None for g in got) == 1
        assert pool.give_back(next(g for g in got if g)) is None


# -- dropped --
def test_a_lease_that_is_dropped_keeps_its_slot_from_everybody(bench: Bench) -> None:
    dropped: list[BufferSlot] = []
    pool = bench.built(2, dropped.append)
    lease = pool.lease()
    slot = lease.slot
    del lease
    gc.collect()
    assert dropped == [slot]
    assert places(pool) == (1, 0, 1)
    assert pool.quarantined() == (slot,)
    assert pool.lease().slot is not slot
    assert bench.sim.truth("buffers_alive") == 12


def test_a_drop_in_the_midst_of_the_lock_does_not_deadlock(bench: Bench) -> None:
    """The garbage collector runs where it wants to."""
    pool = bench.built(2)
    cycle: list[object] = [pool.lease()]
    cycle.append(cycle)
    del cycle
    done = threading.Event()

    def collect() -> None:
        with pool._lock:
            gc.collect()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(30)
    assert places(pool) == (1, 0, 1)


def test_a_lease_that_ended_in_good_order_is_not_reported(bench: Bench) -> None:
    """Negative control."""
    dropped: list[BufferSlot] = []
    pool = bench.built(3, dropped.append)
    back, lost, retired = pool.lease(), pool.lease(), pool.lease()
    assert pool.give_back(back) is None
    pool.quarantine(lost)
    assert pool.retire() is None
    del back, lost, retired
    gc.collect()
    assert dropped == []


@pytest.mark.shows("I4")
def test_memory_in_flight_outlives_lease_slot_and_pool(bench: Bench) -> None:
    """§5.1-4: the device writes it to the end; the simulator would see memory that is gone, or handles."""
    pool = bench.built(1)
    lease = pool.lease()
    bench.submit(lease.lane(IDS), 0, THREE)
    bench.sim.advance(H2D_US // 2)
    lane = lease.lane(IDS)
    handles = [lane.input, lane.output]
    others = [h for other in lease.slot.lanes.values() for h in (other.output, other.input) if h not in handles]
    bench.pools.clear()
    del lease, pool, lane
    gc.collect()
    filler = [np.full(40_000, 7, np.uint16) for _ in range(200)]  # would come to lie where freed memory was
    bench.run_out()
    assert bench.sim.truth("jobs_completed") == 1
    assert all((f == 7).all() for f in filler)
    assert bench.sim.violations() == ()
    assert bench.sim.truth("buffers_alive") == 6
    assert handles[1].wait()[0] == 0
    assert [h.release() for h in (*others, handles[1], handles[0])] == [0] * 6


# -- given back --
@pytest.mark.shows("PR4.reset")
def test_a_slot_is_given_back_with_nothing_sliced(bench: Bench) -> None:
    pool = bench.built(1)
    lease = pool.lease()
    assert program(lease.lane(IDS), 0, THREE, 0) is None
    assert program(lease.lane(EMBEDS), 0, np.zeros((2, 64), np.uint16), 0) is None
    before = len(bench.calls())
    assert pool.give_back(lease) is None
    assert sorted(bench.calls()[before:]) == sorted(
        [("undo_slice", "input_ids"), ("undo_slice", "inputs_embeds"), *[("undo_slice", "position_ids")] * 2]
    )
    assert places(pool) == (1, 0, 0)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("code", [4, 15, 24, -3])
def test_a_slice_that_cannot_be_undone_costs_the_slot(bench: Bench, nth: int, code: int) -> None:
    """Every code is checked, and the other slice is undone nevertheless."""
    pool = bench.built(2)
    lease = pool.lease()
    slot = lease.slot
    assert program(lease.lane(IDS), 0, THREE, 0) is None
    before = len(bench.calls())
    bench.sim.fault("undo_slice", "return", code, nth=nth)
    failure = pool.give_back(lease)
    assert failure is not None
    assert (failure.stage, failure.code) == (f"undo slice of {('input_ids', 'position_ids')[nth - 1]}", code)
    assert bench.calls()[before:] == [("undo_slice", "input_ids"), ("undo_slice", "position_ids")]
    assert places(pool) == (1, 0, 1)
    assert pool.quarantined() == (slot,)


@pytest.mark.shows("PR4.quarantine")
def test_a_slice_that_nobody_undid_costs_the_slot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """FI15: UndoSlice is left out on purpose, and what should make it says that all is well."""
    pool = bench.built(2)
    lease = pool.lease()
    slot = lease.slot
    assert program(lease.lane(IDS), 0, THREE, 0) is None
    monkeypatch.setattr(Lane, "undo", lambda lane: None)
    failure = pool.give_back(lease)
    assert failure is not None
    assert failure.text == "slot 0 is still sliced: input_ids of tiny_prefill, position_ids of tiny_prefill"
    assert places(pool) == (1, 0, 1)
    monkeypatch.undo()
    assert pool.lease().slot is not slot


def test_a_slice_call_that_failed_is_undone_too(bench: Bench) -> None:
    """It may have sliced nevertheless."""
    pool = bench.built(1)
    lease = pool.lease()
    bench.sim.fault("slice_tensor", "return", 15, nth=2)
    assert program(lease.lane(IDS), 0, THREE, 0) is not None
    before = len(bench.calls())
    assert pool.give_back(lease) is None
    assert bench.calls()[before:] == [("undo_slice", "input_ids"), ("undo_slice", "position_ids")]


def test_an_exception_on_the_way_back_costs_the_slot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(lane: Lane) -> None:
        raise MemoryError

    pool = bench.built(1)
    lease = pool.lease()
    monkeypatch.setattr(Lane, "undo", raises)
    with pytest.raises(MemoryError):
        pool.give_back(lease)
    assert places(pool) == (0, 0, 1)
    assert not lease.live


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Events: an undo has begun; it may go on. It goes on without the pool's lock, or this would not end."""
    begun, go_on, undo = threading.Event(), threading.Event(), Lane.undo

    def slowly(lane: Lane) -> Failure | None:
        begun.set()
        assert go_on.wait(30)
        return undo(lane)

    monkeypatch.setattr(Lane, "undo", slowly)
    yield begun, go_on
    go_on.set()


@pytest.mark.parametrize("how", ["quarantine", "retire"])
def test_quarantine_wins_over_a_return_that_is_under_way(
    bench: Bench, held_up: tuple[threading.Event, threading.Event], how: str
) -> None:
    pool = bench.built(1)
    lease = pool.lease()
    assert program(lease.lane(IDS), 0, THREE, 0) is None
    results: list[Failure | None] = []
    thread = threading.Thread(target=lambda: results.append(pool.give_back(lease)))
    begun, go_on = held_up
    thread.start()
    assert begun.wait(30)
    assert places(pool) == (0, 1, 0)
    with pytest.raises(PoolMisused, match="slot 0 is being given back already"):
        pool.give_back(lease)
    pool.quarantine(lease) if how == "quarantine" else pool.retire()
    go_on.set()
    thread.join()
    assert results == [Failure("give back", 0, "slot 0 was quarantined meanwhile")]
    assert places(pool) == (0, 0, 1)


@pytest.mark.shows("§5.2.pool")
def test_the_lock_is_held_in_no_call_of_calrt(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []
    call = Library.call
    pool = bench.pool(2)

    def watched(library: Library, *arguments: object) -> int:
        held.append(pool._lock.locked())
        return call(library, *arguments)

    monkeypatch.setattr(Library, "call", watched)
    assert pool.build() is None
    first, second = pool.lease(), pool.lease()
    assert program(first.lane(IDS), 0, THREE, 0) is None
    assert pool.give_back(first) is None
    pool.quarantine(second)
    assert pool.retire() is None
    assert len(held) > 50
    assert not any(held)


# -- the end of a generation --
@pytest.mark.shows("I8")
def test_a_generation_ends_with_what_is_not_free_in_quarantine(bench: Bench) -> None:
    """§5.1-8. Six handles a slot, and of one in quarantine the two of a lane that the device may be using: submitted,
    or still sliced. The next generation's pool stands beside it."""
    pool = bench.built(5)
    lent, quarantined, unused = pool.lease(), pool.lease(), pool.lease()
    bench.submit(quarantined.lane(IDS), 0, THREE)
    assert program(lent.lane(DECODE), 1, np.array([5]), 0) is None
    pool.quarantine(quarantined)
    pool.quarantine(unused)
    assert pool.retire() is None
    assert places(pool) == (0, 0, 3)
    assert [set(slot.lanes) for slot in pool.quarantined()] == [{IDS}, set(), {DECODE}]
    assert bench.sim.truth("buffers_alive") == 4
    assert lent.live
    new = bench.built(2)
    assert places(new) == (2, 0, 0)
    with pytest.raises(PoolMisused, match="the pool is retired"):
        pool.lease()
    assert pool.retire() is None
    assert bench.sim.truth("buffers_alive") == 4 + 12
    bench.run_out()


def test_a_lane_that_was_done_is_in_no_doubt_later(bench: Bench) -> None:
    """Its slot goes to quarantine for another call: the lane is released with the generation."""
    pool = bench.built(1)
    lease = pool.lease()
    bench.call(lease, IDS, 0, THREE)
    assert pool.give_back(lease) is None
    again = pool.lease()
    bench.submit(again.lane(DECODE), 0, np.array([5]), 3)
    pool.quarantine(again)
    assert pool.retire() is None
    assert [set(slot.lanes) for slot in pool.quarantined()] == [{DECODE}]
    bench.run_out()


@pytest.mark.shows("I5")
@pytest.mark.parametrize("through", ["own", "newer"])
def test_a_lease_of_an_ended_generation_comes_to_nothing(bench: Bench, through: str) -> None:
    """FI14: no call is made for it, and the newer pool does not get its slot."""
    old = bench.built(2)
    one, two = old.lease(), old.lease()
    assert program(one.lane(IDS), 0, THREE, 0) is None
    old.retire()
    new = bench.built(1)
    pool = old if through == "own" else new
    before = len(bench.calls())
    failure = pool.give_back(one)
    assert failure is not None
    assert "its generation has ended" in failure.text
    pool.quarantine(two)
    assert (one.live, two.live) == (False, False)
    assert bench.calls()[before:] == []
    assert (places(old), places(new)) == ((0, 0, 2), (1, 0, 0))


def test_a_slot_that_cannot_be_released_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = bench.built(2)
    victim = pool.lease()
    slot, output = victim.slot, victim.lane(DECODE).output
    assert pool.give_back(victim) is None
    monkeypatch.setattr(output, "release", lambda: 17)
    failure = pool.retire()
    assert failure is not None
    assert (failure.stage, failure.code) == ("release Output of tiny_decode", 17)
    assert pool.quarantined() == (slot,)
    assert bench.sim.truth("buffers_alive") == 1
    monkeypatch.undo()
    assert slot.release() is None
    assert bench.sim.truth("buffers_alive") == 0


# -- late writes --
@pytest.mark.parametrize("stops", [1, 0])
def test_what_the_device_writes_after_a_reset_is_seen(library: Library, stops: int) -> None:
    """§14. On a device whose reset stops DMA, nothing is."""
    with bench_of(library, reset_stops_dma=stops) as bench:
        pool = bench.built(3)
        lease, other = pool.lease(), pool.lease()
        bench.submit(lease.lane(IDS), 0, THREE)
        bench.sim.advance(H2D_US + PREFILL_US + D2H_US // 2 + 10)
        pool.quarantine(lease)
        pool.quarantine(other)
        assert pool.late_writes() == ()  # nothing is watched yet
        assert bench.device.reset() == 0
        assert pool.retire() is None
        tile = bench.model.submodels[IDS].logits.byte_size
        assert pool.watch() == tile, "the one lane that was submitted"
        assert pool.late_writes() == ()
        bench.run_out()
        late = pool.late_writes()
        if stops:
            assert late == ()
            return
        bench.expected = {"output_changed"}  # watch() itself: the device was not done, as we were told it was
        assert [(w.slot, w.kind) for w in late] == [(0, IDS)]
        assert tile // 4 <= late[0].changed_bytes <= tile // 2 + tile // 8  # 8 pieces, of which half are left
        assert pool.late_writes() == late
        pool.watch()
        assert pool.late_writes() == ()


def test_only_what_was_in_quarantine_is_watched(bench: Bench) -> None:
    pool = bench.built(2)
    early, late = pool.lease(), pool.lease()
    memory = [lease.lane(DECODE).host_logits for lease in (early, late)]
    pool.quarantine(early)
    pool.watch()
    assert (memory[0] == QUARANTINE_PATTERN).all()
    assert not memory[1].any()
    pool.quarantine(late)
    memory[0][0, 7], memory[1][0, 7] = 1, 1
    assert pool.late_writes() == (LateWrite(0, DECODE, 2),)


def test_the_pattern_is_no_logit(bench: Bench) -> None:
    """Whoever should ever convert it is told that it is not finite."""
    pool = bench.built(1)
    lease = pool.lease()
    lane = lease.lane(IDS)
    bench.call(lease, IDS, 0, THREE)
    pool.quarantine(lease)
    pool.watch()
    failure = lane.read(3, np.empty(512, np.float32))
    assert failure is not None
    assert failure.known.name == "ShimNotFinite"


# -- all of it --
@pytest.mark.shows("I3")
@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_operations_keeps_the_books(bench: Bench, seed: int) -> None:
    """Against a model that is three numbers; and no slot is held twice."""
    dice, slots = random.Random(seed), 4
    pool = bench.built(slots)
    free, lent, lost = slots, [], 0
    for _ in range(60):
        step = dice.choice(["lease", "lease", "back", "back", "move", "quarantine", "drop", "fault"])
        if step == "lease":
            if free:
                lent.append(pool.lease())
                free -= 1
            else:
                with pytest.raises(PoolMisused):
                    pool.lease()
        elif lent:
            lease = lent.pop(dice.randrange(len(lent)))
            if step == "move":
                lent.append(lease.move())
            elif step == "quarantine":
                pool.quarantine(lease)
                lost += 1
            elif step == "drop":
                lost += 1
            else:
                assert program(lease.lane(dice.choice((IDS, DECODE))), 0, [1], 0) is None
                if step == "fault":
                    bench.sim.fault("undo_slice", "return", 15, nth=dice.choice((1, 2)))
                failure = pool.give_back(lease)
                assert (failure is None) == (step == "back")
                free, lost = (free + 1, lost) if step == "back" else (free, lost + 1)
            del lease
        assert places(pool) == (free, len(lent), lost)
        assert len({lease.slot.number for lease in lent}) == len(lent)
    assert pool.retire() is None
    assert places(pool) == (0, 0, slots - free)


@pytest.mark.shows("I3")
def test_many_threads_never_hold_one_slot_twice(bench: Bench) -> None:
    """The rule that takes a slot from `free` is a semaphore here."""
    pool, free = bench.built(3), threading.Semaphore(3)
    held: dict[int, int] = {}
    clashes: list[int] = []
    failures: list[Failure | None] = []

    def work(me: int) -> None:
        for _ in range(150):
            free.acquire()
            lease = pool.lease()
            number = lease.slot.number
            if held.setdefault(number, me) != me:
                clashes.append(number)
            lane = lease.lane(DECODE)
            failures.append(program(lane, me, [me], 0))
            if lane.host_input[0, 0] != me:
                clashes.append(number)
            held.pop(number)
            failures.append(pool.give_back(lease.move()))
            free.release()

    threads = [threading.Thread(target=work, args=(me,)) for me in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (clashes, set(failures)) == ([], {None})
    assert places(pool) == (3, 0, 0)
