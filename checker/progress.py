"""Shows how far the runs are: a live table on a terminal, an occasional plain line elsewhere, nothing when quiet."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from checker.campaign import RunResult, Task
from checker.result import Progress, ProgressCallback

PLAIN_EVERY_SECONDS = 15.0
REFRESHES_PER_SECOND = 4


class QuietBoard:
    """Says nothing."""

    def started(self, task: Task) -> ProgressCallback:
        return lambda progress: None

    def finished(self, result: RunResult) -> None:
        pass

    def __enter__(self) -> QuietBoard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


class PlainBoard(QuietBoard):
    """One line when a run ends, and one every few seconds while it goes on."""

    def __init__(self, out: TextIO) -> None:
        self.out, self.lock = out, threading.Lock()

    def started(self, task: Task) -> ProgressCallback:
        last = time.monotonic()

        def report(p: Progress) -> None:
            nonlocal last
            if time.monotonic() - last >= PLAIN_EVERY_SECONDS:
                last = time.monotonic()
                self._say(f"{task.run.name}: {describe(p)}")

        return report

    def finished(self, result: RunResult) -> None:
        e = result.exploration
        self._say(f"{result.run.name}: {result.verdict.name}, {e.states:,} states in {e.seconds:.1f} s ({e.engine})")

    def _say(self, line: str) -> None:
        with self.lock:
            print(f"... {line}", file=self.out, flush=True)


class LiveBoard(QuietBoard):
    """A table of the runs that are going on, redrawn in place."""

    def __init__(self, console: Console, total: int) -> None:
        self.going: dict[str, Progress | None] = {}
        self.total, self.done, self.lock = total, 0, threading.Lock()
        self.live = Live(
            get_renderable=self._table, console=console, refresh_per_second=REFRESHES_PER_SECOND, transient=True
        )

    def started(self, task: Task) -> ProgressCallback:
        name = task.run.name
        with self.lock:
            self.going[name] = None

        def report(p: Progress) -> None:
            with self.lock:
                self.going[name] = p

        return report

    def finished(self, result: RunResult) -> None:
        with self.lock:
            self.going.pop(result.run.name, None)
            self.done += 1

    def __enter__(self) -> LiveBoard:
        self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.live.stop()

    def _table(self) -> Table:
        table = Table(title=f"{self.done} of {self.total} runs done", title_justify="left", box=None)
        for column in ("run", "level", "states", "states/s", "frontier", "memory"):
            table.add_column(column, justify="left" if column == "run" else "right")
        with self.lock:
            for name, p in self.going.items():
                table.add_row(name, *(_cells(p) if p else ("...",)))
        return table


def board_for(out: TextIO, total: int, quiet: bool) -> QuietBoard:
    """The right board for a stream."""
    if quiet:
        return QuietBoard()
    return LiveBoard(Console(file=out), total) if out.isatty() else PlainBoard(out)


def describe(p: Progress) -> str:
    return "level {}, {} states, {} states/s, frontier {}, {}".format(*_cells(p))


def _cells(p: Progress) -> tuple[str, str, str, str, str]:
    rate = p.states / p.seconds if p.seconds else 0.0
    return str(p.level), f"{p.states:,}", f"{rate:,.0f}", f"{p.frontier:,}", f"{p.memory_mb:,.0f} MB"
