"""The C side of the simulator's panel: the records and the arguments of `calrt_sim.h`."""

from __future__ import annotations

import ctypes
from typing import Any

i64, u64, u32, i32, text = ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int32, ctypes.c_char_p


class KeyInfo(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 48), ("about", ctypes.c_char * 160),
        ("default_value", i64), ("minimum", i64), ("maximum", i64),
    )  # fmt: skip


class ActionInfo(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char * 32), ("calls", ctypes.c_char * 96), ("about", ctypes.c_char * 160))


class CallRecord(ctypes.Structure):
    _fields_ = (
        ("number", i64), ("thread", i64), ("begin_us", i64), ("end_us", i64), ("handle", u64), ("other", u64),
        ("a", i64), ("b", i64), ("result", i64), ("call", ctypes.c_char * 24), ("text", ctypes.c_char * 64),
        ("begin_ns", i64), ("end_ns", i64),
    )  # fmt: skip


class JobRecord(ctypes.Structure):
    _fields_ = ("number", i64), ("job", u64), ("begin_us", i64), ("end_us", i64), ("told_us", i64)


class ViolationRecord(ctypes.Structure):
    _fields_ = (
        ("number", i64), ("at_us", i64), ("job", u64), ("kind", ctypes.c_char * 32), ("text", ctypes.c_char * 192),
    )  # fmt: skip


pointer = ctypes.POINTER
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "power_cycle": (u32,),
    "key": (u32, pointer(KeyInfo)),
    "set": (u32, text, i64),
    "get": (u32, text, pointer(i64)),
    "truth": (u32, text, pointer(i64)),
    "kv": (u32, i32, pointer(i64), pointer(u64)),
    "step": (u32, pointer(ctypes.c_int)),
    "advance": (u32, i64),
    "action": (u32, pointer(ActionInfo)),
    "fault": (u32, text, i64, text, i64, i64),
    "fault_seed": (u32, u64, i64),
    "faults_clear": (u32,),
    "faults_fired": (u32, pointer(i64)),
    "trace": (u32, i64, u32, pointer(CallRecord), pointer(u32), pointer(i64)),
    "jobs": (u32, i64, u32, pointer(JobRecord), pointer(u32), pointer(i64)),
    "violation_kind": (u32, ctypes.c_char_p, ctypes.c_size_t),
    "violations": (u32, i64, u32, pointer(ViolationRecord), pointer(u32), pointer(i64)),
}
