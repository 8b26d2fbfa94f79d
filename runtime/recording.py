"""A whole run as a journal in a file: what the ring of the last steps cannot hold.

Theory. The hot path does nothing for it: each step goes into the ring as ever, and a thread reads the ring before it is
overwritten, and the simulator's trace before that is, and appends lines. So memory is bounded, whatever the disk does.
Who was too slow says how many steps are missing, and goes on from a state that is known. Steps are counted first and
calls are read then: a call that returned before a step was taken is written before it.

A file that cannot be written ends the recording and not the run: `lost` says why, and the file has no end.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from attrs import asdict

from machines.evidence import CHAIN, linked
from runtime.calllog import CallLog
from runtime.executor import DeviceExecutor
from runtime.files import FILE_MODE
from runtime.journal import Checkpoint, Journal
from runtime.simulator import Simulator

__all__ = ["EVERY_S", "Recording"]

EVERY_S = 0.05
LAST_S = 10.0  # for what is left when it ends


class Recording:
    """Of one executor, from its first step on. Raises OSError when the file cannot be made. lost: why it is not whole,
    or ""."""

    def __init__(self, path: Path, simulator: Simulator | None) -> None:
        """Before the executor is made: its first calls belong to it."""
        self.path, self.lost = path, ""
        self._file: IO[str] = open(  # noqa: SIM115 (it is open as long as the run)
            path, "w", encoding="utf-8", opener=lambda p, flags: os.open(p, flags, FILE_MODE)
        )
        self._calls = CallLog(simulator, simulator.calls_total()) if simulator else None
        self._chain, self._next, self._ended = "", 0, threading.Event()
        self._journal: Journal = Journal()
        self._thread = threading.Thread(target=self._run, name="calexec recording", daemon=True)

    def follow(self, executor: DeviceExecutor) -> None:
        """Begin. The executor keeps the journal that it has now."""
        self._journal = executor.engine.journal
        start = Checkpoint(-1, 1, {})
        self._write([self._journal.head(start, self._calls.start if self._calls else None)])
        self._thread.start()

    def close(self) -> None:
        """The executor has closed: write what is left, and the end. Again is harmless."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(LAST_S)
        if self._thread.is_alive():
            self.lost = self.lost or f"the disk took longer than {LAST_S:g} s"
            return
        try:
            self._end()
        except TimeoutError as error:
            self.lost = self.lost or str(error)
        try:
            self._file.close()
        except OSError as error:
            self.lost = self.lost or str(error.strerror)

    def _run(self) -> None:
        while not self.lost and not self._ended.wait(EVERY_S):
            self._write(self._new(self._journal.total))

    def _end(self) -> None:
        if self._journal.at_rest is None or self.lost:
            return
        end: dict[str, Any] = self._journal.at_rest(self._journal.end)
        self._write(self._new(end["end"]))
        self._write([{**end, "calls": self._calls.next if self._calls else None}])

    # -- lines ---------------------------------------------------------------------------------------------------------
    def _new(self, total: int) -> Iterator[Mapping[str, Any]]:
        """Calls until now, then steps below `total`."""
        if self._calls:
            yield from self._calls.drain()
        while self._next < total:
            entry = self._journal.kept(self._next)
            if entry is None:
                yield self._gap()
            else:
                self._next += 1
                yield asdict(entry)

    def _gap(self) -> dict[str, Any]:
        """Steps were overwritten before they were read: on from the oldest state that the ring still reaches."""
        start = next(c for c in self._journal.checkpoints() if self._journal.kept(c.number + 1) is not None)
        missing, self._next = start.number + 1 - self._next, start.number + 1
        return {"gap": missing, "begins": self._next, "generation": start.generation, "state": start.state}

    def _write(self, records: Any) -> None:
        try:
            for record in records:
                self._chain = linked(self._chain, record)
                self._file.write(json.dumps({**record, CHAIN: self._chain}) + "\n")
            self._file.flush()
        except OSError as error:
            self.lost = error.strerror or str(error)
