"""The dump sink (S12): what went into jobs and what came out, as files. Off unless the configuration says otherwise.

Theory. The product wrote these files into a user's directory that was fixed in the code. They hold what users said, so:
they are off by default, the directory has no default, a file is its owner's alone, and all of them together have a
limit, which counts what is there already. A dump never costs a job: what is copied is copied at once, the rest is the
recorder's thread; what does not fit or cannot be written is told, and left out.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from runtime.files import private_directory, write_private
from runtime.job import InferenceRequest, JobContext
from runtime.status import Status

__all__ = ["DumpFull", "DumpSink"]


class DumpFull(RuntimeError):
    """The file would take the dumps over their limit. It was not written."""


class DumpSink:
    """Files `<start>-<process>-job<number>-input.npz` (values, request) and `...-output.npz` (status; logits if OK).

    Both are numpy's, without pickles; `request` and `status` are JSON. bytes_max: of all files in the directory.
    hand_over: takes a task that writes. Its own methods never block and never raise."""

    def __init__(self, directory: Path, bytes_max: int, hand_over: Callable[[str, Callable[[], None]], None]) -> None:
        self.directory, self.bytes_max = directory, bytes_max
        self._hand_over = hand_over
        self._prefix = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{os.getpid()}"
        self._bytes: int | None = None  # in the directory; the recorder's thread alone reads and writes it

    def input(self, context: JobContext) -> None:
        """Before the job's client may use its array for something else."""
        request = {**_about(context.request), "job": context.job_id}
        self._copy(f"job{context.job_id}-input", {"request": request}, values=context.request.values)

    def output(self, context: JobContext, status: Status) -> None:
        """Before the job's client has the logits."""
        told = {**attrs.asdict(status), "kind": status.kind.name}
        self._copy(f"job{context.job_id}-output", {"status": told}, **({"logits": context.logits} if status.ok else {}))

    def _copy(self, name: str, texts: dict[str, Any], **arrays: NDArray[Any]) -> None:
        try:
            copies = {key: np.array(array) for key, array in arrays.items()}
        except MemoryError:
            return
        self._hand_over("dump", lambda: self._write(name, texts, copies))

    # -- on the recorder's thread --------------------------------------------------------------------------------------
    def _write(self, name: str, texts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Raises OSError, or DumpFull."""
        if self._bytes is None:
            private_directory(self.directory)
            self._bytes = sum(file.stat().st_size for file in os.scandir(self.directory) if file.is_file())
        file = io.BytesIO()
        members: dict[str, Any] = {**arrays, **{key: np.array(json.dumps(text)) for key, text in texts.items()}}
        np.savez(file, **members)
        content = file.getvalue()
        if self._bytes + len(content) > self.bytes_max:
            raise DumpFull(f"{name} has {len(content)} bytes, {self._bytes} are there; allowed are {self.bytes_max}")
        write_private(self.directory / f"{self._prefix}-{name}.npz", content, durable=False)
        self._bytes += len(content)


def _about(request: InferenceRequest) -> dict[str, Any]:
    return {
        "request": request.request_id, "sequence": request.seq_id, "task": request.task.name,
        "past_len": request.past_len,
    }  # fmt: skip
