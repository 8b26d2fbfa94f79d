"""The rig: a device, a model and jobs made one by one, for experiments that misuse them on purpose.

Theory. An experiment needs jobs whose every step it controls, memory in which it can see the device write, and a device
that is healthy again afterwards. So each job has handles and memory of its own; memory is filled with a pattern before
it is given away, and what changes later was written by the device. Handles of jobs that may still run are parked, never
destroyed. Health is judged by results alone: a short golden run, and a deep one over a longer sequence, compared with
what the same device said when the experiments began.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np
from attrs import Factory, define, field, frozen

from machines.errors import classify
from runtime.calrt import BufStatus, Calbin, Device, Input, Kv, Library, Output, ReleasedHandle
from runtime.manifest import CalTaskKind, ModelGeneration, SubmodelContract

__all__ = ["DeviceTrouble", "Job", "Outcome", "Rig"]

GOLDEN_TOKENS, GOLDEN_DECODES = 16, 4
DEEP_TOKENS = 100  # longer than any golden run of a product would be; must fit into max_seq
END_BYTES = 64
RESETS_MAX = 3
SETTLE_FACTOR, SETTLE_S_MIN = 3.0, 0.002


class DeviceTrouble(RuntimeError):
    """A step that should have worked did not: which, and what CalRT returned."""

    def __init__(self, stage: str, code: int) -> None:
        self.stage, self.code = stage, code
        super().__init__(f"{stage}: {classify(code).name} ({code})" if code else stage)


def pattern(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """What memory holds before the device gets it: no two neighbours alike, so that no constant is taken for it."""
    return (np.arange(size, dtype=np.uint32) * 37 % 251).astype(np.uint8)


def _expect(stage: str, code: int) -> None:
    if code:
        raise DeviceTrouble(stage, code)


@frozen
class Outcome:
    """How a job ended. digest: of the last token's logits row; empty when it cannot be trusted."""

    code: int
    status: BufStatus | int
    digest: str

    @property
    def good(self) -> bool:
        return self.code == 0 and self.status == BufStatus.DONE


@define(eq=False)
class Job:
    """One submitted job with the handles and the memory that belong to it alone."""

    sequence: int
    input: Input
    output: Output
    logits: np.ndarray[Any, np.dtype[np.uint8]]
    row: slice  # bytes of the last token's row
    submit_code: int = 0
    submitted_at: float = 0.0  # time.monotonic, just before infer()
    ended_at: float = 0.0  # just after Wait()
    at_reset: bytes = b""  # the output, just after a reset had returned
    keep: list[Any] = field(factory=list)

    def snapshot(self) -> bytes:
        return self.logits.tobytes()

    def complete(self) -> bool:
        """Whether the device has written the end of the output."""
        return not self.snapshot().endswith(self.untouched_end())

    def untouched_end(self) -> bytes:
        """The last bytes of the output as they were before the job."""
        return pattern(self.logits.size)[-END_BYTES:].tobytes()

    def touched(self) -> bool:
        return bool((self.logits != pattern(self.logits.size)).any())


@define(eq=False)
class Rig:
    """One device with one model. Not thread-safe. As a context manager it opens the device and closes it.

    Methods raise DeviceTrouble when a step that must work for the experiment does not.
    """

    library: Library
    index: int
    calbin_path: str
    model: ModelGeneration
    device: Device = field(init=False)
    calbin: Calbin = field(init=False)
    kv: Kv = field(init=False)
    job_s: float = 0.0  # how long a deep run takes, measured by `learn`
    _models: dict[str, int] = Factory(dict)
    _references: dict[str, tuple[str, ...]] = Factory(dict)
    _parked: list[Any] = Factory(list)
    _sequence: int = 0

    # -- life -------------------------------------------------------------------------------------------------------
    def __enter__(self) -> Rig:
        code, calbin = self.library.calbin(self.calbin_path)
        _expect("load the calbin", code)
        assert calbin is not None
        self.calbin = calbin
        code, models = calbin.models()
        _expect("list the models", code)
        self._models = {m.name: i for i, m in enumerate(models)}
        code, device = self.library.device(self.index)
        _expect(f"open device {self.index}", code)
        assert device is not None
        self.device = device
        self.configure()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.settle()  # whatever still runs may write into memory that is about to be given back
        self.release_parked()
        self.device.release()
        self.calbin.release()

    def release_parked(self) -> None:
        """Give back all buffers and KvManagers; a device stays open for as long as one of them lives."""
        while self._parked:
            with suppress(ReleasedHandle):  # an experiment gave it back on purpose
                self._parked.pop().release()

    def configure(self) -> None:
        """Configure the device and make a KvManager for it."""
        _expect("configure", self.device.configure(self.calbin))
        code, kv = self.device.kv()
        _expect("create the KvManager", code)
        assert kv is not None
        self._parked.append(kv)
        self.kv = kv

    def learn(self) -> None:
        """What a healthy device says and how long that takes. Raises DeviceTrouble when it is not repeatable."""
        golden, deep = self.golden(), self.deep()
        golden_again, began = self.golden(), time.monotonic()
        again = (golden_again, self.deep())
        self.job_s = time.monotonic() - began
        if not (golden and deep and all(again)):
            raise DeviceTrouble("a plain job does not end well, before anything was provoked", 0)
        if (golden, deep) != again:
            raise DeviceTrouble("two runs of one prompt differ, so nothing can be compared", 0)
        self._references = {"golden": golden, "deep": deep}

    def recover(self) -> bool:
        """Reset until results are right again, at most RESETS_MAX times. False: only a power cycle helps."""
        self.settle()
        for _ in range(RESETS_MAX):
            try:
                _expect("reset", self.device.reset())
                self.configure()
                if self.is_right("golden") and self.is_right("deep"):
                    return True
            except DeviceTrouble:
                pass
            self.settle()
        return False

    # -- health -----------------------------------------------------------------------------------------------------
    def golden(self) -> tuple[str, ...]:
        """Digests of a fixed prefill and some decodes; empty when a job failed."""
        return self._run(GOLDEN_TOKENS, GOLDEN_DECODES)

    def deep(self) -> tuple[str, ...]:
        return self._run(self.deep_tokens, 1)

    def is_right(self, name: str) -> bool:
        """Whether `golden` or `deep` says what it said when the device was healthy."""
        return {"golden": self.golden, "deep": self.deep}[name]() == self._references[name]

    def _run(self, tokens: int, decodes: int) -> tuple[str, ...]:
        sequence, digests = self.new_sequence(), []
        try:
            for past, count in [(0, tokens)] + [(tokens + i, 1) for i in range(decodes)]:
                outcome = self.finish(self.submit(sequence, past, count))
                if not outcome.good:
                    return ()
                digests.append(outcome.digest)
            return tuple(digests)
        finally:
            self.kv.apply(sequence, 0)

    # -- jobs -------------------------------------------------------------------------------------------------------
    @property
    def deep_tokens(self) -> int:
        return min(DEEP_TOKENS, self.contract(CalTaskKind.PrefillIds).max_seq - 2)

    def contract(self, kind: CalTaskKind) -> SubmodelContract:
        return self.model.submodels[kind]

    def new_sequence(self) -> int:
        """A sequence id that nobody has used."""
        self._sequence += 1
        return self._sequence

    @staticmethod
    def tokens(past: int, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """What every sequence of the rig holds from position `past` on; [count], S32."""
        return (np.arange(past, past + count, dtype=np.int32) * 7 + 3) % 251

    def submit(
        self, sequence: int, past: int, count: int, claimed_past: int | None = None,
        logits: np.ndarray[Any, np.dtype[np.uint8]] | None = None,
        infer: Callable[[int, Input, Output], int] | None = None,
    ) -> Job:  # fmt: skip
        """A prefill (or, for one token after others, a decode) of `count` fixed tokens from position `past` on.

        claimed_past: what the CSRs say instead (a lie ends in a CCU exception); logits: memory to use for the output;
        infer: makes the call instead of `Device.infer`. The code of the call is in the job, not raised.
        """
        contract = self.contract(CalTaskKind.Decode if past and count == 1 else CalTaskKind.PrefillIds)
        job = self._prepared(contract, sequence, past, count, past if claimed_past is None else claimed_past, logits)
        model = self._models[contract.exact_name]
        call = infer or (lambda m, i, o: self.device.infer(self.calbin, m, i, o))
        job.submitted_at = time.monotonic()
        job.submit_code = call(model, job.input, job.output)
        return job

    def finish(self, job: Job) -> Outcome:
        """Wait, read the status, and give the slices back. The job must have been submitted with success."""
        _expect("infer", job.submit_code)
        code, _ = job.output.wait()
        job.ended_at = time.monotonic()
        status_code, status = job.output.get_status()
        _expect("get_status", status_code)
        outcome = Outcome(code, status, hashlib.sha256(job.logits[job.row].tobytes()).hexdigest())
        if outcome.good:
            for handle in (job.input, job.output):
                self._parked.remove(handle)
                handle.release()
        return outcome

    def settle(self) -> None:
        """Wait long enough for anything that still runs to be over."""
        time.sleep(max(SETTLE_S_MIN, SETTLE_FACTOR * self.job_s))

    def reserve(self, sequence: int, length: int) -> None:
        code, granted = self.kv.apply(sequence, length)
        _expect("KvManager::Apply", code)
        if not granted:
            raise DeviceTrouble(f"KvManager::Apply({sequence}, {length}) was refused", 0)

    def _prepared(
        self, contract: SubmodelContract, sequence: int, past: int, count: int, claimed: int,
        logits: np.ndarray[Any, np.dtype[np.uint8]] | None,
    ) -> Job:  # fmt: skip
        self.reserve(sequence, max(past, claimed) + count)  # so that only the past length is wrong
        model = self._models[contract.exact_name]
        code, given = self.device.input(self.calbin, model)
        _expect("create an input", code)
        code, taken = self.device.output(self.calbin, model)
        _expect("create an output", code)
        assert given is not None
        assert taken is not None
        tokens = self.tokens(past, count)
        positions = np.arange(past, past + count, dtype=np.int32)
        if logits is None:
            logits = np.empty(contract.logits.byte_size, np.uint8)
        logits[:] = pattern(logits.size)
        for tensor, values in ((contract.token_or_embed, tokens), (contract.position, positions)):
            _expect("map an input", given.map_buf(tensor.name, values))
        for tensor in (contract.token_or_embed, contract.position):
            _expect("slice an input", given.slice_tensor(tensor.name, 0, count))
        _expect("bind the sequence", given.bind_sequence(sequence))
        _expect("set the first CSR", given.set_csr(contract.csr_cur_seq, count))
        _expect("set the second CSR", given.set_csr(contract.csr_total_seq, claimed + count))
        _expect("map the output", taken.map_buf(contract.logits.name, logits))
        self._parked += [given, taken]
        row_bytes = contract.logits.byte_size // contract.logits_tile_d0
        row = (count - 1) % contract.logits_tile_d0
        row_of_tile = slice(row * row_bytes, (row + 1) * row_bytes)
        return Job(sequence, given, taken, logits, row_of_tile, keep=[tokens, positions])
