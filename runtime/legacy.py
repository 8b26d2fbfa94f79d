"""The baseline in Python: `native/include/calrt_legacy.h` through ctypes, for the comparisons alone.

Theory. What the executor replaces is kept runnable, so that every speed claim is a ratio in one run and every token can
be compared with what the product answered before. The library lies beside libcalrt_c.so and is linked to the same
CalRT, so both sides see the same devices; a device is open once in a process (AlreadyRegistered), so each side has one
of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from collections.abc import Sequence as Items
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_uint16, c_uint32, c_uint64, c_void_p
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from machines.errors import classify
from runtime.calrt import Library, NativeMissing
from runtime.manifest import CalTaskKind, Manifest

__all__ = ["Legacy", "LegacyFailed", "LegacyLibrary"]

LEGACY_NAME = "libcalrt_legacy.so"

_BF16, _F32, _S32 = POINTER(c_uint16), POINTER(c_float), POINTER(c_int32)

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "open": (c_uint32, c_char_p, c_char_p, c_char_p, POINTER(c_void_p)),
    "close": (c_void_p,),
    "vocabulary": (c_void_p, POINTER(c_uint64)),
    "prefill": (c_void_p, c_int32, _S32, c_uint32, c_uint32, _F32, c_uint64),
    "decode": (c_void_p, c_int32, c_int32, c_uint32, _F32, c_uint64),
    "forget": (c_void_p, c_int32),
    "convert": (_BF16, c_uint64, c_uint64, c_uint64, _F32),
    "plain_loop": (_BF16, c_uint64, c_uint64, _F32),
    "handoffs": (c_uint32, c_uint32, POINTER(c_int64)),
}


class LegacyFailed(RuntimeError):
    """The baseline failed. number: the raw code; the text names the step."""

    def __init__(self, stage: str, number: int) -> None:
        super().__init__(f"legacy: {stage}: {number} {classify(number).name}")
        self.stage, self.number = stage, number


class LegacyLibrary:
    """libcalrt_legacy.so, from beside the shim that `library` is. Raises NativeMissing."""

    def __init__(self, library: Library) -> None:
        self.path: Path = library.path.parent / LEGACY_NAME
        try:
            self._c = ctypes.CDLL(str(self.path))
            for name, arguments in ARGUMENTS.items():
                function = getattr(self._c, f"calrt_legacy_{name}")
                function.argtypes, function.restype = arguments, c_int
            self._c.calrt_legacy_stage.argtypes, self._c.calrt_legacy_stage.restype = (), c_char_p
        except (OSError, AttributeError) as error:
            raise NativeMissing(f"{self.path} cannot be used as {LEGACY_NAME}: {error}") from None

    def do(self, name: str, *arguments: Any) -> None:
        """calrt_legacy_<name>. Raises LegacyFailed."""
        if (number := getattr(self._c, f"calrt_legacy_{name}")(*arguments)) != 0:
            raise LegacyFailed((self._c.calrt_legacy_stage() or b"").decode("utf-8", "replace"), number)

    def conversion(
        self, name: str, source: NDArray[np.uint16], base: int, count: int, target: NDArray[np.float32]
    ) -> Callable[[], None]:
        """A conversion of `count` elements from `base` on, ready to be run often: its arguments are made once.

        name: "convert", the old one (S10), or "plain_loop", which anyone would write. C checks no range, so it is
        done here. The arrays must outlive the result. Raises ValueError.
        """
        _check_range(source, base, count, target)
        whole = (source.size,) if name == "convert" else ()
        return partial(self.do, name, source.ctypes.data_as(_BF16), *whole, base, count, target.ctypes.data_as(_F32))

    def handoffs_ns(self, count: int, pause_us: int = 0) -> NDArray[np.int64]:
        """What each of `count` hand-offs between two C threads took, [count] ns. pause_us: idle time before each."""
        each = np.zeros(count, np.int64)
        self.do("handoffs", count, pause_us, each.ctypes.data_as(POINTER(c_int64)))
        return each

    @staticmethod
    def ours(
        library: Library, source: NDArray[np.uint16], base: int, target: NDArray[np.float32]
    ) -> Callable[[], None]:
        """calrt_c_logits of target.size elements from `base` on, ready in the same way: both sides pay the same.

        The arrays must outlive the result, which raises LegacyFailed for any code but success.
        """
        _check_range(source, base, target.size, target)
        given = (source.ctypes.data_as(_BF16), source.size, base, target.size, target.ctypes.data_as(_F32), target.size)

        def once() -> None:
            if (number := library.call("logits", *given, None)) != 0:
                raise LegacyFailed("calrt_c_logits", number)

        return once


class Legacy:
    """The baseline on device `index` with the ids prefill and the decode of `manifest`. A context manager.

    Raises LegacyFailed when a step fails. The methods return one row of logits, [vocabulary] FP32, which is overwritten
    by the next call.
    """

    def __init__(self, library: Library, manifest: Manifest, index: int = 1) -> None:
        names = {m.kind: m.exact_name.encode() for m in manifest.submodels}
        self._library, self._context = LegacyLibrary(library), c_void_p()
        self.lengths: dict[int, int] = {}  # of each sequence, in tokens
        path = str(manifest.calbin_path).encode()
        prefill, decode = names[CalTaskKind.PrefillIds], names[CalTaskKind.Decode]
        self._library.do("open", index, path, prefill, decode, byref(self._context))
        vocabulary = c_uint64()
        try:
            self._library.do("vocabulary", self._context, byref(vocabulary))
        except LegacyFailed:
            self.close()
            raise
        self.logits = np.zeros(vocabulary.value, np.float32)
        self._target = (self.logits.ctypes.data_as(_F32), vocabulary.value)

    def prefill(self, sequence: int, tokens: Items[int]) -> NDArray[np.float32]:
        """Appends `tokens` (ids) to the sequence; the logits after the last of them."""
        values = np.fromiter(tokens, np.int32, len(tokens))
        past = self.lengths.get(sequence, 0)
        given = (sequence, values.ctypes.data_as(_S32), len(values), past)
        self._library.do("prefill", self._context, *given, *self._target)
        self.lengths[sequence] = past + len(values)
        return self.logits

    def decode(self, sequence: int, token: int) -> NDArray[np.float32]:
        """Appends one token; the logits after it."""
        past = self.lengths.get(sequence, 0)
        self._library.do("decode", self._context, sequence, token, past, *self._target)
        self.lengths[sequence] = past + 1
        return self.logits

    def forget(self, sequence: int) -> None:
        """Frees the sequence's KV."""
        self._library.do("forget", self._context, sequence)
        self.lengths.pop(sequence, None)

    def close(self) -> None:
        """Lets go of the device; again is harmless."""
        context, self._context = self._context, c_void_p()
        if context:
            self._library.do("close", context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def _check_range(source: NDArray[np.uint16], base: int, count: int, target: NDArray[np.float32]) -> None:
    """C has no check of its own here. Raises ValueError."""
    if not (0 <= base <= source.size and 0 <= count <= source.size - base and count <= target.size):
        raise ValueError(f"{count} elements from {base} on, of {source.size}, into {target.size}")
    if source.dtype != np.uint16 or target.dtype != np.float32:
        raise ValueError(f"source is {source.dtype} and target {target.dtype}; needed are uint16 and float32")
    if not (source.flags.c_contiguous and target.flags.c_contiguous and target.flags.writeable):
        raise ValueError("source and target must be contiguous, and target writable")
