"""Logits: bit-exact for every pattern, every bad value found, every bound kept.

What must come out is computed by numpy from the definition: a BF16 is the upper half of an FP32.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from machines.errors import code_named
from runtime.calrt import Library
from runtime.logits import convert

NOT_FINITE = code_named("ShimNotFinite").number
OUT_OF_RANGE = code_named("ShimOutOfRange").number
BAD_ARGUMENT = code_named("ShimBadArgument").number
VOCABULARY = 151_936  # §4.1
NAN, INF, MINUS_INF, SIGNALING = 0x7FC0, 0x7F80, 0xFF80, 0x7F81
UNTOUCHED = np.float32(-123.0)

Bits = NDArray[np.uint16]


def expected(bits: Bits) -> NDArray[np.uint32]:
    return bits.astype(np.uint32) << 16


def finite_row(count: int, seed: int = 0) -> Bits:
    bits = np.random.default_rng(seed).integers(0, 1 << 16, count).astype(np.uint16)
    return np.where(np.isfinite(expected(bits).view(np.float32)), bits, np.uint16(0x3F80))


def target_of(count: int) -> NDArray[np.float32]:
    return np.full(count, UNTOUCHED, np.float32)


@pytest.mark.shows("PR6.bitwise")
def test_every_pattern_is_exact(over_other: Library) -> None:
    """All 65,536, NaNs with their payloads included; the code says where the first bad one is."""
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    target = target_of(bits.size)
    assert convert(bits, 0, bits.size, target, library=over_other) == (NOT_FINITE, INF)
    assert (target.view(np.uint32) == expected(bits)).all()
    finite = np.isfinite(expected(bits).view(np.float32))
    for pattern in range(1 << 16):
        code, first_bad = convert(bits[pattern : pattern + 1], 0, 1, target, library=over_other)
        assert (code, first_bad) == ((0, None) if finite[pattern] else (NOT_FINITE, 0))


@pytest.mark.parametrize("bad", [NAN, INF, MINUS_INF, SIGNALING])
@pytest.mark.parametrize("places", [[0], [VOCABULARY // 2], [VOCABULARY - 1], [77, 78, 151_000], "all"])
def test_the_first_bad_value_is_found(over_other: Library, bad: int, places: Any) -> None:
    """Within the range, counted from its begin; bad values outside of it do not matter."""
    row = finite_row(VOCABULARY)
    tile = np.full(3 * VOCABULARY, NAN, np.uint16)
    row[slice(None) if places == "all" else places] = bad
    tile[VOCABULARY : 2 * VOCABULARY] = row
    target = target_of(VOCABULARY)
    first = 0 if places == "all" else places[0]
    assert convert(tile, VOCABULARY, VOCABULARY, target, library=over_other) == (NOT_FINITE, first)
    assert f"element {first} of {VOCABULARY} is not finite (bits 0x{bad:04x})" in over_other.last_error()
    assert (target.view(np.uint32) == expected(row)).all()


@pytest.mark.shows("S10", "PR6.bitwise")
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 1000, VOCABULARY])
@pytest.mark.parametrize("base", [0, 1, 3])
def test_lengths_and_offsets(over_other: Library, count: int, base: int) -> None:
    """Whatever the compiler's vector width and the alignment, exactly the range is converted, and nothing beside it."""
    bits = finite_row(count + base + 5)
    bits[base + count :], bits[:base] = NAN, NAN
    target = target_of(count + 4)
    assert convert(bits, base, count, target, library=over_other) == (0, None)
    assert (target[:count].view(np.uint32) == expected(bits[base : base + count])).all()
    assert (target[count:] == UNTOUCHED).all()


TOP = 1 << 64


@pytest.mark.shows("PR6.bounds")
@pytest.mark.parametrize(
    ("base", "count", "room"),
    [
        (0, 101, 200), (100, 1, 200), (101, 0, 200), (1, 100, 200), (50, 51, 200), (0, 100, 99), (99, 1, 0),
        (TOP - 1, 1, 200), (TOP - 1, 2, 200), (TOP - 1, TOP - 1, 200), (1, TOP - 1, 200), (50, TOP - 50, 200),
        (50, TOP - 49, 200), (TOP // 2, TOP // 2, 200), (TOP - 100, 100, 200), (TOP - 1, 0, 200),
    ],
)  # fmt: skip
def test_a_range_that_leaves_the_memory(over_other: Library, base: int, count: int, room: int) -> None:
    """No sum wraps around, and nothing is written."""
    target = target_of(room)
    assert convert(finite_row(100), base, count, target, library=over_other) == (OUT_OF_RANGE, None)
    assert (target == UNTOUCHED).all()


@pytest.mark.parametrize(("base", "count"), [(0, 100), (100, 0), (99, 1), (0, 0)])
def test_a_range_that_just_fits(over_other: Library, base: int, count: int) -> None:
    assert convert(finite_row(100), base, count, target_of(count), library=over_other) == (0, None)


def test_kinds_of_memory(over_other: Library) -> None:
    """Bytes, views, shared memory, arrays of any shape: all without a copy of their own."""
    bits = finite_row(64)
    wanted = expected(bits).tobytes()
    raw = bits.tobytes()
    for source in (raw, bytearray(raw), memoryview(raw), bits.reshape(4, 16), bits.view("S1"), bits.view(np.uint8)):
        target = bytearray(256)
        assert convert(source, 0, 64, target, library=over_other) == (0, None)
        assert target == wanted
    with mmap.mmap(-1, 4096) as shared:
        shared[: len(raw)] = raw
        out = target_of(64).reshape(8, 8)
        assert convert(shared, 0, 64, out, library=over_other) == (0, None)
    assert out.tobytes() == wanted


@pytest.mark.parametrize(
    ("source", "target", "error", "text"),
    [
        (np.zeros(4, np.float32), np.zeros(4, np.float32), TypeError, "source has elements of type float32; uint16"),
        (np.zeros(4, np.int16), np.zeros(4, np.float32), TypeError, "source has elements of type int16"),
        (np.zeros(4, np.uint16), np.zeros(4, np.float64), TypeError, "target has elements of type float64; float32"),
        (np.zeros(4, ">u2"), np.zeros(4, np.float32), TypeError, "source has elements of type >u2"),
        (np.zeros(8, np.uint16)[::2], np.zeros(4, np.float32), ValueError, "source is not contiguous"),
        (np.zeros(4, np.uint16), np.zeros((4, 4), np.float32).T, ValueError, "target is not contiguous"),
        (bytes(7), np.zeros(4, np.float32), ValueError, "source has 7 bytes, which is no whole number of uint16"),
        (bytes(8), bytes(16), ValueError, "target is read-only"),
        (memoryview(bytes(9))[1:], np.zeros(4, np.float32), ValueError, "source is not aligned to uint16"),
        (17, np.zeros(4, np.float32), TypeError, "source is no buffer"),
        (bytes(8), None, TypeError, "target is no buffer"),
    ],
)
def test_memory_that_is_wrong(over_other: Library, source: Any, target: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        convert(source, 0, 1, target, library=over_other)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def misaligned(dtype: Any) -> NDArray[Any]:
    return np.zeros(33, np.uint8)[1:].view(dtype)


ONES = np.full(4, 0x3F80, np.uint16)
MISREAD: list[tuple[Callable[[], Any], Callable[[], Any], type[Exception], str]] = [
    (lambda: ONES, lambda: read_only(np.zeros(4, np.float32)), ValueError, "target is read-only"),
    (lambda: ONES, lambda: np.zeros(8, np.float32)[::2], ValueError, "target is not contiguous"),
    (lambda: ONES, lambda: np.zeros((4, 4), np.float32)[:, 0], ValueError, "target is not contiguous"),
    (lambda: ONES, lambda: np.zeros(4, np.float32)[::-1], ValueError, "target is not contiguous"),
    (lambda: ONES, lambda: np.zeros(16, np.float16)[:4], TypeError, "target has elements of type float16; float32"),
    (lambda: ONES, lambda: np.zeros(16, np.int8)[:4], TypeError, "target has elements of type int8; float32"),
    (lambda: ONES, lambda: np.zeros(4, ">f4"), TypeError, "target has elements of type >f4"),
    (lambda: ONES, lambda: misaligned(np.float32)[:4], ValueError, "target is not aligned to float32"),
    (lambda: ONES, lambda: bytearray(16), TypeError, "target is of type bytearray; an array of float32 is needed"),
    (lambda: ONES.view(np.uint8), lambda: np.zeros(4, np.float32), TypeError, "source has elements of type uint8"),
    (lambda: ONES[::2], lambda: np.zeros(4, np.float32), ValueError, "source is not contiguous"),
    (lambda: np.broadcast_to(ONES[:1], 4), lambda: np.zeros(4, np.float32), ValueError, "source is not contiguous"),
    (lambda: misaligned(np.uint16)[:4], lambda: np.zeros(4, np.float32), ValueError, "source is not aligned to uint16"),
]


@pytest.mark.parametrize(("source", "target", "error", "text"), MISREAD)
def test_the_binding_itself_lets_nothing_through_that_c_would_misread(
    over_other: Library, source: Callable[[], Any], target: Callable[[], Any], error: type[Exception], text: str
) -> None:
    """Without `convert` in front of it; and nothing is written, also not beside the target."""
    into = target()
    base = into if getattr(into, "base", None) is None else into.base
    with pytest.raises(error, match=text):
        over_other.logits(source(), 0, 4, into)
    assert not np.asarray(base).any()


def test_a_read_only_source_is_read(over_other: Library) -> None:
    """Control: only what is written must be writable."""
    target = np.zeros(4, np.float32)
    assert over_other.logits(read_only(ONES.copy()), 0, 4, target) == (0, None)
    assert (target == 1).all()


@pytest.mark.parametrize(
    ("base", "count", "error", "text"),
    [
        (-1, 1, ValueError, "base is -1; allowed are 0 to 18446744073709551615"),
        (0, -1, ValueError, "count is -1"),
        (TOP, 1, ValueError, "base is 18446744073709551616"),
        (0.0, 1, TypeError, "integer"),
    ],
)
def test_numbers_that_are_wrong(over_other: Library, base: Any, count: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        convert(bytes(8), base, count, bytearray(16), library=over_other)


def test_overlap_is_refused(over_other: Library) -> None:
    """The one pass would read what it has written."""
    memory = np.zeros(64, np.uint16)
    for source, target in [(memory[:16], memory[:32]), (memory[10:26], memory[:32]), (memory[:16], memory[14:46])]:
        code, first_bad = convert(source, 0, 16, target.view(np.float32), library=over_other)
        assert (code, first_bad) == (BAD_ARGUMENT, None)
        assert "overlap" in over_other.last_error()
    assert not memory.any(), "nothing was written"
    assert convert(memory[:16], 0, 16, memory[16:48].view(np.float32), library=over_other) == (0, None)
