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

from machines.errors import Code, classify
from runtime.calrt import BufStatus, Handle, Library, PrimitiveType
from runtime.logits import convert
from runtime.manifest import CalTaskKind, Manifest, SubmodelContract, TensorContract, verify

__all__ = ["DeviceFailed", "Lane", "Refused", "Straight"]

HOST_TYPES = {PrimitiveType.S32: np.int32, PrimitiveType.BF16: np.uint16, PrimitiveType.F32: np.float32}
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


def check(stage: str, number: int, library: Library) -> None:
    """Raises DeviceFailed unless the code is success. The shim's own codes come with its sentence."""
    if number != 0:
        code = classify(number)
        raise DeviceFailed(stage, code, library.last_error() if number < 0 else code.about)


def made(stage: str, result: tuple[int, T | None], library: Library) -> T:
    """The handle or value of a call that returns one; raises DeviceFailed."""
    number, value = result
    check(stage, number, library)
    if value is None:
        raise DeviceFailed(stage, None, "success, but nothing was returned")
    return value


class Lane:
    """One submodel with its input, its output and their host memory, all made once. One job at a time.

    host_logits: [tile, vocabulary], BF16 bits, as the device wrote them.
    """

    def __init__(self, of: Straight, contract: SubmodelContract) -> None:
        self.library, self.device, self.calbin = of.library, of.device, of.calbin
        self.contract, self.index = contract, of.indices[contract.exact_name]
        self.host_input, self.host_position = host_of(contract.token_or_embed), host_of(contract.position)
        self.host_logits = np.zeros((contract.logits_tile_d0, contract.vocabulary), np.uint16)
        name = contract.exact_name
        self.input = of.kept(f"create input of {name}", self.device.input(self.calbin, self.index))
        self.output = of.kept(f"create output of {name}", self.device.output(self.calbin, self.index))
        for buffer, tensor, host in (
            (self.input, contract.token_or_embed, self.host_input),
            (self.input, contract.position, self.host_position),
            (self.output, contract.logits, self.host_logits),
        ):
            check(f"map {tensor.name} of {name}", buffer.map_buf(tensor.name, host), of.library)

    def prepare(self, sequence: int, values: NDArray[Any], past: int) -> None:
        """Copies in and programs the buffers (§6.3). values: [tokens] S32, or [tokens, hidden] BF16 bits."""
        count, c = len(values), self.contract
        self.host_input[0, :count] = values
        self.host_position[0, :count] = np.arange(past, past + count)
        check(f"bind sequence {sequence}", self.input.bind_sequence(sequence), self.library)
        for tensor, elements in ((c.token_or_embed, values.size), (c.position, count)):
            check(f"slice {tensor.name}", self.input.slice_tensor(tensor.name, 0, elements), self.library)
        for csr, value in ((c.csr_cur_seq, count), (c.csr_total_seq, past + count)):
            check(f"set CSR {csr}", self.input.set_csr(csr, value), self.library)

    def run(self) -> None:
        """infer, Wait, status (§6.4, §6.5). When it raises, the device may be at work in this lane's memory."""
        check("infer", self.device.infer(self.calbin, self.index, self.input, self.output), self.library)
        made("wait", self.output.wait(), self.library)
        status = made("status", self.output.get_status(), self.library)
        if status != BufStatus.DONE:
            raise DeviceFailed("status", None, f"{status!r} after a Wait that succeeded; it must be DONE")

    def read(self, count: int, target: NDArray[np.float32]) -> None:
        """The last token's row of the tile, as FP32 (§10.1); then the slices are undone."""
        c = self.contract
        size = made(f"size of {c.logits.name}", self.output.tensor_size(c.logits.name), self.library)
        if size != c.logits.byte_size:
            raise DeviceFailed("logits", None, f"the device wrote {size} bytes; the manifest says {c.logits.byte_size}")
        base = (count - 1) % c.logits_tile_d0 * c.vocabulary
        code, _ = convert(self.host_logits, base, c.vocabulary, target, library=self.library)
        check("logits", code, self.library)
        for tensor in (c.token_or_embed, c.position):
            check(f"undo slice of {tensor.name}", self.input.undo_slice(tensor.name), self.library)


def host_of(tensor: TensorContract) -> NDArray[Any]:
    """Host memory of an input tensor's logical shape, zeroed."""
    return np.zeros(tensor.shape, HOST_TYPES[tensor.dtype])


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
        self._open: list[Handle] = []
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
        check("configure", self.device.configure(self.calbin), library)
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
            self._lanes[kind] = Lane(self, self.contract(kind))
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
        lane.prepare(sequence, values, past)
        lane.run()
        lane.read(count, self.logits)
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
        codes = [("reset", self.device.reset())] if self.in_doubt else []
        codes += [(f"release {type(handle).__name__}", handle.release()) for handle in reversed(self._open)]
        self._lanes, self._open, self.in_doubt = {}, [], False
        for stage, code in codes:
            check(stage, code, self.library)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


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
