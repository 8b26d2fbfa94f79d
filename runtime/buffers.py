"""The pool of buffer slots of one generation, and the lease that lends one (§4.2, §5.1, S06, S07).

Theory. A `BufferSlot` has one lane for each submodel, so that whoever holds a slot can make any kind of call. It is
free, lent, or in quarantine, and is lent by a `BufferLease`, of which there is one: moved on, it is dead.

What a slot may become is decided by the rules (machines/slot.py); the pool keeps the books beside them. Three things it
sees to by itself. A slot is free again only when every slice was undone and nothing is left sliced (FI15). A lease that
somebody lost does not free its slot: it may be in flight, so it goes to quarantine. And what is in quarantine stays
alive for ever: its handles are not released, and its memory stays pinned, whatever becomes of the pool. At the end of
the generation that is cut down to the lanes that the device may be using.

The one lock is small and never held during a CalRT call. The garbage collector may drop a lease in any thread at any
moment, even inside that lock; therefore it takes none and only puts the slot on a list, which every operation reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from threading import Lock
from types import MappingProxyType

import numpy as np
from attrs import define, frozen

from runtime.calrt import Calbin, Device, Library
from runtime.lane import Lane, first_failure, make_lane
from runtime.manifest import CalTaskKind, ModelGeneration
from runtime.status import Failure, failed

__all__ = [
    "QUARANTINE_PATTERN", "BufferLease", "BufferPool", "BufferSlot", "Lane", "LateWrite", "LeaseGone", "PoolCounts",
    "PoolMisused",
]  # fmt: skip

QUARANTINE_PATTERN = np.uint16(0xFFA5)  # as BF16 a NaN with a payload: no sound device writes it as a logit


class LeaseGone(RuntimeError):
    """A lease was used after it had been moved on, given back or put into quarantine."""


class PoolMisused(RuntimeError):
    """Something was asked of the pool that the rules exclude: a slot where none is free, or of an ended generation."""


# -- one slot ----------------------------------------------------------------------------------------------------------
@define(eq=False)
class BufferSlot:
    """A lane for every submodel of one generation (§4.2). At most one job has it (§5.1-3)."""

    number: int
    generation_id: int
    lanes: Mapping[CalTaskKind, Lane]
    watched: bool = False  # its output holds the pattern

    @property
    def byte_size(self) -> int:
        """Bytes of host memory."""
        return sum(lane.byte_size for lane in self.lanes.values())

    @property
    def sliced(self) -> list[str]:
        """What is still sliced, for a message."""
        return [f"{name} of {lane.contract.exact_name}" for lane in self.lanes.values() for name in lane.sliced]

    def undo(self) -> Failure | None:
        """Undoes every slice of every lane; then nothing may be left sliced, whatever was said (FI15)."""
        failure = first_failure([lane.undo() for lane in self.lanes.values()])
        if failure is None and self.sliced:
            return Failure("give back", text=f"slot {self.number} is still sliced: {', '.join(self.sliced)}")
        if failure is None:
            for lane in self.lanes.values():
                lane.touched = False
        return failure

    def release_idle(self) -> Failure | None:
        """Lets go of the lanes that the device cannot be using: of a slot in quarantine that is most of the memory."""
        failures = {
            kind: lane.release() for kind, lane in self.lanes.items() if not (lane.touched or lane.sliced)
        }  # fmt: skip
        released = {kind for kind, failure in failures.items() if failure is None}
        self.lanes = MappingProxyType({kind: lane for kind, lane in self.lanes.items() if kind not in released})
        return first_failure(failures.values())

    def release(self) -> Failure | None:
        """Lets go of everything. Only while the device has nothing to do with it."""
        return first_failure([lane.release() for lane in self.lanes.values()])


class BufferLease:
    """The right to use a slot, of which there is one (§4.2). Made by `BufferPool.lease` alone.

    Raises LeaseGone when it is used after `move`, or after it went back to the pool. Dropped without either, its slot
    is quarantined and never freed."""

    def __init__(self, pool: BufferPool, slot: BufferSlot) -> None:
        self._pool = pool
        self._slot: BufferSlot | None = slot

    @property
    def slot(self) -> BufferSlot:
        slot = self._slot
        if slot is None:
            raise LeaseGone("this lease was moved on, given back or quarantined; its slot may be somebody else's")
        return slot

    @property
    def live(self) -> bool:
        return self._slot is not None

    def lane(self, kind: CalTaskKind) -> Lane:
        """The slot's lane for this kind of call. Raises KeyError where the generation has none."""
        return self.slot.lanes[kind]

    def move(self) -> BufferLease:
        """The same slot under a new lease; this one is dead."""
        return self._pool._moved(self)

    def _end(self) -> None:
        self._slot = None

    def __del__(self) -> None:
        if self._slot is not None:
            self._pool._lost(self._slot)

    def __repr__(self) -> str:
        return f"<BufferLease of slot {self._slot.number}>" if self._slot else "<BufferLease, gone>"


# -- the pool ----------------------------------------------------------------------------------------------------------
@frozen
class PoolCounts:
    """For metrics. Bytes of host memory; `leased` are also those that are being given back."""

    free: int
    leased: int
    quarantined: int
    byte_size: int
    quarantined_bytes: int


@frozen
class LateWrite:
    """The device wrote into a slot that it should be done with."""

    slot: int
    kind: CalTaskKind
    changed_bytes: int


class BufferPool:
    """`slots` slots of one generation (S07). Thread-safe. Built once by `build`, ended once by `retire`.

    on_drop: told the slot of every lease that was dropped without being given back. It is called by the garbage
    collector, in any thread and whatever locks that holds: it must take no lock and must not raise.
    Its methods raise PoolMisused for what the rules exclude. Raises ValueError for less than one slot.
    """

    def __init__(
        self,
        library: Library,
        device: Device,
        calbin: Calbin,
        generation: ModelGeneration,
        slots: int,
        on_drop: Callable[[BufferSlot], None] | None = None,
    ) -> None:
        if slots < 1:
            raise ValueError(f"a pool has {slots} slots; at least 1 is needed")
        self.library, self.device, self.calbin, self.generation, self.slots = library, device, calbin, generation, slots
        self.on_drop = on_drop
        self._lock = Lock()
        self._phase = "not built"
        self._free: list[BufferSlot] = []  # the last is lent first: its memory is warm
        self._leased: set[BufferSlot] = set()
        self._returning: set[BufferSlot] = set()
        self._quarantined: dict[BufferSlot, None] = {}  # in the order of their coming
        self._dropped: SimpleQueue[BufferSlot] = SimpleQueue()

    # -- its life ------------------------------------------------------------------------------------------------------
    def build(self) -> Failure | None:
        """Makes every handle and all memory, and maps them. After a failure nothing of it is left, and it may be tried
        again."""
        self._expect("not built", "build")
        slots: list[BufferSlot] = []
        failure = self._build(slots)
        if failure:
            _release_all(slots)
            return failure
        with self._lock:
            self._phase = "built"
            self._free = slots[::-1]  # slot 0 is lent first
        return None

    def _build(self, slots: list[BufferSlot]) -> Failure | None:
        """Appends what it makes to `slots`, the last slot perhaps without all of its lanes."""
        code, models = self.calbin.models()
        if failure := failed("models", code, self.library):
            return failure
        names = [model.name for model in models]
        for number in range(self.slots):
            lanes: dict[CalTaskKind, Lane] = {}
            slots.append(BufferSlot(number, self.generation.generation_id, MappingProxyType(lanes)))
            for kind, contract in self.generation.submodels.items():
                if (found := names.count(contract.exact_name)) != 1:
                    return Failure(
                        "models", text=f"{contract.exact_name} is there {found} times; expected once (§10.2)"
                    )
                index = names.index(contract.exact_name)
                made = make_lane(self.library, self.device, self.calbin, contract, index)
                if isinstance(made, Failure):
                    return made
                lanes[kind] = made
        return None

    def end(self) -> None:
        """Ends the generation (§5.1-8): no slot is lent any more, and those that are lent are in quarantine. Makes no
        call, so whoever ends it cannot be stuck in one (F36). Again is harmless."""
        with self._lock:
            self._phase = "retired"
            self._collect()
            for slot in (*self._leased, *self._returning):
                self._quarantined[slot] = None
            self._leased.clear()
            self._returning.clear()

    def retire(self) -> Failure | None:
        """`end`, and free slots are released, and of those in quarantine the lanes that the device cannot be using. The
        first release that failed; such a slot is kept in quarantine too. Again is harmless."""
        self.end()
        with self._lock:
            free, self._free = self._free, []
            doubtful = list(self._quarantined)
        failures = _release_all(free)
        failures |= {slot: failure for slot in doubtful if (failure := slot.release_idle())}
        with self._lock:
            self._quarantined.update(dict.fromkeys(failures))
        return first_failure(failures.values())

    # -- lending -------------------------------------------------------------------------------------------------------
    def lease(self) -> BufferLease:
        """The slot that was given back last. The rules have made sure that there is one."""
        self._expect("built", "lease")
        with self._lock:
            self._collect()
            if not self._free:
                raise PoolMisused(f"no slot is free; {self._where()}")
            slot = self._free.pop()
            self._leased.add(slot)
        return BufferLease(self, slot)

    def give_back(self, lease: BufferLease) -> Failure | None:
        """Undoes every slice, and checks that nothing is left sliced (FI15). The slot is free before this returns None,
        and in quarantine if it returns a failure. The lease is gone."""
        if lease._pool is not self:
            return lease._pool.give_back(lease)
        with self._lock:
            slot = lease.slot
            if slot in self._quarantined:  # its generation has ended: its handles are used no more
                lease._end()
                return Failure("give back", text=f"slot {slot.number} is in quarantine: its generation has ended")
            if slot not in self._leased:
                raise PoolMisused(f"slot {slot.number} is being given back already")
            self._leased.remove(slot)
            self._returning.add(slot)
        good = False
        try:
            failure = slot.undo()
            good = failure is None
        finally:
            overtaken = self._returned(lease, slot, good)
        return failure or overtaken

    def _returned(self, lease: BufferLease, slot: BufferSlot, good: bool) -> Failure | None:
        """The slot's place after its slices were undone; a failure if it went to quarantine meanwhile."""
        with self._lock:
            lease._end()
            if slot not in self._returning:
                return Failure("give back", text=f"slot {slot.number} was quarantined meanwhile")
            self._returning.remove(slot)
            if good:
                self._free.append(slot)
            else:
                self._quarantined[slot] = None
            return None

    def quarantine(self, lease: BufferLease) -> None:
        """At any time, also while another thread gives it back, and after `retire`: the pool of a newer generation puts
        it into quarantine in its own. The lease is gone."""
        with lease._pool._lock:
            lease._pool._put_away(lease.slot)
            lease._end()

    # -- quarantine ----------------------------------------------------------------------------------------------------
    def watch(self) -> int:
        """Fills the output of every slot in quarantine with a pattern, and says how many bytes these are.

        ONLY when the device is known to be done or reset: otherwise this would be a race with it."""
        slots = self.quarantined()
        for slot in slots:
            for lane in slot.lanes.values():
                lane.host_logits.fill(QUARANTINE_PATTERN)
            slot.watched = True
        return sum(lane.host_logits.nbytes for slot in slots for lane in slot.lanes.values())

    def late_writes(self) -> tuple[LateWrite, ...]:
        """What has changed since `watch` in the slots that were in quarantine then; the pattern itself is not seen."""
        changed = (
            LateWrite(slot.number, kind, int(np.count_nonzero(lane.host_logits != QUARANTINE_PATTERN)) * 2)
            for slot in self.quarantined()
            if slot.watched
            for kind, lane in slot.lanes.items()
        )
        return tuple(late for late in changed if late.changed_bytes)

    def quarantined(self) -> tuple[BufferSlot, ...]:
        """In the order of their coming."""
        with self._lock:
            self._collect()
            return tuple(self._quarantined)

    # -- counts --------------------------------------------------------------------------------------------------------
    def counts(self) -> PoolCounts:
        with self._lock:
            self._collect()
            lent, lost = [*self._leased, *self._returning], list(self._quarantined)
            total = sum(slot.byte_size for slot in (*self._free, *lent, *lost))
            return PoolCounts(len(self._free), len(lent), len(lost), total, sum(slot.byte_size for slot in lost))

    def abstract(self) -> dict[str, int]:
        """The counts in the rulebook's variables, of this pool's generation while it lives."""
        counts = self.counts()
        return {"free": counts.free, "lost_slots": counts.quarantined}

    # -- under the lock, or without it ---------------------------------------------------------------------------------
    def _expect(self, phase: str, what: str) -> None:
        with self._lock:
            if self._phase != phase:
                raise PoolMisused(f"{what}: the pool is {self._phase}; it must be {phase}")

    def _moved(self, lease: BufferLease) -> BufferLease:
        with self._lock:
            slot = lease.slot
            lease._end()
        return BufferLease(self, slot)

    def _put_away(self, slot: BufferSlot) -> None:
        self._leased.discard(slot)
        self._returning.discard(slot)
        self._quarantined[slot] = None

    def _collect(self) -> None:
        """Puts the slots of dropped leases into quarantine."""
        while True:
            try:
                slot = self._dropped.get_nowait()
            except Empty:
                return
            self._put_away(slot)

    def _lost(self, slot: BufferSlot) -> None:
        """A lease was dropped. Called by the garbage collector: no lock is taken."""
        if slot in self._quarantined:  # its generation ended while it was lent: that was known
            return
        self._dropped.put(slot)
        if self.on_drop:
            self.on_drop(slot)

    def _where(self) -> str:
        leased, returning, lost = len(self._leased), len(self._returning), len(self._quarantined)
        return f"of {self.slots}, {leased} are lent, {returning} being given back, {lost} in quarantine"


def _release_all(slots: Iterable[BufferSlot]) -> dict[BufferSlot, Failure]:
    """Releases all that can be; what failed, by slot."""
    failures = {slot: slot.release() for slot in slots}
    return {slot: failure for slot, failure in failures.items() if failure}
