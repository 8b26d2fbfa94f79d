"""The language model by straight code: one call after the other, no executor, no thread, nothing shared.

Theory. This is the shortest right use of the device boundary. It owns one device, makes each submodel's buffers once,
and for every call does: Apply, copy in, bind, slices, CSRs, infer, Wait, status and size, logits, slices undone (§6.3,
§6.4, §6.5). It checks every code and stops at the first that is not success. What the executor will do with threads and
many jobs must yield the same tokens; until then this is how we know that the boundary carries a model.

A call that failed half way leaves buffers half programmed, or the device at work in our memory. Straight code does not
recover: then nothing but `close` is allowed, which resets the device before it lets go of that memory.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from machines.errors import Code
from runtime.calrt import BufStatus, Handle, Library
from runtime.lane import HOST_TYPES, Lane, first_failure, make_lane, nothing
from runtime.manifest import CalTaskKind, Manifest, SubmodelContract, verify
from runtime.prepare import program
from runtime.status import Failure, failed

__all__ = ["DeviceFailed", "Refused", "Straight"]

S32 = np.iinfo(np.int32)

T = TypeVar("T")
H = TypeVar("H", bound=Handle)


class Refused(ValueError):
    """The request cannot be: no token, too many of them, a wrong shape. No CalRT call was made for it."""


class DeviceFailed(RuntimeError):
    """A CalRT call did not succeed. stage: which call, on what; code: what it returned (§8), None where it has none."""

    def __init__(self, stage: str, code: Code | None, more: str = "") -> None:
        self.stage, self.code = stage, code
        told = [f"{code.number} {code.name} ({code.kind.name})"] if code else []
        super().__init__(f"{stage}: {': '.join([*told, more] if more else told)}")


def check(failure: Failure | None) -> None:
    """Raises DeviceFailed unless there is no failure."""
    if failure:
        raise DeviceFailed(failure.stage, failure.known if failure.code else None, failure.text)


def made(stage: str, result: tuple[int, T | None], library: Library) -> T:
    """The handle or value of a call that returns one; raises DeviceFailed."""
    code, value = result
    if code != 0 or value is None:
        check(nothing(stage, code, library))
    assert value is not None
    return value


def run(lane: Lane) -> None:
    """infer, Wait, status (§6.4, §6.5). When it raises, the device may be at work in the lane's memory."""
    library = lane.library
    check(failed("infer", lane.infer(), library))
    made("wait", lane.output.wait(), library)
    status = made("status", lane.output.get_status(), library)
    if status != BufStatus.DONE:
        raise DeviceFailed("status", None, f"{status!r} after a Wait that succeeded; it must be DONE")


class Straight:
    """A language model on device `index`, as `manifest` says. A context manager.

    Raises ManifestError when the calbin or library is not as the manifest says (nothing has been configured then), and
    DeviceFailed when a call fails. The methods that return logits return one row, [vocabulary] FP32, which is
    overwritten by the next call.
    """

    def __init__(self, library: Library, manifest: Manifest, index: int = 0) -> None:
        self.library, self.manifest = library, manifest
        self.lengths: dict[int, int] = {}  # of each sequence that the device holds, in tokens
        self.in_doubt = False
        self._open: list[Handle | Lane] = []
        self._lanes: dict[CalTaskKind, Lane] = {}
        try:
            self._set_up(index)
        except BaseException:
            self.close()
            raise
        self.logits = np.zeros(self.generation.submodels[CalTaskKind.Decode].vocabulary, np.float32)

    def _set_up(self, index: int) -> None:
        library, path = self.library, self.manifest.calbin_path
        version = made("version", library.version(), library)
        self.calbin = self.kept(f"load {path.name}", library.calbin(path))
        models = made("models", self.calbin.models(), library)
        self.generation = verify(self.manifest, path, models, version)
        self.indices = {model.name: i for i, model in enumerate(models)}
        self.device = self.kept(f"open device {index}", library.device(index))
        check(failed("configure", self.device.configure(self.calbin), library))
        self.kv = self.kept("create KV manager", self.device.kv())

    def kept(self, stage: str, result: tuple[int, H | None]) -> H:
        """The handle, which `close` will release. Raises DeviceFailed."""
        handle = made(stage, result, self.library)
        self._open.append(handle)
        return handle

    def contract(self, kind: CalTaskKind) -> SubmodelContract:
        """Raises Refused when the model has no such kind of call."""
        if kind not in self.generation.submodels:
            raise Refused(f"the model has no {kind.name}, only {', '.join(k.name for k in self.generation.submodels)}")
        return self.generation.submodels[kind]

    def lane(self, kind: CalTaskKind) -> Lane:
        """The buffers of one kind of call, made at its first use. Raises Refused when the model has no such kind."""
        if kind not in self._lanes:
            contract = self.contract(kind)
            index = self.indices[contract.exact_name]
            lane = make_lane(self.library, self.device, self.calbin, contract, index)
            if isinstance(lane, Failure):
                raise DeviceFailed(lane.stage, lane.known if lane.code else None, lane.text)
            self._lanes[kind] = lane
            self._open.append(lane)
        return self._lanes[kind]

    # -- calls ---------------------------------------------------------------------------------------------------------
    def prefill(self, sequence: int, tokens: Items[int]) -> NDArray[np.float32]:
        """Appends `tokens` (ids) to the sequence; the logits after the last of them."""
        return self._call(CalTaskKind.PrefillIds, sequence, _s32(tokens))

    def prefill_embeds(self, sequence: int, rows: NDArray[np.uint16]) -> NDArray[np.float32]:
        """Appends embeddings, [tokens, hidden] BF16 bits; the logits after the last of them."""
        return self._call(CalTaskKind.PrefillEmbeds, sequence, rows)

    def decode(self, sequence: int, token: int) -> NDArray[np.float32]:
        """Appends one token; the logits after it."""
        return self._call(CalTaskKind.Decode, sequence, _s32([token]))

    def forget(self, sequence: int) -> None:
        """Frees the sequence's KV."""
        self._apply(sequence, 0)
        self.lengths.pop(sequence, None)

    def _call(self, kind: CalTaskKind, sequence: int, values: NDArray[Any]) -> NDArray[np.float32]:
        past, count = self.lengths.get(sequence, 0), len(values)
        if self.in_doubt:
            raise Refused("an earlier call failed half way: the device is in doubt, and only close is left")
        refuse_impossible(self.contract(kind), past, values)
        lane = self.lane(kind)
        self._apply(sequence, past + count)
        self.in_doubt = True
        check(program(lane, sequence, values, past))
        run(lane)
        check(lane.read(count, self.logits))
        check(lane.undo())
        self.in_doubt = False
        self.lengths[sequence] = past + count
        return self.logits

    def _apply(self, sequence: int, length: int) -> None:
        stage = f"apply {length} tokens for sequence {sequence}"
        if not made(stage, self.kv.apply(sequence, length), self.library):
            raise DeviceFailed(stage, None, "refused, and CalRT gives no reason")

    # -- the end -------------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Lets go of everything; again is harmless. If a call failed half way the device is reset first.

        Raises DeviceFailed, once all is released that can be, with the first code that was not success.
        """
        library = self.library
        failures = [failed("reset", self.device.reset(), library)] if self.in_doubt else []
        failures += [released(held, library) for held in reversed(self._open)]
        self._lanes, self._open, self.in_doubt = {}, [], False
        check(first_failure(failures))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def released(held: Handle | Lane, library: Library) -> Failure | None:
    """What came of the release."""
    if isinstance(held, Lane):
        return held.release()
    return failed(f"release {type(held).__name__}", held.release(), library)


def refuse_impossible(contract: SubmodelContract, past: int, values: NDArray[Any]) -> None:
    """What can be known before CalRT is asked (§6.3). Raises Refused."""
    count, (_, count_max, *hidden) = len(values), contract.token_or_embed.shape
    if values.shape[1:] != tuple(hidden) or values.dtype != HOST_TYPES[contract.token_or_embed.dtype]:
        shape = ["tokens", *hidden]
        raise Refused(f"the input is {values.dtype} {values.shape}; {contract.exact_name} takes {shape}")
    if not 1 <= count <= count_max:
        raise Refused(f"{count} tokens; {contract.exact_name} takes 1 to {count_max} in a call")
    if past + count > contract.max_seq:
        raise Refused(f"{past} tokens and {count} more are over max_seq, {contract.max_seq}")


def _s32(tokens: Items[int]) -> NDArray[np.int32]:
    """[tokens]. Raises Refused for what S32 cannot hold."""
    for token in tokens:
        if not S32.min <= token <= S32.max:
            raise Refused(f"token {token} is not an S32 number")
    return np.fromiter(tokens, np.int32, len(tokens))
