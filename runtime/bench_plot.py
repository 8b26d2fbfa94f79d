"""The lines as a forest plot: each with its interval, as a share of its goal. Needs matplotlib (the extra `plots`).

Theory. Lines of different units fit on one axis once each is divided by its own goal, and one that should be large the
other way round: then the goal of all is 1, and what lies to the right of it is not reached. A ratio of two sides that
has no goal is held against 1, where both are alike. The axis is logarithmic, so that twice and half are equally far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from runtime.bench_line import MISSED, REACHED, Line
from runtime.bench_table import goal_text, interval_text, value_text
from runtime.plots import DOTS_PER_INCH, INK, INSTALL, STYLE, SUFFIXES, PlotsMissing, available

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Row", "draw", "rows_of"]

COLORS = {REACHED: "#009E73", "faster": "#009E73", MISSED: "#D55E00", "slower": "#D55E00"}
UNCLEAR = "#777777"
WIDTH_INCHES, ROW_INCHES, HEAD_INCHES = 11.0, 0.27, 1.3
TITLE = "The executor against its goals, with 95 % intervals"
X_LABEL = "share of the goal (of a ratio without one: of 1); to the right of 1 it is not reached"
LEAST = 1e-3  # what is less, or nothing at all, is drawn there
NEAREST, FARTHEST = 1 / 1.5, 1.5  # what the axis shows at least


@frozen
class Row:
    """low, value, high: shares of the goal. text: the numbers as they are."""

    label: str
    low: float
    value: float
    high: float
    text: str
    verdict: str
    y: float


def rows_of(lines: Iterable[Line]) -> Iterator[Row]:
    """From top to bottom, a free place between two groups; what has neither a goal nor two sides is left out."""
    y = 0.0
    drawn = (line for line in lines if line.verdict)
    for _, group in groupby(drawn, key=lambda line: line.group):
        for line in group:
            reference, upwards = (line.goal.value, line.goal.at_most) if line.goal else (1.0, True)
            found = (max(v, LEAST * reference) for v in (line.low, line.value, line.high))
            low, value, high = (v / reference if upwards else reference / v for v in found)
            text = f"{value_text(line)} ({interval_text(line)})  {goal_text(line)}  {line.verdict}"
            yield Row(line.what, min(low, high), value, max(low, high), text, line.verdict, y)
            y += 1
        y += 0.6


def draw(path: Path, lines: Iterable[Line]) -> None:
    """Raises PlotsMissing without matplotlib, ValueError for another suffix or nothing to draw, OSError."""
    rows = list(rows_of(lines))
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: a plot is one of {', '.join(SUFFIXES)}")
    if not rows:
        raise ValueError(f"{path}: no line has a goal or two sides")
    if not available():
        raise PlotsMissing(f"{path} was not drawn: {INSTALL}")
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        _figure(rows).savefig(path, dpi=DOTS_PER_INCH)


def _figure(rows: Items[Row]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, ROW_INCHES * (rows[-1].y + 1) + HEAD_INCHES), layout="constrained")
    figure.suptitle(TITLE, x=0.01, ha="left", fontsize=12, fontweight="bold")
    _draw(figure.subplots(), rows)
    return figure


def _draw(axes: Axes, rows: Items[Row]) -> None:
    axes.axvline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    for row in rows:
        color = COLORS.get(row.verdict, UNCLEAR)
        axes.plot([row.low, row.high], [row.y, row.y], color=color, linewidth=1.6, solid_capstyle="butt")
        axes.plot([row.value], [row.y], "o", color=color, markersize=5)
        axes.text(
            1.01, row.y, row.text, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=color
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(min(NEAREST, *(row.low for row in rows)) / 1.2, max(FARTHEST, *(row.high for row in rows)) * 1.2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel(X_LABEL)
    axes.set_yticks([row.y for row in rows], [row.label for row in rows])
    axes.set_ylim(rows[-1].y + 0.7, -0.7)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
