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
from typing import Any

from attrs import define, field

from machines.errors import ErrorClass, classify, observed
from machines.protocol.effects import EFFECTS
from runtime.buffers import BufferPool, LeaseGone
from runtime.calrt import BufStatus
from runtime.generations import Generations
from runtime.golden import digest, golden_run
from runtime.job import InferenceRequest, JobContext
from runtime.kv import KvCoordinator
from runtime.lane import Lane
from runtime.logs import of_failure
from runtime.manifest import ManifestError, untrue_models
from runtime.prepare import outcome, program
from runtime.status import Failure, Status, StatusKind, failed, now_us

__all__ = ["DeviceCalls"]


@define(eq=False)
class DeviceCalls(Generations):
    """The calls, on what there is of the present generation. meanwhile: what can as well be done while the device
    works; it is called before each Wait()."""

    meanwhile: Callable[[], None] = lambda: None
    _said: dict[str, str] = field(factory=dict)  # by calbin: the digest of its first golden run in this process
    _kv_ids: dict[int, int] = field(factory=dict)  # CalRT's number of each of the host's sequences
    _next_kv_id: Iterator[int] = field(factory=lambda: itertools.count(1))

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
        if not context.reserved:  # it does not fit; the sequence is this job's since, and so nothing has changed
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
        if self.model is None or not self.model.same(context.model):
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
        _, models = self.calbin.models()
        differences = tuple(untrue_models(self.manifest, models))
        text = str(ManifestError(str(self.manifest.path), differences)) if differences else ""
        text = text or f"nothing differs from {self.manifest.path}"
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
        try:
            lane = self._lane(context)
        except LeaseGone:  # this agent stood still until the job's generation had ended: nothing is to be waited for
            return "error"
        self.meanwhile()
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
            return "ok"
        context.fails(Failure("GetStatus", 0, f"Wait() succeeded, but the status is {status!r}"))
        return "exception" if status == BufStatus.DONE_CCU_EXCEPTION else "error"

    def convert(self, job: Any) -> str:
        """Size, finite check, BF16 to FP32 into the job's own memory (§10.1)."""
        context: JobContext = job.tag
        began_us = now_us()
        failure = self._lane(context).read(len(context.request.values), context.logits)
        context.timings.postprocess_ms = (now_us() - began_us) / 1000
        return "invalid" if context.fails(failure) else "valid"

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
        """A new generation (§5.1-8)."""
        try:
            failure = self.begin_generation()
        except ManifestError as error:
            self.events.error("configure", str(error), stage="configure", generation=self.generation_id)
            return "artifact"
        if failure is None:
            return "ok"
        self.events.error("configure", str(failure), generation=self.generation_id, **of_failure(failure))
        return observed("configure", failure.code) if failure.code else "failed"

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

    def quarantine(self, context: JobContext) -> None:
        """The job's slot may still be the device's."""
        if context.lease is not None and context.lease.live:
            self._pool().quarantine(context.lease)

    def doubt(self, context: JobContext) -> None:
        """What the device holds for the job's sequence is not known any more."""
        if self.kv is not None and context.generation_id == self.generation_id:
            self.kv.mark_unknown(context.kv_id)

    # -- what there is -----------------------------------------------------------------------------------------------
    def _kv(self) -> KvCoordinator:
        assert self.kv is not None
        return self.kv

    def _pool(self) -> BufferPool:
        assert self.pool is not None
        return self.pool

    @staticmethod
    def _lane(context: JobContext) -> Lane:
        assert context.lease is not None
        return context.lease.lane(context.request.task)
