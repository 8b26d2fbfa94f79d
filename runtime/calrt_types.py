"""What CalRT says about its artifacts and its jobs: the plain values that `runtime.calrt` returns.

The numbers of the enums are the C ABI's; a test holds them to `native/include/calrt/calrt.hpp`.
"""

from __future__ import annotations

from enum import IntEnum

from attrs import frozen

__all__ = ["BufStatus", "ModelInfo", "PrimitiveType", "Stamps", "TaskType", "TensorInfo"]


class PrimitiveType(IntEnum):
    S32, BF16, F32 = range(3)


class BufStatus(IntEnum):
    """§6.5; only DONE_CCU_EXCEPTION is the specification's name."""

    IDLE, RUNNING, DONE, DONE_CCU_EXCEPTION, KILLED = range(5)


class TaskType(IntEnum):
    """The two engines of §4.2."""

    PING, PONG = range(2)


@frozen
class TensorInfo:
    """shape: logical, logits are (1, 1, vocabulary); byte_size: physical, of all rows of an output tile."""

    name: str
    shape: tuple[int, ...]
    dtype: PrimitiveType | int
    byte_size: int
    sliceable: bool
    is_output: bool


@frozen
class ModelInfo:
    """logits_tile_d0: rows of the output tile; the last token's row is (tokens - 1) % logits_tile_d0."""

    name: str
    tensors: tuple[TensorInfo, ...]
    csr_names: tuple[str, ...]
    logits_tile_d0: int
    max_batch: int
    max_seq: int


@frozen
class Stamps:
    """CLOCK_MONOTONIC around CalRT's Wait(), in ns; both 0 if the call never reached CalRT."""

    begin_ns: int
    end_ns: int
