"""What the benchmark says: a table that fits into 100 columns, the profile, JSON, and the page docs/bench.md."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from typing import Any

from attrs import asdict
from rich.table import Table

from runtime.bench_line import MISSED, REACHED, UNDECIDED, Line
from runtime.bench_profile import Part, Profile

__all__ = ["as_json", "as_markdown", "profile_table", "table_of"]

COLUMNS = ("line", "ours, us", "base, us", "value", "95 %", "goal", "verdict")
LEFT = ("line", "verdict")
ABOUT = """
Each line is the median over blocks, with the bootstrap's 95 % interval; a goal is reached when the whole interval is on
its side, and undecided when it lies inside. A ratio is only printed once both sides have made the same CalRT calls with
the same arguments and results, all of them (`runtime/bench_calls.py` declares what may differ), and the same logits.

- **TPOT, TTFT**: one client, against the path that the product replaces; P50 and P99 of each pair of blocks.
- **added / floor**: a token at 0 ms, less that of straight code or of the old path, in units of what no executor can do
  without: three hand-offs between C threads, one pass over the logits. **CPU**: of the whole process, device included.
- **idle gap**: from when `Wait()` could know of a job's end to the next job on the device, where somebody had asked
  before; by the device's own stamps, with as many clients at 5 ms. A hand-off is *cold* after 5 ms of doing nothing.
  **Utilisation** counts what the simulator itself is late as use; the **period** of a job does not.
- **wait**: until `infer()` accepted the job; **total**: until its client had the logits. **tokens**: of a client.
- **waiters**: so many clients wait for KV of which the device has none left, and a refused `Apply` is asked again every
  `kv_retry_ms`. Those that wake are counted by the kernel: threads that went to sleep again.
"""
COLOURS = {REACHED: "green", "faster": "green", MISSED: "red", "slower": "red", UNDECIDED: "yellow"}


def cells(line: Line) -> tuple[str, ...]:
    """One row, as text."""
    sides = _side(line.ours), _side(line.base)
    return line.what, *sides, value_text(line), interval_text(line), goal_text(line), line.verdict


def value_text(line: Line) -> str:
    return f"{_number(line.value)} {line.value_unit}".rstrip()


def interval_text(line: Line) -> str:
    return f"{_number(line.low)} - {_number(line.high)}"


def goal_text(line: Line) -> str:
    return str(line.goal or "")


def _side(value: float | None) -> str:
    return "" if value is None else _short(value)


def _number(value: float) -> str:
    """About three digits."""
    places = 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    return _short(value) if abs(value) >= 100 else f"{value:.{places}f}"


def _short(value: float) -> str:
    """At most six places."""
    return f"{value:,.0f}" if abs(value) < 99_999.5 else f"{value / 1_000:,.0f}k"


def table_of(lines: Iterable[Line], verdicts: bool = True) -> Table:
    """At most 100 columns. verdicts: whether the numbers are worth any."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in COLUMNS if verdicts else COLUMNS[:-1]:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
    group = ""
    for line in lines:
        if group and line.group != group:
            table.add_row()
        group = line.group
        *row, verdict = cells(line)
        colour = COLOURS.get(verdict)
        shown = [f"[{colour}]{verdict}[/]" if colour else verdict]
        table.add_row(*row, *(shown if verdicts else ()))
    return table


def profile_table(profile: Profile) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), title=f"{profile.title}: {profile.us:,.0f} us", title_justify="left")
    for name in ("", "times", "us", "P99, us"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for heading, parts in sections(profile):
        table.add_row(f"[bold]{heading}[/]")
        for part in parts:
            table.add_row(f"  {part.what}", *_part(part))
    return table


def sections(profile: Profile) -> Iterator[tuple[str, Items[Part]]]:
    """Those that there are."""
    for heading, parts in (
        ("from one milestone or step to the next (median)", profile.legs),
        ("measured in it (median)", profile.measured),
        ("threads: times it slept, CPU time", profile.threads),
        ("inside CalRT", profile.calls),
        ("layers: CPU time, each without the others", profile.layers),
    ):
        if parts:
            yield heading, parts


def _part(part: Part) -> tuple[str, str, str]:
    return (
        f"{part.times:.2f}",
        "" if part.us is None else f"{part.us:,.1f}",
        "" if part.us_p99 is None else f"{part.us_p99:,.0f}",
    )


def machine() -> dict[str, Any]:
    """What the numbers depend on, besides the code."""
    return {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}


def as_json(lines: Iterable[Line], profiles: Iterable[Profile]) -> str:
    """{"machine", "lines", "profiles"}; a line has its verdict."""
    rows = [{**asdict(line), "verdict": line.verdict} for line in lines]
    return json.dumps({"machine": machine(), "lines": rows, "profiles": [asdict(p) for p in profiles]}, indent=2)


def as_markdown(lines: Iterable[Line], profiles: Iterable[Profile]) -> str:
    """docs/bench.md."""
    return "\n".join(_page(lines, profiles)) + "\n"


def _page(lines: Iterable[Line], profiles: Iterable[Profile]) -> Iterator[str]:
    m = machine()
    yield "# The benchmark"
    yield ""
    yield "GENERATED by `make bench ARGS='--markdown docs/bench.md'`. Do not edit."
    yield ""
    yield f"{m['cores']} cores, {m['system']}, Python {m['python']}; the device is simulated. `ours` and `base` in us."
    yield ABOUT
    yield from _rows(COLUMNS, (cells(line) for line in lines), LEFT)
    for profile in profiles:
        yield ""
        yield f"## {profile.title}: {profile.us:,.0f} us"
        for heading, parts in sections(profile):
            yield ""
            yield from _rows((heading, "times", "us", "P99 us"), ((p.what, *_part(p)) for p in parts), (heading,))


def _rows(names: Items[str], rows: Iterable[Items[str]], left: Items[str]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield f"| {' | '.join('---' if n in left else '---:' for n in names)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"
