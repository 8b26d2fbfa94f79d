"""`native/include/calrt_c.h` as data, and what must not reach C.

Theory. Every function of the header returns an int; its arguments stand in one table, and a test compares that table
and the structs with the header. ctypes alone would cut an int to its type's width, end a name at a NUL and follow the
address of freed memory, and numpy would give the address of memory that is not laid out as C takes it to be: the
functions below refuse all that before a call is made.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from operator import index
from typing import Any, SupportsIndex

from numpy import ndarray

NAME_BYTES, MAX_RANK = 256, 8


class CModel(ctypes.Structure):
    _fields_ = (
        ("name", c_char * NAME_BYTES), ("tensors", c_uint32), ("csrs", c_uint32), ("logits_tile_d0", c_uint32),
        ("max_batch", c_uint32), ("max_seq", c_uint32),
    )  # fmt: skip


class CTensor(ctypes.Structure):
    _fields_ = (
        ("name", c_char * NAME_BYTES), ("shape", c_uint64 * MAX_RANK), ("rank", c_uint32), ("dtype", c_int32),
        ("byte_size", c_uint64), ("sliceable", c_int32), ("is_output", c_int32),
    )  # fmt: skip


class CStamps(ctypes.Structure):
    _fields_ = (("begin_ns", c_int64), ("end_ns", c_int64))


c_handle = c_uint64
_MAP, _SLICE = (c_handle, c_char_p, c_void_p, c_uint64), (c_handle, c_char_p, c_uint64, c_uint64)
_BUFFER_OF = (c_handle, c_handle, c_uint32, POINTER(c_handle))
_INFER = (c_handle, c_handle, c_uint32, c_handle, c_handle)

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "version": (c_char_p, c_size_t),
    "last_error": (c_char_p, c_size_t),
    "enforces_call_order": (POINTER(c_int),),
    "calbin_load": (c_char_p, POINTER(c_handle)),
    "calbin_models": (c_handle, POINTER(c_uint32)),
    "calbin_model": (c_handle, c_uint32, POINTER(CModel)),
    "calbin_tensor": (c_handle, c_uint32, c_uint32, POINTER(CTensor)),
    "calbin_csr": (c_handle, c_uint32, c_uint32, c_char_p, c_size_t),
    "calbin_release": (c_handle,),
    "device_open": (c_uint32, POINTER(c_handle)),
    "device_configure": (c_handle, c_handle),
    "device_enable_parallel_mode": (c_handle, c_int),
    "device_reset_ccu": (c_handle,),
    "device_reset_configuration": (c_handle,),
    "device_reset": (c_handle,),
    "device_memory_used": (c_handle, POINTER(c_uint64)),
    "device_close": (c_handle,),
    "kv_create": (c_handle, POINTER(c_handle)),
    "kv_apply": (c_handle, c_int32, c_uint32, POINTER(c_int)),
    "kv_can_allocate": (c_handle, c_uint32, POINTER(c_int)),
    "kv_tokens_per_unit": (c_handle, POINTER(c_uint32)),
    "kv_units_total": (c_handle, POINTER(c_uint32)),
    "kv_release": (c_handle,),
    "input_create": _BUFFER_OF,
    "input_map_buf": _MAP,
    "input_slice_tensor": _SLICE,
    "input_undo_slice": (c_handle, c_char_p),
    "input_set_csr": (c_handle, c_char_p, c_int64),
    "input_bind_sequence": (c_handle, c_int32),
    "input_release": (c_handle,),
    "output_create": _BUFFER_OF,
    "output_map_buf": _MAP,
    "output_slice_tensor": _SLICE,
    "output_undo_slice": (c_handle, c_char_p),
    "output_wait": (c_handle, POINTER(CStamps)),
    "output_get_status": (c_handle, POINTER(c_int)),
    "output_tensor_size": (c_handle, c_char_p, POINTER(c_uint64)),
    "output_release": (c_handle,),
    "infer": _INFER,
    "infer_with_fixed_task_type": (*_INFER, c_int),
    "logits": (c_void_p, c_uint64, c_uint64, c_uint64, c_void_p, c_uint64, POINTER(c_uint64)),
}


# -- what must not reach C ---------------------------------------------------------------------------------------------


def c_integer(c_type: Any, what: str, value: SupportsIndex) -> int:
    """The int, if the C type can hold it: ctypes alone would cut it. A bool is none: it would pass for 0 or 1."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is {value!r}; an integer is needed")
    number = index(value)
    low, high = _range(c_type)
    if not low <= number <= high:
        raise ValueError(f"{what} is {number}; allowed are {low} to {high}")
    return number


@cache
def _range(c_type: Any) -> tuple[int, int]:
    bits, signed = 8 * ctypes.sizeof(c_type), c_type(-1).value < 0
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def c_text(what: str, value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {value!r}; a str is needed")
    if "\0" in value:
        raise ValueError(f"{what} is {value!r}; a NUL would end it in C")
    return value.encode("utf-8", "surrogateescape")


def python_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def exported(what: str, buffer: Any) -> Any:
    """The buffer as C memory. While the result lives, the buffer can neither be freed nor resized."""
    try:
        view = memoryview(buffer)
    except TypeError as error:
        raise TypeError(f"the memory for {what} is no buffer: {error}") from None
    with view:
        if view.readonly:
            raise ValueError(f"the memory for {what} is read-only; the device needs memory that can be written")
        if not view.c_contiguous:
            raise ValueError(f"the memory for {what} is not contiguous (shape {view.shape}, strides {view.strides})")
        return (c_char * view.nbytes).from_buffer(buffer)


def elements(what: str, array: Any, wanted: Any, writable: bool = False) -> tuple[int, int]:
    """(address, number of elements) of an array that C may take for contiguous elements of the wanted type.

    Raises TypeError for other elements; ValueError for memory that is not contiguous, aligned, or writable."""
    if not isinstance(array, ndarray):
        raise TypeError(f"{what} is of type {type(array).__name__}; an array of {wanted} is needed")
    if array.dtype != wanted:
        raise TypeError(f"{what} has elements of type {array.dtype}; {wanted} is needed")
    flags = array.flags
    if not flags.c_contiguous:
        raise ValueError(f"{what} is not contiguous (shape {array.shape}, strides {array.strides})")
    if not flags.aligned:
        raise ValueError(f"{what} is not aligned to {wanted}")
    if writable and not flags.writeable:
        raise ValueError(f"{what} is read-only")
    return array.ctypes.data, array.size
