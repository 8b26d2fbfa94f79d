"""A line of the benchmark: a number with its 95 % interval, held against a goal.

Theory. A line is measured in blocks. Its value is the median over the blocks, and its interval the middle 95 % of what
that median would be had the blocks been drawn anew (`paired.interval`). Where the goal lies inside the interval nothing
is decided, and the line says so: a goal counts as reached only when the whole interval is on its side.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from attrs import frozen

from runtime.paired import Comparison, interval

__all__ = ["Goal", "Line", "line", "of_comparison"]

REACHED, MISSED, UNDECIDED = "reached", "not reached", "undecided"


@frozen
class Goal:
    """value: at most this, or at least."""

    value: float
    at_most: bool = True

    def verdict(self, low: float, high: float) -> str:
        """Of an interval."""
        if low > high:
            raise ValueError(f"the interval {low} to {high} is none")
        best, worst = (low, high) if self.at_most else (-high, -low)
        goal = self.value if self.at_most else -self.value
        return REACHED if worst <= goal else MISSED if best > goal else UNDECIDED

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.value:g}"


@frozen
class Line:
    """group: which part of the benchmark it belongs to (--lines). ours, base: the two sides as measured, in `unit`;
    None where there is no such side. value: what is judged: their ratio, or a number in value_unit ("" for a ratio).
    low, high: its 95 % interval, of so many blocks. names: what the two sides are. cpu_ratio: ours / base of the CPU
    time of one run, where that was measured."""

    group: str
    what: str
    names: tuple[str, str]
    ours: float | None
    base: float | None
    unit: str
    value: float
    low: float
    high: float
    blocks: int
    goal: Goal | None = None
    value_unit: str = ""
    cpu_ratio: float | None = None

    @property
    def verdict(self) -> str:
        """Of a ratio without a goal: which side is the faster one. Of another number without a goal: none."""
        if self.goal:
            return self.goal.verdict(self.low, self.high)
        if self.value_unit or self.base is None:
            return ""
        return "faster" if self.high < 1 else "slower" if self.low > 1 else UNDECIDED


def line(
    group: str, what: str, values: Iterable[float], *, goal: Goal | None = None, value_unit: str = "",
    names: tuple[str, str] = ("", ""), ours: float | None = None, base: float | None = None, unit: str = "",
) -> Line:  # fmt: skip
    """From the value of each block. Raises ValueError for fewer than two."""
    blocks = np.fromiter(values, np.float64)
    if len(blocks) < 2:
        raise ValueError(f"{what}: {len(blocks)} blocks; at least 2 are needed")
    low, high = interval(blocks)
    return Line(
        group, what, names, ours, base, unit, float(np.median(blocks)), low, high, len(blocks), goal, value_unit
    )  # fmt: skip


def of_comparison(group: str, c: Comparison, goal: Goal | None = None, cpu_ratio: float | None = None) -> Line:
    """The ratio of paired blocks."""
    sides = (c.ours, c.base), c.ours_us, c.base_us, "us"
    return Line(group, c.what, *sides, c.ratio, c.low, c.high, c.blocks, goal, cpu_ratio=cpu_ratio)
