"""What a soak shows: a table that is redrawn while it runs, or a line now and then; and a table in the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attrs import define, field
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runtime.run_table import rows_of
from runtime.soak import Soak
from runtime.soak_report import SoakReport
from runtime.soak_samples import GROWS, MIB

__all__ = ["tell", "watching"]

REDRAWN_PER_S = 2.0
WHOLE_FROM = 1000  # numbers that are shown without decimals
SHOWN = (
    ("seconds", "seconds", 1.0), ("tokens_per_s", "tokens/s", 1.0), ("tpot_p50_us", "token p50, ms", 1000.0),
    ("tpot_p99_us", "token p99, ms", 1000.0), *((q.name, q.about, q.scale) for q in GROWS), ("leases", "leases", 1.0),
    ("quarantined_bytes", "in quarantine, MiB", MIB), ("faults", "faults", 1.0), ("recoveries", "recoveries", 1.0),
    ("generation", "generation", 1.0),
)  # fmt: skip
"""Columns of a lap: name, what it is, divided by what."""
LATENCIES = ("first token", "each further token")
SCALES = {name: scale for name, _, scale in SHOWN}
IN_A_LINE = (
    ("{:,.0f} tokens/s", "tokens_per_s"), ("p99 {:,.1f} ms", "tpot_p99_us"), ("RSS {:,.1f} MiB", "rss_bytes"),
    ("{:,.0f} handles", "handles"), ("{:,.0f} resets", "recoveries"),
)  # fmt: skip
"""What a line has of a lap: as much as fits into 100 columns. All of it is in the table and in the report."""


# -- while it runs -----------------------------------------------------------------------------------------------------
@define(eq=False)
class Watch:
    """tokens: that came so far. row, phase: of the last lap; first: the row with which the warm-up ended."""

    soak: Soak
    tokens: int = field(default=0, init=False)
    row: Mapping[str, float] = field(factory=dict, init=False)
    first: Mapping[str, float] = field(factory=dict, init=False)
    phase: str = field(default="starting", init=False)

    def on_token(self) -> None:
        self.tokens += 1  # for the eye: some may be lost between threads

    def on_lap(self, row: Mapping[str, float], phase: str) -> None:
        self.row, self.phase = row, phase
        if not self.first and self.soak.samples.warm is not None:
            self.first = row

    def __rich__(self) -> Table:
        table = Table(title=f"{self.phase}: {self.tokens:,} tokens", title_justify="left", box=None)
        for name, justify in (("", "left"), ("now", "right"), ("since the warm-up", "right")):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        for name, about, scale in SHOWN:
            if name in self.row:
                grown = self.first and any(name == q.name for q in GROWS)
                change = _number((self.row[name] - self.first[name]) / scale, sign="+") if grown else ""
                table.add_row(about, _number(self.row[name] / scale), change)
        return table

    def line(self) -> str:
        if not self.row:
            return f"{self.phase}: {self.tokens:,} tokens"
        said = "; ".join(text.format(self.row[name] / SCALES[name]) for text, name in IN_A_LINE)
        return f"{self.phase}: {self.row['jobs']:,.0f} jobs; {said}"


def _number(value: float, sign: str = "") -> str:
    if float(value).is_integer() or abs(value) >= WHOLE_FROM:
        return f"{value:{sign},.0f}"
    return f"{value:{sign},.2f}"


@contextmanager
def watching(soak: Soak, console: Console, every_s: float) -> Iterator[Callable[[], None]]:
    """Shows each lap: in a terminal in place, else as a line, at most one every so many seconds. Yields what is to be
    told of each token."""
    watch = Watch(soak)
    if console.is_terminal:
        soak.on_lap = watch.on_lap
        with Live(watch, console=console, refresh_per_second=REDRAWN_PER_S, transient=True):
            yield watch.on_token
        return
    latest_s = time.monotonic() - every_s

    def on_lap(row: Mapping[str, float], phase: str) -> None:
        nonlocal latest_s
        watch.on_lap(row, phase)
        if time.monotonic() - latest_s >= every_s:
            latest_s = time.monotonic()
            console.print(watch.line(), soft_wrap=True, highlight=False, markup=False)

    soak.on_lap = on_lap
    yield watch.on_token


# -- in the end --------------------------------------------------------------------------------------------------------
def tell(found: SoakReport, console: Console) -> None:
    run = found.run
    console.print(f"{run.model}, {run.clients} clients: {sum(run.jobs.values()):,} jobs in {run.seconds:,.0f} s")
    rows: list[tuple[str, str, bool]] = [*_latencies(found), *(row for row in rows_of(run) if row[0] not in LATENCIES)]
    if found.soak.healed:
        completed, of = found.soak.served
        rows.append(("after the faults", f"{completed:,} of {of:,} requests completed", not found.served_all))
    if found.ended_by:
        rows.append(("ended by", found.ended_by, False))
    width = max(len(name) for name, _, _ in rows) + 2
    for name, value, wrong in rows:
        console.print(f"{name:<{width}}{value}", style="bold red" if wrong else None, soft_wrap=True)
    for table in _growth(found):
        console.print()
        console.print(table, soft_wrap=True)
    for finding in found.findings:
        console.print(finding, style="red", soft_wrap=True)


def _latencies(found: SoakReport) -> Iterator[tuple[str, str, bool]]:
    """In the place of `run`'s, which keeps each of them."""
    tally = found.soak.tally
    for name, of in zip(LATENCIES, (tally.ttft_of_all, tally.tpot_of_all), strict=True):
        said = [f"p{p:g} {of.percentile(p) / 1000:,.2f} ms" for p in (50, 90, 99, 99.9)]
        yield name, ", ".join(said), False


def _growth(found: SoakReport) -> Iterator[Table]:
    if found.slopes:
        jobs = found.slopes[0].jobs
        table = _table("grows with the jobs", "for 10^6 jobs", "95 % of slopes", f"in {jobs:,.0f} jobs", "at most", "")
        for s in found.slopes:
            q = s.quantity
            interval = f"{_number(s.low / q.scale, '+')} to {_number(s.high / q.scale, '+')}"
            _add(
                table,
                s.flat,
                "flat",
                q.about,
                s.per_million / q.scale,
                interval,
                s.grown / q.scale,
                s.allowed / q.scale,
            )
        yield table
    if found.tolls:
        table = _table("grows over recoveries", "each", "recoveries", "all", "at most", "")
        for t in found.tolls:
            q = t.quantity
            each = t.grown / t.recoveries / q.scale
            _add(table, t.kept, "kept", q.about, each, f"{t.recoveries:,}", t.grown / q.scale, t.allowed / q.scale)
        yield table


def _table(*columns: str) -> Table:
    table = Table(box=None)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left")
    return table


def _add(table: Table, good: bool, word: str, *cells: Any) -> None:
    said = [c if isinstance(c, str) else _number(c) for c in cells]
    table.add_row(*said, Text(word if good else "GROWS", style="" if good else "bold red"))
