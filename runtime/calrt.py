"""CalRT in Python: `native/include/calrt_c.h` through ctypes, one class per handle, no logic.

Theory. Every call hands on CalRT's raw int, or the shim's (`machines.errors` says what each means): nothing is raised
for what the device answered. What is raised is misuse that must not reach C: a name with a NUL, an int that its C type
cannot hold, a buffer that cannot be written, a handle that was released. The GIL is released during every call, so a
`wait()` blocks its own thread only.

Memory. A mapped buffer belongs to the device until its tensor is mapped anew, with success, or the handle is released;
so does one whose map failed, for CalRT may have done it. Until then it is exported (resizing a bytearray or closing an
mmap raises BufferError) and kept alive, by the library and not by the handle object, so that a handle which is dropped
without a release leaks its memory and never frees it under the device.
Nothing is released by the garbage collector, for the same reason: `release()` or a `with` block does it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from ctypes import byref, c_int, c_int32, c_int64, c_uint32, c_uint64
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from numpy import dtype, float32, uint16
from numpy.typing import NDArray

import runtime
from machines.errors import code_named
from runtime.calrt_c import (
    ARGUMENTS,
    NAME_BYTES,
    CModel,
    CStamps,
    CTensor,
    c_handle,
    c_integer,
    c_text,
    elements,
    exported,
    python_text,
)  # fmt: skip
from runtime.calrt_types import BufStatus, ModelInfo, PrimitiveType, Stamps, TaskType, TensorInfo

E = TypeVar("E", bound=IntEnum)
H = TypeVar("H", bound="Handle")

__all__ = [
    "BufStatus", "Calbin", "Device", "Input", "Kv", "Library", "ModelInfo", "NativeMissing", "Output", "PrimitiveType",
    "ReleaseRefused", "ReleasedHandle", "Stamps", "TaskType", "TensorInfo",
]  # fmt: skip

LIBRARY_VARIABLE = "CALRT_LIBRARY"
LIBRARY_NAME = "libcalrt_c.so"
NOT_FINITE = code_named("ShimNotFinite").number
BF16, F32 = dtype(uint16), dtype(float32)  # of the logits, on the host
TEXT_BYTES = 1024  # of the last error: the shim keeps no more


class NativeMissing(RuntimeError):
    """There is no libcalrt_c.so, or it cannot be loaded."""


class ReleasedHandle(RuntimeError):
    """A handle was used after its release."""


class ReleaseRefused(RuntimeError):
    """Leaving a `with` block could not release the handle; it lives on, and so does the memory mapped to it."""


# -- the library -------------------------------------------------------------------------------------------------------


def _built() -> Path:
    """The library that was installed with this package: in the tree, or beside it after an editable install."""
    places = [Path(place) / "native" / "lib" / LIBRARY_NAME for place in runtime.__path__]
    for place in places:
        if place.is_file():
            return place
    raise NativeMissing(f"{LIBRARY_NAME} is not built; run `make native`, or set {LIBRARY_VARIABLE} to its file")


class Library:
    """libcalrt_c.so and the CalRT that it is linked to. One object per file; thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises NativeMissing when the file cannot be loaded or is another library; `load` is the usual way in."""
        self.path = path
        try:
            c = ctypes.CDLL(str(path))
            self._functions = {name: getattr(c, f"calrt_c_{name}") for name in ARGUMENTS}
        except (OSError, AttributeError) as error:
            raise NativeMissing(f"{path} cannot be used as {LIBRARY_NAME}: {error}") from None
        for name, function in self._functions.items():
            function.argtypes, function.restype = ARGUMENTS[name], c_int
        # handle -> tensor -> (address, bytes) -> the exported memory: more than one after a map that failed
        self._pins: dict[int, dict[str, dict[tuple[int, int], Any]]] = {}
        self._live: set[int] = set()

    @property
    def handles(self) -> int:
        """How many handles were made here and are not released, of every kind and device."""
        return len(self._live)

    @staticmethod
    def load(path: Path | str | None = None) -> Library:
        """`path`, or else the file that the environment's CALRT_LIBRARY names, or else the built one.

        Raises NativeMissing, in one line, when there is none or it cannot be loaded."""
        chosen = path or os.environ.get(LIBRARY_VARIABLE) or _built()
        return _load(Path(chosen).absolute())

    def call(self, name: str, *arguments: Any) -> int:
        """calrt_c_<name>, with its raw return."""
        code: int = self._functions[name](*arguments)
        return code

    def _create(self, name: str, kind: type[H], *arguments: Any) -> tuple[int, H | None]:
        number = c_handle()
        code = self.call(name, *arguments, byref(number))
        if code:
            return code, None
        self._live.add(number.value)
        return code, kind(self, number.value)

    def _text_of(self, name: str, *arguments: Any) -> tuple[int, str]:
        text = ctypes.create_string_buffer(TEXT_BYTES)
        code = self.call(name, *arguments, text, len(text))
        return code, python_text(text.value) if code == 0 else ""

    def version(self) -> tuple[int, str]:
        """(code, CalRT's version, as "0.7.6")."""
        return self._text_of("version")

    def last_error(self) -> str:
        """The text of this thread's last shim code, or of the exception that was caught."""
        return self._text_of("last_error")[1]

    def enforces_call_order(self) -> bool:
        """Whether this is a debug build, which refuses calls out of the order of `machines/abi.py`."""
        yes = c_int()
        self.call("enforces_call_order", byref(yes))
        return bool(yes.value)

    def calbin(self, path: Path | str) -> tuple[int, Calbin | None]:
        """Loads a calbin file."""
        return self._create("calbin_load", Calbin, c_text("the calbin's path", os.fspath(path)))

    def device(self, number: int) -> tuple[int, Device | None]:
        """Opens the device with this number."""
        return self._create("device_open", Device, c_integer(c_uint32, "the device's number", number))

    def logits(
        self, source: NDArray[uint16], base: int, count: int, target: NDArray[float32]
    ) -> tuple[int, int | None]:
        """calrt_c_logits over arrays of any shape; (code, index of the first bad value). `runtime.logits` says more.

        Raises TypeError and ValueError for arrays that C would misread; overlap is a code of the shim's."""
        first_bad = c_uint64()
        numbers = (c_integer(c_uint64, "base", base), c_integer(c_uint64, "count", count))
        from_memory, to_memory = elements("source", source, BF16), elements("target", target, F32, writable=True)
        code = self.call("logits", *from_memory, *numbers, *to_memory, byref(first_bad))
        return code, first_bad.value if code == NOT_FINITE else None


@cache
def _load(path: Path) -> Library:
    return Library(path)


# -- the handles -------------------------------------------------------------------------------------------------------


class Handle:
    """A handle of the C ABI. A context manager, which releases it; used afterwards, it raises ReleasedHandle."""

    release_name: ClassVar[str]

    def __init__(self, library: Library, number: int) -> None:
        self.library = library
        self._number = number
        self._released = False

    @property
    def number(self) -> int:
        """The number that C knows. Raises ReleasedHandle."""
        if self._released:
            raise ReleasedHandle(f"this {type(self).__name__} was released")
        return self._number

    def release(self) -> int:
        """Gives the handle back. After any return but 0 it is still held, and so is its memory."""
        code = self._call(self.release_name)
        if code == 0:
            self._released = True
            self.library._live.discard(self._number)
        return code

    def _call(self, name: str, *arguments: Any) -> int:
        return self.library.call(name, self.number, *arguments)

    def _ask(self, name: str, value: Any, *arguments: Any) -> tuple[int, int]:
        """A call with one number as its answer; 0 if it failed."""
        return self._call(name, *arguments, byref(value)), value.value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._released:
            return
        code = self.release()
        if code == 0:
            return
        text = f"the {type(self).__name__} was not released: {code}, {self.library.last_error()}"
        if error is None:
            raise ReleaseRefused(text)
        error.add_note(text)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'released' if self._released else hex(self._number)}>"


class Calbin(Handle):
    release_name = "calbin_release"

    def models(self) -> tuple[int, tuple[ModelInfo, ...]]:
        """(code, every submodel in the file's order); after the first failing call: (its code, ())."""
        count = c_uint32()
        code = self._call("calbin_models", byref(count))
        try:
            return code, tuple(self._models(count.value))
        except _Failed as failed:
            return failed.code, ()

    def _models(self, count: int) -> Iterator[ModelInfo]:
        for i in range(count):
            model = CModel()
            self._must("calbin_model", i, byref(model))
            tensors = tuple(self._tensor(i, j) for j in range(model.tensors))
            csrs = tuple(self._csr(i, j) for j in range(model.csrs))
            sizes = (model.logits_tile_d0, model.max_batch, model.max_seq)
            yield ModelInfo(python_text(model.name), tensors, csrs, *sizes)

    def _tensor(self, model: int, i: int) -> TensorInfo:
        found = CTensor()
        self._must("calbin_tensor", model, i, byref(found))
        shape = tuple(found.shape[: found.rank])
        kind = _known(PrimitiveType, found.dtype)
        return TensorInfo(
            python_text(found.name), shape, kind, found.byte_size, bool(found.sliceable), bool(found.is_output)
        )

    def _csr(self, model: int, i: int) -> str:
        text = ctypes.create_string_buffer(NAME_BYTES)
        self._must("calbin_csr", model, i, text, len(text))
        return python_text(text.value)

    def _must(self, name: str, *arguments: Any) -> None:
        if (code := self._call(name, *arguments)) != 0:
            raise _Failed(code)


class _Failed(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


def _known(kind: type[E], number: int) -> E | int:
    """The enum's member, or the raw number where it has none."""
    try:
        return kind(number)
    except ValueError:
        return number


class Device(Handle):
    release_name = "device_close"

    def configure(self, calbin: Calbin) -> int:
        return self._call("device_configure", calbin.number)

    def enable_parallel_mode(self, on: bool) -> int:
        return self._call("device_enable_parallel_mode", int(bool(on)))

    def reset_ccu(self) -> int:
        return self._call("device_reset_ccu")

    def reset_configuration(self) -> int:
        return self._call("device_reset_configuration")

    def reset(self) -> int:
        return self._call("device_reset")

    def memory_used(self) -> tuple[int, int]:
        """(code, bytes of device memory)."""
        return self._ask("device_memory_used", c_uint64())

    def kv(self) -> tuple[int, Kv | None]:
        return self.library._create("kv_create", Kv, self.number)

    def input(self, calbin: Calbin, model_index: int) -> tuple[int, Input | None]:
        """An input buffer of the calbin's submodel number `model_index`."""
        return self._buffer("input_create", Input, calbin, model_index)

    def output(self, calbin: Calbin, model_index: int) -> tuple[int, Output | None]:
        """An output buffer of the calbin's submodel number `model_index`."""
        return self._buffer("output_create", Output, calbin, model_index)

    def _buffer(self, name: str, kind: type[H], calbin: Calbin, model_index: int) -> tuple[int, H | None]:
        return self.library._create(name, kind, self.number, calbin.number, _model(model_index))

    def infer(self, calbin: Calbin, model_index: int, input: Input, output: Output) -> int:
        """§6.4: 0 says that the job was accepted, and nothing more."""
        return self._call("infer", calbin.number, _model(model_index), input.number, output.number)

    def infer_with_fixed_task_type(
        self, calbin: Calbin, model_index: int, input: Input, output: Output, task: TaskType | int
    ) -> int:
        """infer() on the engine that `task` names."""
        engine = c_integer(c_int, "the task type", task)
        buffers = (input.number, output.number)
        return self._call("infer_with_fixed_task_type", calbin.number, _model(model_index), *buffers, engine)


def _model(number: int) -> int:
    return c_integer(c_uint32, "the model's number", number)


class Kv(Handle):
    release_name = "kv_release"

    def apply(self, seq: int, length: int) -> tuple[int, bool]:
        """(code, whether there is room now for `length` tokens of this sequence); less truncates, 0 frees."""
        arguments = (c_integer(c_int32, "the sequence", seq), c_integer(c_uint32, "the length", length))
        granted = c_int()
        return self._call("kv_apply", *arguments, byref(granted)), bool(granted.value)

    def can_allocate(self, units: int) -> tuple[int, bool]:
        """(code, whether so many more units could be had now)."""
        can = c_int()
        return self._call("kv_can_allocate", c_integer(c_uint32, "the units", units), byref(can)), bool(can.value)

    def tokens_per_unit(self) -> tuple[int, int]:
        return self._ask("kv_tokens_per_unit", c_uint32())

    def units_total(self) -> tuple[int, int]:
        return self._ask("kv_units_total", c_uint32())


class _Buffer(Handle):
    prefix: ClassVar[str]

    def __init__(self, library: Library, number: int) -> None:
        super().__init__(library, number)
        self._pins = library._pins.setdefault(number, {})

    def map_buf(self, tensor: str, buffer: Any) -> int:
        """Maps a writable contiguous buffer (§6.3-8), whole. After any return but 0 the call may have been done or not:
        the tensor's old memory and the new are both kept, until a map of it succeeds or the handle is released."""
        name, memory = c_text("the tensor's name", tensor), exported(f"tensor {tensor!r}", buffer)
        handle, place = self.number, (ctypes.addressof(memory), ctypes.sizeof(memory))
        held = self._pins.setdefault(tensor, {})
        held[place] = memory  # before the call: nothing may come between it and this
        code = self.library.call(f"{self.prefix}_map_buf", handle, name, *place)
        if code == 0:
            self._pins[tensor] = {place: memory}
        return code

    def slice_tensor(self, tensor: str, offset: int, size: int) -> int:
        """§6.3-6: offset and size in elements of the flattened tensor."""
        numbers = (c_integer(c_uint64, "the offset", offset), c_integer(c_uint64, "the size", size))
        return self._call(f"{self.prefix}_slice_tensor", c_text("the tensor's name", tensor), *numbers)

    def undo_slice(self, tensor: str) -> int:
        return self._call(f"{self.prefix}_undo_slice", c_text("the tensor's name", tensor))

    def release(self) -> int:
        code = super().release()
        if code == 0:
            self.library._pins.pop(self._number, None)
            self._pins = {}
        return code


class Input(_Buffer):
    prefix, release_name = "input", "input_release"

    def set_csr(self, name: str, value: int) -> int:
        """§6.3-7."""
        return self._call("input_set_csr", c_text("the CSR's name", name), c_integer(c_int64, "the CSR's value", value))

    def bind_sequence(self, seq: int) -> int:
        """Whose KV the next infer reads and writes."""
        return self._call("input_bind_sequence", c_integer(c_int32, "the sequence", seq))


class Output(_Buffer):
    prefix, release_name = "output", "output_release"

    def wait(self) -> tuple[int, Stamps]:
        """Blocks until CalRT's Wait() returns (§6.5). Its memory stays alive meanwhile, even if another thread releases
        the handle."""
        stamps, held = CStamps(), self._pins
        code = self._call("output_wait", byref(stamps))
        del held
        return code, Stamps(stamps.begin_ns, stamps.end_ns)

    def get_status(self) -> tuple[int, BufStatus | int]:
        """(code, status); a status without a name stays an int. 0, IDLE, if the call failed."""
        code, status = self._ask("output_get_status", c_int())
        return code, _known(BufStatus, status)

    def tensor_size(self, tensor: str) -> tuple[int, int]:
        """(code, bytes that the device wrote)."""
        size, name = c_uint64(), c_text("the tensor's name", tensor)
        return self._call("output_tensor_size", name, byref(size)), size.value
