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

__all__ = ["MISSED", "REACHED", "UNDECIDED", "Goal", "Line", "line", "of_comparison"]

REACHED, MISSED, UNDECIDED = "reached", "not reached", "undecided"


@frozen
class Goal:
    """value: at most this, or at least."""

    value: float
    at_most: bool = True

    def verdict(self, low: float, high: float) -> str:
        """Of an interval. Raises ValueError for what is none."""
        if not low <= high:
            raise ValueError(f"{low} to {high} is no interval")
        best, worst = (low, high) if self.at_most else (-high, -low)
        goal = self.value if self.at_most else -self.value
        return REACHED if worst <= goal else MISSED if best > goal else UNDECIDED

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.value:g}"


@frozen(kw_only=True)
class Line:
    """One line.

    group: the part of the benchmark (--lines). what: what is measured. ours, base: the two sides as medians in `unit`,
    None where there is no such side; names: what they are. value: what is judged, a ratio (value_unit "") or a number.
    low, high: its 95 % interval, of so many blocks. cpu_ratio: ours / base of the CPU time, where that was measured.
    """

    group: str
    what: str
    value: float
    low: float
    high: float
    blocks: int
    value_unit: str = ""
    goal: Goal | None = None
    names: tuple[str, str] = ("", "")
    ours: float | None = None
    base: float | None = None
    unit: str = "us"
    cpu_ratio: float | None = None

    @property
    def verdict(self) -> str:
        """Of a ratio of two sides without a goal: which one is the faster. Of another number without a goal: none."""
        if self.goal:
            return self.goal.verdict(self.low, self.high)
        if self.base is None or self.value_unit:
            return ""
        return "faster" if self.high < 1 else "slower" if self.low > 1 else UNDECIDED


def line(
    group: str, what: str, values: Iterable[float], *, goal: Goal | None = None, value_unit: str = "",
    names: tuple[str, str] = ("", ""), ours: float | None = None, base: float | None = None,
) -> Line:  # fmt: skip
    """From the value of each block. Raises ValueError for fewer than two."""
    blocks = np.fromiter(values, np.float64)
    if len(blocks) < 2:
        raise ValueError(f"{what}: {len(blocks)} blocks; at least 2 are needed")
    low, high = interval(blocks)
    return Line(
        group=group, what=what, value=float(np.median(blocks)), low=low, high=high, blocks=len(blocks), goal=goal,
        value_unit=value_unit, names=names, ours=ours, base=base,
    )  # fmt: skip


def of_comparison(group: str, c: Comparison, goal: Goal | None = None, cpu_ratio: float | None = None) -> Line:
    """The ratio of paired blocks."""
    return Line(
        group=group, what=c.what, value=c.ratio, low=c.low, high=c.high, blocks=c.blocks, goal=goal,
        names=(c.ours, c.base), ours=c.ours_us, base=c.base_us, cpu_ratio=cpu_ratio,
    )  # fmt: skip
