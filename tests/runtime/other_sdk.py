"""The script of `runtime/native/other_sdk`, and one place where every function of the binding is called.

The tables have, for each CalRT API, how the binding reaches it. Answers are of three shapes: a raw code, (code, value),
and (code, handle).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

from attrs import define

from runtime.calrt import Calbin, Device, Handle, Input, Kv, Library, Output, TaskType


class Way(IntEnum):
    """What an API does instead of succeeding: `Way` of other_sdk.cpp."""

    RETURN, THROW_RUNTIME_ERROR, THROW_BAD_ALLOC, THROW_INT, BLOCK, NOTHING_MADE = range(6)


class OtherSdk:
    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        self._c.other_sdk_script.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_longlong)
        self._c.other_sdk_alive.argtypes = (ctypes.c_char_p,)
        self._c.other_sdk_arguments.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)

    def script(self, api: str, way: Way = Way.RETURN, number: int = 0) -> None:
        self._c.other_sdk_script(api.encode(), way, number)

    def clear(self) -> None:
        """Forgets every script, and lets go whatever is blocked."""
        self._c.other_sdk_clear()

    def await_blocked(self, count: int) -> None:
        assert self._c.other_sdk_await_blocked(count, 30_000), f"no {count} calls are blocked after 30 s"

    def alive(self, kind: str) -> int:
        found: int = self._c.other_sdk_alive(kind.encode())
        return found

    def arguments(self, api: str) -> list[str] | None:
        """The arguments of the API's last call; None if there was none since the last question."""
        text = ctypes.create_string_buffer(512)
        self._c.other_sdk_arguments(api.encode(), text, len(text))
        return text.value.decode("utf-8", "surrogateescape").split()[1:] if text.value else None


@define
class Bench:
    """One handle of each kind, over the scripted SDK."""

    library: Library
    calbin: Calbin
    device: Device
    kv: Kv
    input: Input
    output: Output
    memory: bytearray

    def handles(self) -> dict[str, Handle]:
        return {kind: getattr(self, kind) for kind in ("calbin", "device", "kv", "input", "output")}


def made(answer: tuple[int, Any]) -> Any:
    code, handle = answer
    assert code == 0
    return handle


@contextmanager
def bench(library: Library) -> Iterator[Bench]:
    calbin = made(library.calbin("/any/path"))
    device = made(library.device(3))
    assert device.configure(calbin) == 0
    handles = Bench(
        library, calbin, device, made(device.kv()), made(device.input(calbin, 0)), made(device.output(calbin, 0)),
        bytearray(64),
    )  # fmt: skip
    yield handles
    for handle in handles.handles().values():
        if not handle._released:
            assert handle.release() == 0


Call = Callable[[Bench], Any]

# APIs that return a code.
CODED: dict[str, Call] = {
    "VirtualDevice::Configure": lambda b: b.device.configure(b.calbin),
    "VirtualDevice::EnableParallelMode": lambda b: b.device.enable_parallel_mode(True),
    "VirtualDevice::ResetCCU": lambda b: b.device.reset_ccu(),
    "VirtualDevice::ResetConfiguration": lambda b: b.device.reset_configuration(),
    "VirtualDevice::Reset": lambda b: b.device.reset(),
    "CalrtInputBuf::MapBuf": lambda b: b.input.map_buf("tokens", b.memory),
    "CalrtInputBuf::SliceTensor": lambda b: b.input.slice_tensor("tokens", 1, 2),
    "CalrtInputBuf::UndoSlice": lambda b: b.input.undo_slice("tokens"),
    "CalrtInputBuf::SetCsrByName": lambda b: b.input.set_csr("cur", -5),
    "CalrtInputBuf::BindSequence": lambda b: b.input.bind_sequence(-6),
    "CalrtOutputBuf::MapBuf": lambda b: b.output.map_buf("logits", b.memory),
    "CalrtOutputBuf::SliceTensor": lambda b: b.output.slice_tensor("logits", 3, 4),
    "CalrtOutputBuf::UndoSlice": lambda b: b.output.undo_slice("logits"),
    "infer": lambda b: b.device.infer(b.calbin, 0, b.input, b.output),
    "infer_with_fixed_task_type": lambda b: b.device.infer_with_fixed_task_type(
        b.calbin, 0, b.input, b.output, TaskType.PONG
    ),
}

# APIs that return a code and give something: what they give when they fail.
GIVING: dict[str, tuple[Call, Any]] = {
    "Calbin::Load": (lambda b: b.library.calbin("/x"), None),
    "VirtualDevice::Open": (lambda b: b.library.device(1), None),
    "KvManager::Create": (lambda b: b.device.kv(), None),
    "CalrtInputBuf::Create": (lambda b: b.device.input(b.calbin, 0), None),
    "CalrtOutputBuf::Create": (lambda b: b.device.output(b.calbin, 0), None),
    "CalrtOutputBuf::TensorSize": (lambda b: b.output.tensor_size("logits"), 0),
}

# APIs that return a value and no code, with what they give when they throw.
VALUED: dict[str, tuple[Call, Any]] = {
    "Version": (lambda b: b.library.version(), ""),
    "Calbin::GetAllModels": (lambda b: b.calbin.models(), ()),
    "VirtualDevice::MemoryUsed": (lambda b: b.device.memory_used(), 0),
    "KvManager::Apply": (lambda b: b.kv.apply(-1, 2), False),
    "KvManager::canAllocate": (lambda b: b.kv.can_allocate(9), False),
    "KvManager::TokensPerUnit": (lambda b: b.kv.tokens_per_unit(), 0),
    "KvManager::UnitsTotal": (lambda b: b.kv.units_total(), 0),
    "CalrtOutputBuf::GetStatus": (lambda b: b.output.get_status(), 0),
}

WAIT = "CalrtOutputBuf::Wait"  # it gives stamps even when it fails
