"""Logits to the host's floats: BF16 -> FP32 with the finite check, one pass in C (§10.1).

Theory. A BF16 is the upper half of the FP32 of the same value, so the conversion is exact for every bit pattern. A NaN
or an infinity is a fact about the device and not about the caller: it is answered with a code, like everything that the
device says, and its place. What is raised is misuse: memory of another element size, or that cannot be written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.calrt import BF16, F32, Library

__all__ = ["convert"]

BYTES = (np.dtype(np.uint8), np.dtype("S1"))


def convert(
    source: Any, base: int, count: int, target: Any, *, library: Library | None = None
) -> tuple[int, int | None]:
    """Writes the FP32 of source[base : base + count], flattened, to target[:count].

    source: BF16 as uint16, or bytes; target: float32, or writable bytes; arrays or any other contiguous buffer. Returns
    (0, None); (ShimNotFinite, index within the range) where a value is NaN or infinite, everything being converted
    nevertheless; (ShimOutOfRange, None) where the range leaves source or target, and (ShimBadArgument, None) where they
    overlap, nothing being written then. Raises TypeError for another element type, ValueError for memory that is not
    contiguous, aligned or writable, and for a base or count that is no uint64. library: the built one unless given.
    """
    halves, floats = _elements("source", source, BF16), _elements("target", target, F32)
    return (library or Library.load()).logits(halves, base, count, floats)


def _elements(name: str, memory: Any, wanted: np.dtype[Any]) -> NDArray[Any]:
    """Bytes as an array of the wanted type, without a copy. Other elements as they are: `Library.logits` judges."""
    try:
        array = memory if isinstance(memory, np.ndarray) else np.asarray(memoryview(memory))
    except TypeError as error:
        raise TypeError(f"{name} is no buffer: {error}") from None
    if array.dtype.itemsize != 1:
        return array  # the usual case, on every call's way
    if array.dtype not in BYTES:
        raise TypeError(f"{name} has elements of type {array.dtype}; {wanted}, or bytes, are needed")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous (shape {array.shape}, strides {array.strides})")
    if array.nbytes % wanted.itemsize:
        raise ValueError(f"{name} has {array.nbytes} bytes, which is no whole number of {wanted}")
    return array.reshape(-1).view(wanted)
