"""Why a file is no library for this machine, before the loader sees it: what the loader says is "No such file" for a
library of another processor, it waits for ever on a pipe, and it is killed by a file that was cut off."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

from attrs import frozen

from runtime.strict_json import JsonError, check_regular

MACHINES = {3: "x86", 8: "MIPS", 21: "PowerPC 64", 40: "ARM", 62: "x86-64", 183: "AArch64", 243: "RISC-V"}
SHARED_OBJECT = 3  # ET_DYN
HEADER_BYTES = 64


@frozen
class Header:
    """What an ELF header says. end: where the section headers end, the last thing of most files."""

    bits: int
    kind: int
    machine: int
    end: int

    @property
    def processor(self) -> str:
        return f"{MACHINES.get(self.machine, f'processor {self.machine}')} with {self.bits} bits"


def why_not_loadable(path: Path) -> str | None:
    """One clause; None when the loader may have it."""
    try:
        check_regular(path)
        with path.open("rb") as f:
            header = parse(f.read(HEADER_BYTES))
    except (JsonError, OSError) as e:
        return str(e) if isinstance(e, JsonError) else f"cannot be read: {e.strerror}"
    if header is None:
        return "is no shared object; expected an ELF file"
    if header.processor != OURS.processor:
        return f"is for {header.processor}; expected {OURS.processor}, as this Python is"
    if header.kind != SHARED_OBJECT:
        return "is an ELF file but no shared object"
    if path.stat().st_size < header.end:
        return f"has {path.stat().st_size} bytes; expected at least {header.end}: it is cut off"
    return None


def parse(raw: bytes) -> Header | None:
    """The header at the beginning of a file; None when there is none."""
    if len(raw) < HEADER_BYTES or raw[:4] != b"\x7fELF" or raw[4] not in (1, 2) or raw[5] not in (1, 2):
        return None
    order = "<" if raw[5] == 1 else ">"
    kind, machine = struct.unpack_from(f"{order}HH", raw, 16)
    word, at, sizes_at = ("I", 32, 46) if raw[4] == 1 else ("Q", 40, 58)  # e_shoff; e_shentsize and e_shnum
    (sections,) = struct.unpack_from(order + word, raw, at)
    size, count = struct.unpack_from(f"{order}HH", raw, sizes_at)
    return Header(32 * raw[4], kind, machine, sections + size * count)


def _ours() -> Header:
    with open(os.path.realpath(sys.executable), "rb") as f:
        header = parse(f.read(HEADER_BYTES))
    assert header is not None
    return header


OURS = _ours()
