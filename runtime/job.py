"""One inference job as its client and the calls see it (§4.2): request, context, handle, result.

Theory. What may happen to a job is its record in the engine; here is only its payload. The context belongs to one
actor at a time (the rules hand it on), so it has no lock. The handle belongs to the client: it is resolved once, by
whoever made the step that claimed the answer, and can be waited for by any number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import index
from typing import Any, NamedTuple

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from runtime.buffers import BufferLease
from runtime.gate import Gate
from runtime.manifest import CalTaskKind, ModelGeneration
from runtime.status import Failure, JobTimings, Status, not_a_deadline, now_us

__all__ = ["Claim", "InferenceRequest", "InferenceResult", "JobContext", "JobHandle"]

NO_VALUES = np.empty(0, np.int32)
NO_LOGITS = np.empty(0, np.float32)


@frozen(eq=False)
class InferenceRequest:
    """What a client asks for: `values` on sequence `seq_id`, whose first `past_len` tokens the device holds already.

    values: [tokens] S32, or [tokens, hidden] BF16 bits for PrefillEmbeds. deadline_us: on the monotonic clock
    (`runtime.status.now_us`); None: none of its own. enqueue() takes a copy; what the client does with its own
    afterwards changes nothing.
    """

    request_id: int
    seq_id: int
    task: CalTaskKind
    past_len: int
    values: NDArray[Any]
    deadline_us: int | None = None

    def owned(self) -> InferenceRequest:
        """A copy for the executor, of a request that was checked: an array whatever held the values, Python's integers
        whatever the numbers were. Raises TypeError where request_id is none."""
        deadline_us = None if self.deadline_us is None else index(self.deadline_us)
        return InferenceRequest(
            index(self.request_id), index(self.seq_id), self.task, index(self.past_len), np.array(self.values),
            deadline_us,
        )  # fmt: skip


@frozen(eq=False)
class InferenceResult:
    """The last token's logits, [vocabulary] FP32; None unless the status is OK."""

    status: Status
    logits: NDArray[np.float32] | None
    timings: JobTimings


class JobHandle:
    """A job that was accepted. Thread-safe."""

    def __init__(self, job_id: int, cancel: Callable[[], bool]) -> None:
        self.job_id = job_id
        self._cancel = cancel
        self.entered = Gate()  # the executor's: it is in the submit queue, or answered and rolled back
        self._resolved = Gate()
        self._result: InferenceResult | None = None
        self._mu = threading.Lock()

    def cancel(self) -> bool:
        """Claim the answer as Cancelled, at once; what the device does goes its own way. False: it had its answer."""
        return self._cancel()

    def let_go(self) -> None:
        """The executor's: there is nothing left to cancel."""
        self._cancel = _nothing_to_cancel

    def done(self) -> bool:
        """Whether its client can have the result."""
        return self._resolved.is_open

    @property
    def settled(self) -> InferenceResult | None:
        """The executor's: the result, perhaps before its client is told."""
        return self._result

    def wait_until(self, deadline_us: int | None) -> InferenceResult | None:
        """The result, or None when it is not there by the deadline (monotonic, us). Returning early cancels nothing.

        Raises ValueError for what is no deadline (F39)."""
        if wrong := not_a_deadline(deadline_us):
            raise ValueError(wrong)
        if not self._resolved.is_open:
            timeout_s = None if deadline_us is None else max(0, deadline_us - now_us()) / 1e6
            if not self._resolved.wait(timeout_s if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)):
                return None
        return self._result

    def settle(self, result: InferenceResult) -> bool:
        """The executor's: the first result counts. False: there was one. Nobody is woken for it before `tell`."""
        with self._mu:
            if self._result is not None:
                return False
            self._result = result
        return True

    def tell(self) -> None:
        """The executor's, after `settle`: who waits for the result is woken."""
        self._resolved.open()


def _nothing_to_cancel() -> bool:
    return False


class Claim(NamedTuple):
    """Who claimed a job's answer, and what was known in that moment. rule: its id, or why. call: in which one the
    job was (machines' JobCall; 0: in none)."""

    rule: str
    call: int
    failure: Failure | None


@define(eq=False)
class JobContext:
    """A job's payload (§4.2). record: its element in the engine, while there is one; kv_id: CalRT's KvSeqId of its
    sequence in this generation; failure: the first one; claim: of its answer, None while it is pending; ended: it was
    counted; arrived: it came into the admission line; reserved: Apply granted its target length; model: that the
    request was checked for."""

    job_id: int
    request: InferenceRequest
    handle: JobHandle
    logits: NDArray[np.float32]
    model: ModelGeneration
    record: Any = None
    generation_id: int = 0
    kv_id: int = 0
    lease: BufferLease | None = None
    failure: Failure | None = None
    claim: Claim | None = None
    ended: bool = False
    arrived: bool = False
    reserved: bool = False
    timings: JobTimings = field(factory=JobTimings)

    @property
    def target_len(self) -> int:
        """The sequence's length when this job has been committed."""
        return self.request.past_len + len(self.request.values)

    def let_go(self) -> None:
        """Its record is gone: what is large goes, too (F64), and no ring is left (record and context, handle and
        context) that only Python's collector would take apart."""
        asked = self.request
        self.request = InferenceRequest(
            asked.request_id, asked.seq_id, asked.task, asked.past_len, NO_VALUES, asked.deadline_us
        )
        self.logits = NO_LOGITS
        self.handle.let_go()
        self.record = None

    def fails(self, failure: Failure | None) -> Failure | None:
        """Remember the first failure; hands its argument on."""
        if self.failure is None:
            self.failure = failure
        return failure
