"""What each call of the protocol does: one method per effect of `machines.protocol.effects`.

Theory. A rule begins a call and another takes what it brought back. In between, here, the work is done with no lock of
ours held: CalRT is called, every code is looked at, the raw code is kept in the job's failure, and only its class is
reported (`machines.errors.observed`). Nothing here asks in which state anything is. Order matters at two places: a slot
is back in the pool before `undo` reports ok, because that report lets another job take it; and lengths change before
`commit` reports.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from attrs import define, field, frozen

from machines.errors import ErrorClass, classify, observed
from machines.protocol.effects import EFFECTS
from machines.protocol.params import RESET_IS_HONEST, RESET_STOPS_DMA
from runtime.buffers import BufferPool, BufferSlot
from runtime.calrt import BufStatus, Calbin, Device, Handle, Library
from runtime.config import Config
from runtime.golden import digest, golden_run
from runtime.job import InferenceRequest, JobContext
from runtime.kv import KvCoordinator, KvSize
from runtime.lane import Lane
from runtime.logs import Events, of_failure
from runtime.manifest import CalTaskKind, Manifest, ManifestError, ModelGeneration, load_manifest, verify_loaded
from runtime.prepare import outcome, program
from runtime.status import Failure, Status, StatusKind, failed, now_us

__all__ = ["DeviceCalls", "ExecutorError"]


WATCHED_POOLS = 4  # of ended generations, the last ones


class ExecutorError(RuntimeError):
    """The executor could not be started."""


@frozen
class _Generation:
    """What was made for one generation: its pool, its KvManager and its Calbin."""

    pool: BufferPool
    handles: list[Handle]

    @property
    def in_doubt(self) -> bool:
        """Something of it is lent, or in quarantine."""
        counts = self.pool.counts()
        return bool(counts.leased or counts.quarantined)

    def release(self) -> bool:
        """Everything; False: some of it is still held, and a second call tries that again."""
        self.handles[:] = [handle for handle in self.handles if handle.release()]
        return not self.handles


def checked(library: Library, path: Path) -> Manifest:
    """A manifest that is sound, and true of its calbin as CalRT loads it. The device is not touched. Raises
    ManifestError or ExecutorError."""
    manifest = load_manifest(path)
    code, calbin = library.calbin(manifest.calbin_path)
    if calbin is None:
        raise ExecutorError(f"{manifest.calbin_path}: {failed('load the calbin', code, library)}")
    with calbin:
        verify_loaded(manifest, calbin)
    return manifest


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
    rung: Callable[[], int] = lambda: 0
    fallback: Callable[[], bool] = lambda: False
    events: Events = field(factory=Events)
    on_violation: Callable[..., None] = lambda kind, **fields: None
    dropped: SimpleQueue[BufferSlot] = field(factory=SimpleQueue)  # of leases that nobody gave back: a bug of ours
    features_off: dict[CalTaskKind, Failure] = field(factory=dict)  # of this generation (§8, codes 27 and 29)
    _asked: Manifest | None = None  # what a planned switch goes to
    _previous: Manifest | None = None  # what a rollback goes to
    _said: dict[str, str] = field(factory=dict)  # by calbin: the digest of its first golden run in this process
    _recorded: bool = False  # what differs from the manifest was looked up in this generation
    _generations: list[_Generation] = field(factory=list)  # the present one last; of the others what is in doubt
    _begun: list[Handle] = field(factory=list)  # of a configuration that is not complete
    _written_late: set[tuple[int, int, CalTaskKind]] = field(factory=set)
    _closed: bool = False
    _kv_ids: dict[int, int] = field(factory=dict)
    _next_kv_id: Iterator[int] = field(factory=lambda: itertools.count(1))

    @staticmethod
    def open(config: Config, events: Events) -> DeviceCalls:
        """The library, the manifest and the device. Nothing is configured. Raises NativeMissing, ManifestError or
        ExecutorError; then nothing is left open."""
        if ways := config.unproved():
            raise ExecutorError(f"policy {config.policy} is not proved sound: {'; or '.join(ways)} (§14)")
        library = Library.load(config.library or None)
        manifest = checked(library, Path(config.manifest))
        code, device = library.device(config.device)
        if device is None:
            raise ExecutorError(f"device {config.device} does not open: {failed('open', code, library)}")
        return DeviceCalls(library, device, manifest, config, events=events)

    def table(self) -> Mapping[str, Callable[[Any], str]]:
        """Per effect its call, for an element whose `tag` is the job's context, or the sequence's id."""
        return {effect.name: getattr(self, effect.name) for effect in EFFECTS}

    # -- a job -------------------------------------------------------------------------------------------------------
    def impossible(self, request: InferenceRequest) -> Status | None:
        """Why the request cannot be served in this generation, whatever is freed (F29, §8)."""
        if off := self.features_off.get(request.task):
            text = f"{request.task.name} is switched off for this generation: {off}"
            return Status(kind=StatusKind.NOT_SUPPORTED, text=text)
        if why := self._kv().impossible(request.past_len + len(request.values)):
            return Status(kind=StatusKind.RESOURCE_EXHAUSTED, text=why)
        return None

    def reserve(self, job: Any) -> str:
        """canAllocate, then one Apply (§7)."""
        context: JobContext = job.tag
        context.generation_id = self.generation_id
        seq_id = context.request.seq_id
        if context.request.past_len == 0:  # a sequence that begins has an id that was never used
            self._kv_ids[seq_id] = next(self._next_kv_id)
        context.kv_id = self._kv_ids[seq_id]
        if unfit := self._unfit(context):
            context.fails(unfit)
            return "ok"  # `prepare` refuses it, and CalRT is not called: Apply would change what is committed
        granted, failure = self._kv().reserve(context.kv_id, context.target_len)
        context.reserved = granted
        if context.fails(failure):
            return "failed"
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
        if unfit := self._unfit(context):
            context.fails(unfit)
            return "request"
        began_us = now_us()
        failure = program(context.lease.lane(request.task), context.kv_id, request.values, request.past_len)
        context.timings.h2d_ms = (now_us() - began_us) / 1000
        if failure:
            self._fails(context, failure)
        else:
            context.timings.reach("queued")
        return outcome(failure)

    def _unfit(self, context: JobContext) -> Failure | None:
        """What was true when the request was checked and may not be any more."""
        if self.model is None or self.model.calbin_sha256 != context.calbin_sha256:
            return Failure("model", 0, "the model was switched after the request had been checked")
        mismatch = self._kv().mismatch(context.kv_id, context.request.past_len)
        return Failure("past_len", 0, mismatch) if mismatch else None

    def _fails(self, context: JobContext, failure: Failure | None) -> Failure | None:
        """A failure of a call about a job, with what §8 wants done besides the rules: a feature that this runtime does
        not have is switched off, and for a request error it is recorded what differs from the manifest."""
        if failure and failure.known.kind is ErrorClass.Programming:
            self.features_off.setdefault(context.request.task, failure)
            text = f"{context.request.task.name} is switched off for this generation"
            self.events.error("feature off", text, generation=self.generation_id, **of_failure(failure))
        if failure and failure.code and failure.known.kind is ErrorClass.Request:
            self._record_differences(failure)
        return context.fails(failure)

    def _record_differences(self, failure: Failure) -> None:
        """Once a generation: what CalRT says of the calbin now, against the manifest."""
        if self._recorded or self.calbin is None:
            return
        self._recorded = True
        try:
            verify_loaded(self.manifest, self.calbin)
            text = f"nothing differs from {self.manifest.path}"
        except ManifestError as error:
            text = str(error)
        self.events.warning("manifest", text, generation=self.generation_id, **of_failure(failure))

    def infer(self, job: Any) -> str:
        context: JobContext = job.tag
        code = self._lane(context).infer()
        self._fails(context, failed("infer", code, self.library))
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
            self._fails(context, failed("Wait", code, self.library))
            return observed("wait", code)
        status_code, status = lane.output.get_status()
        if status_code:
            self._fails(context, failed("GetStatus", status_code, self.library))
            return observed("wait", status_code)
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
        return observed("reset", code)

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
        return observed("configure", failure.code) if failure.code else "failed"

    def ask(self, manifest: Manifest) -> None:
        """The next generation is to be of this model (a planned switch)."""
        self._asked = manifest

    def _choose_model(self) -> None:
        """The model that was asked for; or, when the rules have used up their fallback, the one before."""
        present, asked, self._asked = self.manifest, self._asked, None
        if self.fallback():
            if asked is not None:
                self.manifest, self._previous = asked, present
        elif self._previous is not None and asked is None:
            self.manifest, self._previous = self._previous, None
        if self.manifest is not present:
            text = f"the model is {self.manifest.path}, no longer {present.path}"
            self.events.warning("model", text, generation=self.generation_id)

    def _configure(self) -> Failure | None:
        self._choose_model()
        self._release_ended()
        if self.calbin is not None:  # a device that was drained and not reset is configured still
            code = self.device.reset_configuration()
            if failure := failed("reset the configuration", code, self.library):
                return failure
        code, calbin = self.library.calbin(self.manifest.calbin_path)
        if calbin is None:
            return failed("load the calbin", code, self.library)
        self._begun.insert(0, calbin)
        model = verify_loaded(self.manifest, calbin, self.generation_id)
        if failure := failed("configure", self.device.configure(calbin), self.library):
            return failure
        if self.config.inflight > 1 and (code := self.device.enable_parallel_mode(True)):
            return failed("enable parallel mode", code, self.library)
        code, manager = self.device.kv()
        if manager is None:
            return failed("create the KvManager", code, self.library)
        self._begun.insert(0, manager)
        size = KvSize.of(manager)
        if isinstance(size, Failure):
            return size
        pool = BufferPool(self.library, self.device, calbin, model, self.config.slots + 1, self.dropped.put)
        if failure := pool.build():
            return failure
        self._generations.append(_Generation(pool, self._begun))
        self._begun = []
        max_seq = next(iter(model.submodels.values())).max_seq
        self.kv = KvCoordinator(manager, size, max_seq, self.config.sequences_max)
        self.calbin, self.pool, self.model = calbin, pool, model  # the model last: with it, requests are looked at
        return None

    def golden(self, nothing: Any) -> str:
        """A fixed prefill and greedy decodes, compared by digest with what this model has to say (§9.2)."""
        number, manifest = self.generation_id, self.manifest
        rows = golden_run(self._pool(), self._kv(), next(self._next_kv_id))
        if isinstance(rows, Failure):
            self.events.error("golden", str(rows), generation=number, **of_failure(rows))
            return observed("golden", rows.code) if rows.code else "failed"
        said = digest(rows)
        known = manifest.golden_sha256 or self._said.setdefault(manifest.calbin_sha256, said)
        if said != known:
            self.events.error("golden", f"digest {said}; it should be {known}", generation=number)
            return "failed"
        if not manifest.golden_sha256:
            text = f"digest {said}: {manifest.path} has no golden_sha256, so the first run of this process counts"
            self.events.warning("golden", text, generation=number)
        self.events.info("golden", "passed", generation=number)
        return "passed"

    def end_generation(self) -> None:
        """What belongs to the generation that ends is kept, and never used again."""
        self.generation_id += 1
        self.features_off.clear()
        self._recorded = False
        if self.pool is not None:
            self.pool.end()
        if self.kv is not None:
            self.kv.retire()

    def _release_ended(self) -> None:
        """Gives back what was free when its generation ended. A call of the device's, under its watchdog: whoever ended
        the generation may be the clock, and must not be stuck in CalRT."""
        for generation in self._generations:
            generation.pool.retire()
        self._generations = [g for g in self._generations if g.in_doubt or not g.release()]

    def _watch_ended(self, is_done: bool) -> None:
        """Report what was written into memory of ended generations that nothing should write any more. is_done: the
        device was reset; if that stops DMA and is no lie, as the facts say, that memory gets a pattern now."""
        for pool in self.pools[-WATCHED_POOLS:]:
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
        """Give back what is not in quarantine, which is kept for ever. False: something else could not be released; it
        lives on, too, and a second call tries that again."""
        self._watch_ended(is_done=False)
        self._release_ended()
        self._generations = [g for g in self._generations if not g.release() or g.in_doubt]
        self._begun = [handle for handle in self._begun if handle.release()]
        self._closed = self._closed or not self.device.release()
        return self._closed and not self._begun and not any(g.handles for g in self._generations)

    # -- what there is -----------------------------------------------------------------------------------------------
    @property
    def pools(self) -> tuple[BufferPool, ...]:
        """Of every generation, the present one last."""
        return tuple(generation.pool for generation in self._generations)

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
