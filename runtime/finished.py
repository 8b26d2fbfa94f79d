"""The file of finished prompts: what one process has finished, the next one need not do again.

Theory. A device that Failed ends its process (§9.1); what was answered before must not be lost. So each prompt is
written down when it is finished, as one line of JSON, appended by one write and synced before anybody is told. A line
that a dying process did not finish is the last one, and does not count. The first line says what the file belongs to:
another model, other prompts or another number of tokens are refused, and so is a second run at the same time. Every
start adds a line too: how often there was one makes the next start's faults others.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field

from runtime.clients import Order
from runtime.exits import Exit, Failure
from runtime.manifest import Manifest
from runtime.prompts import Prompt
from runtime.tally import Ends

__all__ = ["Finished"]

FILE_BYTES_MAX = 1 << 28
COUNTS = (Ends.COMPLETED, Ends.CANCELLED)  # ends after which there is nothing left to do


@define(eq=False)
class Finished:
    """ends: of each prompt that is finished, by its line: how, and its tokens. start: which start this is, from 1; 0
    without a file. `write` is thread-safe; it raises OSError."""

    ends: dict[int, tuple[str, list[int]]] = field(factory=dict)
    start: int = 0
    _file: int | None = None
    _mu: Any = field(factory=threading.Lock, init=False)

    @staticmethod
    @contextmanager
    def at(path: Path | None, manifest: Manifest, prompts: Sequence[Prompt], order: Order) -> Iterator[Finished]:
        """The file, which is made where it is not there. None: nothing is written. Raises Failure."""
        if path is None:
            yield Finished()
            return
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise Failure(Exit.NOT_WRITTEN, [f"cannot write {path}: {error.strerror}"]) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finished = Finished(file=file)
            finished._read(path, _belongs_to(manifest, prompts, order), {p.line for p in prompts})
            yield finished
        except BlockingIOError:
            raise Failure(Exit.USAGE, [f"{path} is in use by another run; give another file"]) from None
        finally:
            os.close(file)

    def write(self, prompt: Prompt, end: str, tokens: list[int]) -> None:
        """Nothing for an end that is none."""
        if self._file is not None and end in COUNTS:
            with self._mu:
                self._append({"line": prompt.line, "end": end, "tokens": tokens})

    # -- the file ------------------------------------------------------------------------------------------------------
    def _read(self, path: Path, belongs_to: dict[str, Any], lines: set[int]) -> None:
        assert self._file is not None
        size = os.fstat(self._file).st_size
        if size > FILE_BYTES_MAX:
            raise Failure(Exit.USAGE, [f"{path} has {size} bytes, and at most {FILE_BYTES_MAX} are read; give another"])
        content = os.pread(self._file, size, 0)
        whole, newline, torn = content.rpartition(b"\n")
        if torn:  # a process died in the middle of it
            os.ftruncate(self._file, len(whole) + len(newline))
        entries = [_entry(path, n, text) for n, text in enumerate(whole.split(b"\n"), 1)] if whole else []
        if not entries:
            self._append(belongs_to)
        elif entries[0] != belongs_to:
            what = ", ".join(k for k in belongs_to if entries[0].get(k) != belongs_to[k]) or "its first line"
            raise Failure(Exit.USAGE, [f"{path} belongs to another run: {what} differs; give another file"])
        for n, entry in enumerate(entries[1:], 2):
            self._take(path, n, entry, lines)
        self.start += 1
        self._append({"start": self.start})

    def _take(self, path: Path, n: int, entry: dict[str, Any], lines: set[int]) -> None:
        match entry:
            case {"start": int(start)}:
                self.start = start
            case {"line": int(line), "end": str(end), "tokens": list(tokens)} if line in lines and end in COUNTS:
                self.ends[line] = end, tokens
            case _:
                raise Failure(Exit.USAGE, [f"{path}:{n}: neither a start nor a finished prompt of this run"])

    def _append(self, entry: dict[str, Any]) -> None:
        assert self._file is not None
        text = json.dumps(entry).encode() + b"\n"
        if os.write(self._file, text) != len(text):
            raise OSError("the file of finished prompts could not be written whole")
        os.fsync(self._file)


def _entry(path: Path, n: int, text: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        raise Failure(Exit.USAGE, [f"{path}:{n}: not a line of a file of finished prompts; give another file"])
    return entry


def _belongs_to(manifest: Manifest, prompts: Sequence[Prompt], order: Order) -> dict[str, Any]:
    texts = hashlib.sha256(json.dumps([[p.line, p.tokens] for p in prompts]).encode()).hexdigest()
    return {
        "calbin_sha256": manifest.calbin_sha256, "prompts_sha256": texts, "tokens": order.count,
        "cancel": order.cancel, "seed": order.seed,
    }  # fmt: skip
