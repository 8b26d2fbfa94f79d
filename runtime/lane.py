"""One submodel with its input, its output and the host memory of both: what a job programs and the device works on.

Theory. Handles and memory are made once and mapped once (S07, §5.1-4). A job only fills the memory, slices, sets CSRs,
infers, reads and undoes its slices. What is sliced is written down before the call that does it: a call that failed
may have done it, and a slice that was forgotten would be the next job's (FI15).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from runtime.calrt import Calbin, Device, Handle, Input, Library, Output, PrimitiveType
from runtime.logits import convert
from runtime.manifest import ITEM_BYTES, SubmodelContract, TensorContract
from runtime.status import Failure, failed

__all__ = ["HOST_TYPES", "Lane", "first_failure", "make_lane", "nothing", "outside"]

HOST_TYPES = {PrimitiveType.S32: np.int32, PrimitiveType.BF16: np.uint16, PrimitiveType.F32: np.float32}


def first_failure(steps: Iterable[Failure | None]) -> Failure | None:
    """The first step that failed; a generator is not asked for the steps after it, so they are not made."""
    return next((failure for failure in steps if failure), None)


def outside(tensor: TensorContract, offset: int, elements: int) -> str:
    """Says how a slice leaves its tensor or the tensor's bytes; empty if it does not (§6.3-6). Numbers of any size."""
    if not 0 <= offset <= offset + elements <= prod(tensor.shape):
        return f"elements {offset} to {offset + elements} are outside of {prod(tensor.shape)}"
    size = ITEM_BYTES[tensor.dtype]
    if (offset + elements) * size > tensor.byte_size:
        return f"{elements} elements of {size} bytes at {offset} are outside of {tensor.byte_size} bytes"
    return ""


@define(eq=False)
class Lane:
    """One submodel with its input, its output and their host memory, all made once (`make_lane`). One job at a time.

    host_input, host_position: the logical shapes. host_logits: [tile, vocabulary], BF16 bits, as the device wrote them.
    sliced: the input's tensors that have a slice, or may have one because the call failed. touched: it was
    submitted, and nobody has found it done since: the device may be using it.
    """

    library: Library
    device: Device
    calbin: Calbin
    contract: SubmodelContract
    index: int
    input: Input
    output: Output
    host_input: NDArray[Any]
    host_position: NDArray[np.int32]
    host_logits: NDArray[np.uint16]
    sliced: list[str] = field(factory=list)
    touched: bool = False
    _held: list[Handle] = field(init=False)

    @_held.default
    def _both(self) -> list[Handle]:
        return [self.output, self.input]

    @property
    def byte_size(self) -> int:
        """Bytes of host memory."""
        return sum(host.nbytes for host in (self.host_input, self.host_position, self.host_logits))

    def map(self) -> Failure | None:
        """Maps the memory, for the lane's life (§5.1-4)."""
        c = self.contract
        memory = (
            (self.input, c.token_or_embed, self.host_input),
            (self.input, c.position, self.host_position),
            (self.output, c.logits, self.host_logits),
        )
        return first_failure(
            failed(f"map {tensor.name} of {c.exact_name}", buffer.map_buf(tensor.name, host), self.library)
            for buffer, tensor, host in memory
        )

    def slice(self, tensor: TensorContract, offset: int, elements: int) -> Failure | None:
        """Slices a tensor of the input; what is outside of it is refused here, and CalRT not called (FI03)."""
        stage = f"slice {tensor.name}"
        if problem := outside(tensor, offset, elements):
            return Failure(stage, text=problem)
        if not tensor.sliceable:
            whole = (offset, elements) == (0, prod(tensor.shape))
            return None if whole else Failure(stage, text=f"{elements} elements at {offset}, and it is not sliceable")
        if tensor.name not in self.sliced:
            self.sliced.append(tensor.name)  # before the call: one that fails may have done it
        return failed(stage, self.input.slice_tensor(tensor.name, offset, elements), self.library)

    def undo(self) -> Failure | None:
        """Undoes every slice, also after one that failed; the first failure. What failed stays in `sliced`."""
        failures: list[Failure] = []
        for name in tuple(self.sliced):
            failure = failed(f"undo slice of {name}", self.input.undo_slice(name), self.library)
            if failure:
                failures.append(failure)
            else:
                self.sliced.remove(name)
        return first_failure(failures)

    def infer(self) -> int:
        """§6.4: CalRT's raw code. From the call on, whatever it returns, the memory may be the device's."""
        self.touched = True
        return self.device.infer(self.calbin, self.index, self.input, self.output)

    def read(self, count: int, target: NDArray[np.float32]) -> Failure | None:
        """The last row of `count` tokens as FP32 (§10.1), checked for its size (FI09) and for being finite (FI10).

        target: [vocabulary]; what it holds after a failure is no result."""
        c = self.contract
        stage = f"size of {c.logits.name}"
        code, size = self.output.tensor_size(c.logits.name)
        if failure := failed(stage, code, self.library):
            return failure
        if size != c.logits.byte_size:
            return Failure("logits", text=f"the device wrote {size} bytes; the manifest says {c.logits.byte_size}")
        base = (count - 1) % c.logits_tile_d0 * c.vocabulary
        code, _ = convert(self.host_logits, base, c.vocabulary, target, library=self.library)
        return failed("logits", code, self.library)

    def release(self) -> Failure | None:
        """Lets go of handles and memory. Only while the device has nothing to do with them. What cannot be released
        lives on, with its memory; a second call tries that again."""
        failures: list[Failure] = []
        for handle in tuple(self._held):
            stage = f"release {type(handle).__name__} of {self.contract.exact_name}"
            if failure := failed(stage, handle.release(), self.library):
                failures.append(failure)
            else:
                self._held.remove(handle)
        return first_failure(failures)


def make_lane(
    library: Library, device: Device, calbin: Calbin, contract: SubmodelContract, index: int
) -> Lane | Failure:
    """A lane of the calbin's submodel number `index`, mapped. After a failure nothing of it is left."""
    name = contract.exact_name
    try:
        memory = (_host(contract.token_or_embed), _host(contract.position), _host_logits(contract))
    except MemoryError as error:
        return Failure(f"host memory of {name}", text=str(error))
    code, input_ = device.input(calbin, index)
    if input_ is None:
        return nothing(f"create input of {name}", code, library)
    code, output = device.output(calbin, index)
    if output is None:
        failure = nothing(f"create output of {name}", code, library)
        input_.release()
        return failure
    lane = Lane(library, device, calbin, contract, index, input_, output, *memory)
    if failed_map := lane.map():
        lane.release()
        return failed_map
    return lane


def _host(tensor: TensorContract) -> NDArray[Any]:
    """Zeroed host memory of an input tensor's logical shape; its pages are there, so that no job waits for them."""
    return np.full(tensor.shape, 0, HOST_TYPES[tensor.dtype])


def _host_logits(contract: SubmodelContract) -> NDArray[np.uint16]:
    return np.full((contract.logits_tile_d0, contract.vocabulary), 0, np.uint16)


def nothing(stage: str, code: int, library: Library) -> Failure:
    """The failure of a call that returned no handle or value."""
    return failed(stage, code, library) or Failure(stage, text="success, but nothing was returned")
