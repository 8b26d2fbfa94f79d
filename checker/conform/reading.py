"""Reading a journal from a file: lines of JSON as they come, or an incident's dossier, of which it is one part.

Theory. A file may be longer than memory, so it is read line by line. The last line of a process that died may be cut
short; that is a journal without an end, and no lie. Any other line that is no JSON is one that somebody changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

__all__ = ["BadFile", "Line", "lines_of"]

MANY_LETTERS = 2000
LEVELS_MAX = 8  # of what is in each other in a record
MANY = 64 << 20  # bytes of a dossier, which is read at once


class BadFile(Exception):
    """It cannot be read, or it is no journal. One line, for the user."""


@frozen
class Line:
    """One record. number: of its line, or of its place in the dossier, from 1. bytes: read so far. record: None where
    the line is no JSON object; then its text is kept. cut: it is the last one, and has no end."""

    number: int
    bytes: int
    record: dict[str, Any] | None
    cut: bool = False
    text: str = ""


def lines_of(path: Path) -> Iterator[Line]:
    """Raises BadFile."""
    try:
        with path.open("rb") as file:
            first = file.readline(MANY)
            head = _object(first)
            if head is not None and isinstance(head.get("journal"), int):
                yield Line(1, len(first), head)
                yield from _rest(file, len(first))
                return
            head = head or _object(first + file.read(MANY))
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from None
    kept = head.get("journal") if head else None
    if not isinstance(kept, list):
        raise BadFile(
            f"{path} is no journal: expected lines of JSON of which the first has `journal`, or an incident's file"
        )
    for number, record in enumerate(kept, 1):
        yield Line(number, 0, record if isinstance(record, dict) else None)


def _rest(file: Any, read: int) -> Iterator[Line]:
    for number, line in enumerate(file, 2):
        read += len(line)
        record = _object(line)
        text = "" if record is not None else line[:MANY_LETTERS].decode("utf-8", "replace").rstrip("\n")
        yield Line(number, read, record, not line.endswith(b"\n"), text)


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    deep = text.count(b"[") + text.count(b"{") > LEVELS_MAX and _is_deeper(found, LEVELS_MAX)
    return found if isinstance(found, dict) and not deep else None


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether more is in each other than so many levels."""
    if not isinstance(value, dict | list):
        return False
    return not levels or any(_is_deeper(v, levels - 1) for v in (value.values() if isinstance(value, dict) else value))
