"""The binding against the C header: functions, argument types, structs, enums. Nothing missing, nothing surplus."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import subprocess
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from c_header import INCLUDE, declared, enumerators, functions

from runtime.calrt import BufStatus, Library, PrimitiveType, TaskType
from runtime.calrt_c import ARGUMENTS, MAX_RANK, NAME_BYTES, CModel, CStamps, CTensor

C_TYPES: dict[str, Any] = {
    "int": c_int, "int32_t": c_int32, "int64_t": c_int64, "uint32_t": c_uint32, "uint64_t": c_uint64,
    "size_t": c_size_t, "calrt_c_handle": c_uint64, "char *": c_char_p, "void *": c_void_p, "uint16_t *": c_void_p,
    "float *": c_void_p, "int *": POINTER(c_int), "uint32_t *": POINTER(c_uint32), "uint64_t *": POINTER(c_uint64),
    "calrt_c_handle *": POINTER(c_uint64), "calrt_c_model *": POINTER(CModel), "calrt_c_tensor *": POINTER(CTensor),
    "calrt_c_stamps *": POINTER(CStamps),
}  # fmt: skip
STRUCTS = {"calrt_c_model": CModel, "calrt_c_tensor": CTensor, "calrt_c_stamps": CStamps}


def differences(header: str) -> list[str]:
    """Where the binding's table is not what the header declares."""
    functions_of_c = functions(header)
    found = [f"{name} is not bound" for name in functions_of_c.keys() - ARGUMENTS.keys()]
    found += [f"{name} is not in the header" for name in ARGUMENTS.keys() - functions_of_c.keys()]
    for name in functions_of_c.keys() & ARGUMENTS.keys():
        wanted = tuple(C_TYPES[p.type] for p in functions_of_c[name])
        if ARGUMENTS[name] != wanted:
            found.append(f"{name} takes {wanted}, bound is {ARGUMENTS[name]}")
    return found


def test_the_binding_is_the_header() -> None:
    header = (INCLUDE / "calrt_c.h").read_text(encoding="utf-8")
    assert len(functions(header)) > 40
    assert differences(header) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("calrt_c_kv_release(", "calrt_c_kv_free(", ["kv_free is not bound", "kv_release is not in the header"]),
        ("int32_t sequence, uint32_t length", "int64_t sequence, uint32_t length", ["kv_apply takes"]),
        ("uint32_t units, int *can", "int *can", ["kv_can_allocate takes"]),
    ],
)
def test_a_header_that_differs_is_seen(old: str, new: str, said: list[str]) -> None:
    """Negative control."""
    header = (INCLUDE / "calrt_c.h").read_text(encoding="utf-8")
    assert header.count(old) == 1
    found = differences(header.replace(old, new))
    assert [f[: len(s)] for f, s in zip(sorted(found), said, strict=True)] == said


def test_every_function_is_bound_with_its_types(over_other: Library) -> None:
    """ctypes would take any arguments for a function without argtypes."""
    for name in declared():
        function = over_other._functions[name]
        assert function.argtypes == ARGUMENTS[name]
        assert function.restype is c_int


def layout_in_c(folder: Path) -> str:
    lines = [f'printf("{s} %zu\\n", sizeof({s}));' for s in STRUCTS]
    lines += [
        f'printf("{s}.{f[0]} %zu %zu\\n", offsetof({s}, {f[0]}), sizeof((({s} *)0)->{f[0]}));'
        for s, python in STRUCTS.items()
        for f in python._fields_
    ]
    lines.append('printf("limits %d %d\\n", CALRT_C_NAME_BYTES, CALRT_C_MAX_RANK);')
    source = folder / "layout.c"
    source.write_text(f'#include <stdio.h>\n#include "calrt_c.h"\nint main(void) {{ {" ".join(lines)} return 0; }}')
    compiler = shlex.split(os.environ.get("CC") or "cc")
    subprocess.run([*compiler, f"-I{INCLUDE}", source, "-o", folder / "layout"], check=True, timeout=60)
    return subprocess.run([folder / "layout"], check=True, capture_output=True, text=True, timeout=60).stdout


def test_structs_have_the_compiled_layout(tmp_path: Path) -> None:
    """The header is plain C, and a C compiler lays its structs out as ctypes does."""
    lines = [f"{s} {ctypes.sizeof(python)}" for s, python in STRUCTS.items()]
    lines += [
        f"{s}.{f[0]} {getattr(python, f[0]).offset} {getattr(python, f[0]).size}"
        for s, python in STRUCTS.items()
        for f in python._fields_
    ]
    assert layout_in_c(tmp_path).splitlines() == [*lines, f"limits {NAME_BYTES} {MAX_RANK}"]


@pytest.mark.parametrize("kind", [PrimitiveType, BufStatus, TaskType])
def test_enums_are_the_headers(kind: type[IntEnum]) -> None:
    text = (INCLUDE / "calrt" / "calrt.hpp").read_text(encoding="utf-8")
    found = {
        (name if name.isupper() and name[0] != "k" else name[1:].upper()): value
        for name, value in enumerators(text, kind.__name__).items()
    }
    assert found == {member.name: member.value for member in kind}


def test_every_assumption_is_documented() -> None:
    """The marks [A1], [A2], ... of our CalRT header are the rows of the page's table."""
    marked = re.findall(r"\[(A\d+)\]", (INCLUDE / "calrt" / "calrt.hpp").read_text(encoding="utf-8"))
    page = (INCLUDE.parents[2] / "docs" / "calrt-api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (A\d+) \|", page, flags=re.MULTILINE)
    assert sorted(set(marked)) == sorted(rows)
    assert len(rows) > 10
