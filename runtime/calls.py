"""What each call of the protocol does: one method per effect of `machines.protocol.effects`.

Theory. A rule begins a call and another takes what it brought back. In between, here, the work is done with no lock of
ours held: CalRT is called, every code is looked at, the raw code is kept in the job's failure, and only its class is
reported (`machines.errors.observed`). Nothing here asks in which state anything is. Order matters at two places: a slot
is back in the pool before `undo` reports ok, because that report lets another job take it; and lengths change before
`commit` reports.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from attrs import define, field

from machines.errors import classify, observed
from machines.protocol.effects import EFFECTS
from machines.protocol.params import RESET_IS_HONEST, RESET_STOPS_DMA
from runtime.buffers import BufferPool, BufferSlot
from runtime.calrt import BufStatus, Calbin, Device, Handle, Library
from runtime.config import Config
from runtime.job import InferenceRequest, JobContext
from runtime.kv import KvCoordinator, KvSize
from runtime.lane import Lane
from runtime.logs import Events, of_failure
from runtime.manifest import CalTaskKind, Manifest, ManifestError, ModelGeneration, load_manifest, verify_loaded
from runtime.prepare import outcome, program
from runtime.status import Failure, failed, now_us

__all__ = ["DeviceCalls", "ExecutorError"]


GOLDEN_PROMPT = tuple(b"The quick brown fox jumps over the lazy dog.")
GOLDEN_DECODES = 4
WATCHED_POOLS = 4  # of ended generations, the last ones


class ExecutorError(RuntimeError):
    """The executor could not be started."""


@define(eq=False)
class DeviceCalls:
    """The executor's one device with everything of the present generation, and the calls made on it.

    kv, pool: None until the first generation is configured. generation_id counts the generations that were begun.
    """

    library: Library
    device: Device
    manifest: Manifest
    config: Config
    generation_id: int = 1
    model: ModelGeneration | None = None
    calbin: Calbin | None = None
    kv: KvCoordinator | None = None
    pool: BufferPool | None = None
    golden_digest: str = ""
    rung: Callable[[], int] = lambda: 0
    events: Events = field(factory=Events)
    on_violation: Callable[..., None] = lambda kind, **fields: None
    dropped: SimpleQueue[BufferSlot] = field(factory=SimpleQueue)  # of leases that nobody gave back: a bug of ours
    _pools: list[BufferPool] = field(factory=list)  # of every generation: what ended is alive, and never used again
    _written_late: set[tuple[int, int, CalTaskKind]] = field(factory=set)
    _handles: list[Handle] = field()  # likewise; the device is the last
    _kv_ids: dict[int, int] = field(factory=dict)
    _next_kv_id: Iterator[int] = field(factory=lambda: itertools.count(1))

    @_handles.default
    def _at_first(self) -> list[Handle]:
        return [self.device]

    @staticmethod
    def open(config: Config, events: Events) -> DeviceCalls:
        """The library, the manifest and the device. Nothing is configured. Raises NativeMissing, ManifestError or
        ExecutorError; then nothing is left open."""
        if ways := config.unproved():
            raise ExecutorError(f"policy {config.policy} is not proved sound: {'; or '.join(ways)} (§14)")
        library = Library.load(config.library or None)
        manifest = load_manifest(Path(config.manifest))
        code, calbin = library.calbin(manifest.calbin_path)
        if calbin is None:
            raise ExecutorError(f"{manifest.calbin_path}: {failed('load the calbin', code, library)}")
        with calbin:
            verify_loaded(manifest, calbin)
        code, device = library.device(config.device)
        if device is None:
            raise ExecutorError(f"device {config.device} does not open: {failed('open', code, library)}")
        return DeviceCalls(library, device, manifest, config, events=events)

    def table(self) -> Mapping[str, Callable[[Any], str]]:
        """Per effect its call, for an element whose `tag` is the job's context, or the sequence's id."""
        return {effect.name: getattr(self, effect.name) for effect in EFFECTS}

    # -- a job -------------------------------------------------------------------------------------------------------
    def impossible(self, request: InferenceRequest) -> str | None:
        """Why the request can never be served, whatever is freed (F29)."""
        return self._kv().impossible(request.past_len + len(request.values))

    def reserve(self, job: Any) -> str:
        """canAllocate, then one Apply (§7)."""
        context: JobContext = job.tag
        context.generation_id = self.generation_id
        seq_id = context.request.seq_id
        if context.request.past_len == 0:  # a sequence that begins has an id that was never used
            self._kv_ids[seq_id] = next(self._next_kv_id)
        context.kv_id = self._kv_ids[seq_id]
        if mismatch := self._kv().mismatch(context.kv_id, context.request.past_len):
            context.fails(Failure("past_len", 0, mismatch))
            return "ok"  # `prepare` refuses it, and CalRT is not called: Apply would change what is committed
        granted, failure = self._kv().reserve(context.kv_id, context.target_len)
        context.fails(failure)
        context.reserved = granted
        return "ok" if granted else "refused"

    def unreserve(self, job: Any) -> str:
        context: JobContext = job.tag
        if not context.reserved:
            return "ok"
        failure = self._kv().unreserve(context.kv_id, context.request.past_len)
        return "failed" if context.fails(failure) else "ok"

    def prepare(self, job: Any) -> str:
        """Take a slot, copy in, bind, slice, CSRs (§6.3)."""
        context: JobContext = job.tag
        request = context.request
        context.timings.reach("admitted")
        context.lease = self._pool().lease()
        if mismatch := self._kv().mismatch(context.kv_id, request.past_len):
            context.fails(Failure("past_len", 0, mismatch))
            return "request"
        began_us = now_us()
        failure = program(context.lease.lane(request.task), context.kv_id, request.values, request.past_len)
        context.timings.h2d_ms = (now_us() - began_us) / 1000
        if failure:
            context.fails(failure)
        else:
            context.timings.reach("queued")
        return outcome(failure)

    def infer(self, job: Any) -> str:
        context: JobContext = job.tag
        code = self._lane(context).infer()
        context.fails(failed("infer", code, self.library))
        if code == 0:
            context.timings.reach("submitted")
        return observed("infer", code)

    def wait(self, job: Any) -> str:
        """Wait() and GetStatus(), judged together (§6.5): success is both."""
        context: JobContext = job.tag
        lane = self._lane(context)
        code, stamps = lane.output.wait()
        if stamps.end_ns:  # 0: the shim refused, and CalRT was not called
            context.timings.waited(stamps.begin_ns, stamps.end_ns, time.monotonic_ns())
        if code:
            context.fails(failed("Wait", code, self.library))
            return observed("wait", code)
        status_code, status = lane.output.get_status()
        if status_code:
            context.fails(failed("GetStatus", status_code, self.library))
            return "error"
        if status == BufStatus.DONE:
            return "error" if context.fails(self._judged(context, lane)) else "ok"
        context.fails(Failure("GetStatus", 0, f"Wait() succeeded, but the status is {status!r}"))
        return "exception" if status == BufStatus.DONE_CCU_EXCEPTION else "error"

    @staticmethod
    def _judged(context: JobContext, lane: Lane) -> Failure | None:
        """Size, finite check, BF16 to FP32 into the job's own memory (§10.1).

        Before "ok" is reported, because that report lets the next job onto the device: one whose output is invalid is
        broken, and what it would compute next must not be delivered."""
        began_us = now_us()
        failure = lane.read(len(context.request.values), context.logits)
        context.timings.postprocess_ms = (now_us() - began_us) / 1000
        return failure

    def convert(self, job: Any) -> str:
        """Nothing is left to do: the output was judged before `wait` reported (see `_judged`)."""
        return "valid"

    def commit(self, job: Any) -> str:
        context: JobContext = job.tag
        failure = self._kv().commit(context.kv_id, context.target_len)
        return "failed" if context.fails(failure) else "ok"

    def undo(self, job: Any) -> str:
        """Slices undone and checked; the slot is in the pool again before this says ok (FI15)."""
        context: JobContext = job.tag
        assert context.lease is not None
        failure = self._pool().give_back(context.lease)
        context.lease = None
        return "failed" if context.fails(failure) else "ok"

    # -- a sequence --------------------------------------------------------------------------------------------------
    def remove(self, sequence: Any) -> str:
        failure = self._kv().remove(self._kv_ids[sequence.tag])
        if failure:
            self.events.warning("remove", str(failure), sequence=sequence.tag, **of_failure(failure))
        return "failed" if failure else "ok"

    def forget(self, seq_id: int) -> None:
        """The host's number of a sequence means nothing any more."""
        self._kv_ids.pop(seq_id, None)

    # -- the device --------------------------------------------------------------------------------------------------
    def reset(self, nothing: Any) -> str:
        """The present rung of the ladder (§9.2)."""
        self._release_ended()
        name = self.config.rungs[min(self.rung(), len(self.config.rungs) - 1)]
        code = int(getattr(self.device, name)())
        self._watch_ended(is_done=code == 0)
        known = classify(code).name
        self.events.warning(
            "reset", f"{name} returned {known}", stage=name, code=code, code_name=known, generation=self.generation_id
        )
        return "failed" if code else "ok"

    def configure(self, nothing: Any) -> str:
        """A new Calbin, KvManager and pool; nothing of the generation before is used again (§5.1-8)."""
        try:
            failure = self._configure()
        except ManifestError as error:
            self.events.error("configure", str(error), stage="configure", generation=self.generation_id)
            return "artifact"
        if failure is None:
            return "ok"
        self.events.error("configure", str(failure), generation=self.generation_id, **of_failure(failure))
        kind = observed("infer", failure.code) if failure.code else "failed"
        return "artifact" if kind in ("artifact", "request") else "failed"

    def _configure(self) -> Failure | None:
        self._release_ended()
        if self.calbin is not None:  # a device that was drained and not reset is configured still
            code = self.device.reset_configuration()
            if failure := failed("reset the configuration", code, self.library):
                return failure
        code, calbin = self.library.calbin(self.manifest.calbin_path)
        if calbin is None:
            return failed("load the calbin", code, self.library)
        model = verify_loaded(self.manifest, calbin, self.generation_id)
        if failure := failed("configure", self.device.configure(calbin), self.library):
            return failure
        if self.config.inflight > 1 and (code := self.device.enable_parallel_mode(True)):
            return failed("enable parallel mode", code, self.library)
        code, manager = self.device.kv()
        if manager is None:
            return failed("create the KvManager", code, self.library)
        size = KvSize.of(manager)
        if isinstance(size, Failure):
            return size
        pool = BufferPool(self.library, self.device, calbin, model, self.config.slots + 1, self.dropped.put)
        if failure := pool.build():
            return failure
        self._pools.append(pool)
        self._handles[:0] = [manager, calbin]
        max_seq = next(iter(model.submodels.values())).max_seq
        self.kv = KvCoordinator(manager, size, max_seq, self.config.sequences_max)
        self.calbin, self.pool, self.model = calbin, pool, model  # the model last: with it, requests are looked at
        return None

    def golden(self, nothing: Any) -> str:
        """A fixed prefill and greedy decodes, compared by digest with what this model said before (§9.2)."""
        digest = hashlib.sha256()
        number = self.generation_id
        if failure := self._golden_run(digest):
            self.events.error("golden", str(failure), generation=number, **of_failure(failure))
            return "failed"
        said = digest.hexdigest()
        if not self.golden_digest:
            self.golden_digest = said
            self.events.warning("golden", f"digest {said}; there is none to compare it with", generation=number)
        if said != self.golden_digest:
            self.events.error("golden", f"digest {said}; it should be {self.golden_digest}", generation=number)
            return "failed"
        self.events.info("golden", "passed", generation=number)
        return "passed"

    def _golden_run(self, digest: Any) -> Failure | None:
        kv, kv_id = self._kv(), next(self._next_kv_id)
        tokens, past = np.array(GOLDEN_PROMPT, np.int32), 0
        for _ in range(1 + GOLDEN_DECODES):
            granted, failure = kv.reserve(kv_id, past + len(tokens))
            if not granted:
                return failure or Failure("golden", 0, "no KV for the golden run")
            logits = self._one_by_one(kv_id, tokens, past)
            if isinstance(logits, Failure):
                return logits
            digest.update(logits.tobytes())
            past, tokens = past + len(tokens), np.array([logits.argmax()], np.int32)
        return kv.remove(kv_id)

    def _one_by_one(self, kv_id: int, tokens: Any, past: int) -> Failure | np.ndarray[Any, np.dtype[np.float32]]:
        """One call from the first step to the last on this thread; its slot is kept when it fails on the way."""
        lease = self._pool().lease()
        lane = lease.lane(CalTaskKind.Decode if past else CalTaskKind.PrefillIds)
        logits = np.empty(lane.contract.vocabulary, np.float32)
        failure = program(lane, kv_id, tokens, past) or failed("infer", lane.infer(), self.library) or _done(lane)
        failure = failure or lane.read(len(tokens), logits) or self._kv().commit(kv_id, past + len(tokens))
        if failure:
            self._pool().quarantine(lease)
            return failure
        return self._pool().give_back(lease) or logits

    def end_generation(self) -> None:
        """What belongs to the generation that ends is kept, and never used again."""
        self.generation_id += 1
        if self.pool is not None:
            self.pool.end()
        if self.kv is not None:
            self.kv.retire()

    def _release_ended(self) -> None:
        """Gives back the slots that were free when their generation ended. A call of the device's, under its watchdog:
        whoever ended the generation may be the clock, and must not be stuck in CalRT."""
        for pool in self._pools:
            pool.retire()

    def _watch_ended(self, is_done: bool) -> None:
        """Report what was written into memory of ended generations that nothing should write any more. is_done: the
        device was reset; if that stops DMA and is no lie, as the facts say, that memory gets a pattern now."""
        for pool in self._pools[-WATCHED_POOLS:]:
            for late in pool.late_writes():
                place = (pool.generation.generation_id, late.slot, late.kind)
                if place not in self._written_late:
                    self._written_late.add(place)
                    where = {"generation": place[0], "slot": late.slot, "task": late.kind.name}
                    self.on_violation("late write", **where, changed_bytes=late.changed_bytes)
            if is_done and all(self.config.facts[fact.name] for fact in (RESET_STOPS_DMA, RESET_IS_HONEST)):
                pool.watch()

    def quarantine(self, context: JobContext) -> None:
        """The job's slot may still be the device's."""
        if context.lease is not None and context.lease.live:
            self._pool().quarantine(context.lease)

    def doubt(self, context: JobContext) -> None:
        """What the device holds for the job's sequence is not known any more."""
        if self.kv is not None and context.generation_id == self.generation_id:
            self.kv.mark_unknown(context.kv_id)

    def close(self) -> bool:
        """Give back what is not in quarantine. False: something could not be released; it lives on, and a second call
        tries that again."""
        self._watch_ended(is_done=False)
        self._release_ended()
        self._handles = [handle for handle in self._handles if handle.release()]
        return not self._handles

    # -- what there is -----------------------------------------------------------------------------------------------
    @property
    def pools(self) -> tuple[BufferPool, ...]:
        """Of every generation, the present one last."""
        return tuple(self._pools)

    def _kv(self) -> KvCoordinator:
        assert self.kv is not None
        return self.kv

    def _pool(self) -> BufferPool:
        assert self.pool is not None
        return self.pool

    def _calbin(self) -> Calbin:
        assert self.calbin is not None
        return self.calbin

    @staticmethod
    def _lane(context: JobContext) -> Lane:
        assert context.lease is not None
        return context.lease.lane(context.request.task)


def _done(lane: Lane) -> Failure | None:
    """Wait() and GetStatus() of a golden run."""
    code, _ = lane.output.wait()
    if failure := failed("Wait", code, lane.library):
        return failure
    code, status = lane.output.get_status()
    if failure := failed("GetStatus", code, lane.library):
        return failure
    return None if status == BufStatus.DONE else Failure("GetStatus", 0, f"the status is {status!r}")
