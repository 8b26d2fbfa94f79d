"""Plots as files: small multiples of what was measured. Needs matplotlib, which is an optional extra (`plots`).

Theory. What is to be compared over the same x is drawn in small panels of one size, one quantity each with its unit in
the title, so that no panel needs two axes. What happened at some x (a recovery) is marked in every panel at the same
place; where there are too many marks for lines, they are a rug along the bottom. A value that was not measured is None:
a gap, never a zero. Nothing here knows what is drawn.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SUFFIXES", "Level", "Panel", "PlotsMissing", "Series", "available", "small_multiples"]

SUFFIXES = (".png", ".svg", ".pdf")
INSTALL = "matplotlib is not installed (pip install 'calexec[plots]')"

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: told apart by everybody
INK, FAINT, MARK = "#333333", "#DDDDDD", "#B0302A"
PANEL_INCHES = (5.0, 2.2)
DOTS_PER_INCH = 120
LINES_MAX = 40  # marks that are drawn as lines; more are a rug
STYLE: Any = {
    "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.edgecolor": INK, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": FAINT, "grid.linewidth": 0.7, "axes.axisbelow": True, "lines.linewidth": 1.3, "svg.fonttype": "none",
}  # fmt: skip

Numbers = Sequence[float | None]


class PlotsMissing(RuntimeError):
    """matplotlib is not there; in one line, with what to do."""


@frozen
class Series:
    """One line of a panel. x, y: as many of each; None in y is a gap. low, high: an interval around each y, in its
    unit. points: dots instead of a line. label: for the legend; "" where the panel has one series."""

    x: Sequence[float]
    y: Numbers
    label: str = ""
    low: Numbers = ()
    high: Numbers = ()
    points: bool = False


@frozen
class Level:
    """A horizontal line that something is compared with, such as a bound."""

    y: float
    label: str = ""


@frozen
class Panel:
    """One small plot. title: what is drawn, with its unit: "RSS, MiB". ticks: names of the places 0, 1, ... on the x
    axis, where x is no number. whole: y is counted, so ticks are whole numbers. log: the y axis; needs y > 0."""

    title: str
    series: Sequence[Series]
    levels: Sequence[Level] = ()
    ticks: Sequence[str] = ()
    whole: bool = False
    log: bool = False
    from_zero: bool = False
    note: str = field(default="")  # one short line above the panel's right corner


def available() -> bool:
    """Whether plots can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def small_multiples(
    path: Path, panels: Sequence[Panel], *, title: str, x_label: str = "", marks: Sequence[float] = (),
    marks_label: str = "", shaded: tuple[float, float] | None = None, columns: int = 2,
) -> None:  # fmt: skip
    """Draw the panels into a file (one of SUFFIXES), row by row. marks: places on x, shown in every panel whose x is a
    number; so is what is shaded, from and to. marks_label: what the marks are.

    Raises PlotsMissing without matplotlib, ValueError for another suffix or no panel, OSError when the file cannot be
    written."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: a plot is one of {', '.join(SUFFIXES)}")
    if not panels:
        raise ValueError("a plot needs a panel")
    if not available():
        raise PlotsMissing(f"{path} was not drawn: {INSTALL}")
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure = _figure(panels, title, x_label, columns)
        for axes, panel in zip(figure.axes, panels, strict=False):
            if not panel.ticks:
                _mark(axes, marks, shaded)
        if marks and marks_label:
            figure.text(0.99, 0.995, marks_label, ha="right", va="top", color=MARK, fontsize=9)
        figure.savefig(path, dpi=DOTS_PER_INCH)


def _figure(panels: Sequence[Panel], title: str, x_label: str, columns: int) -> Figure:
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * columns, height * rows + 0.7), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    grid = figure.subplots(rows, columns, squeeze=False)
    places = list(grid.flat)
    for axes, panel in zip(places, panels, strict=False):
        _draw(axes, panel)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    for i in range(max(0, len(panels) - columns), len(panels)):  # the lowest of each column
        places[i].set_xlabel("" if panels[i].ticks else x_label)
    return figure


# -- one panel ---------------------------------------------------------------------------------------------------------
def _draw(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_title(panel.title)
    for color, series in zip(_colors(), panel.series, strict=False):
        _draw_series(axes, series, color)
    for level in panel.levels:
        axes.axhline(level.y, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        if level.label:
            axes.annotate(
                level.label, (1, level.y), xycoords=("axes fraction", "data"), xytext=(-2, 2),
                textcoords="offset points", ha="right", va="bottom", fontsize=8,
            )  # fmt: skip
    if panel.log:
        axes.set_yscale("log")
        axes.set_ylabel("log scale", fontsize=8)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=panel.whole, min_n_ticks=1 if panel.whole else 2))
        _range(axes, panel)
    axes.yaxis.set_major_formatter(FuncFormatter(_said))
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
        axes.set_xlim(-0.6, len(panel.ticks) - 0.4)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.xaxis.set_major_formatter(FuncFormatter(_said))
        axes.margins(x=0.01)
    if panel.note:
        axes.set_title(panel.note, loc="right", fontsize=8, fontweight="normal")
    if any(series.label for series in panel.series):  # above the panel, where no curve can be
        axes.legend(
            frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1.1 if panel.note else 1), ncols=4,
            borderaxespad=0.1, handlelength=1.2,
        )  # fmt: skip


def _draw_series(axes: Axes, series: Series, color: str) -> None:
    y = _gaps(series.y)
    if series.points:
        axes.plot(series.x, y, "o", color=color, markersize=4, label=series.label)
    else:
        axes.plot(series.x, y, color=color, label=series.label)
    if series.low and series.points:
        for x, low, high in zip(series.x, _gaps(series.low), _gaps(series.high), strict=True):
            axes.plot([x, x], [low, high], color=color, linewidth=1.3)
    elif series.low:
        axes.fill_between(series.x, _gaps(series.low), _gaps(series.high), color=color, alpha=0.18, linewidth=0)


def _range(axes: Axes, panel: Panel) -> None:
    """A line that does not move lies in the middle of an axis that is not a thousandth wide."""
    values = [v for s in panel.series for ys in (s.y, s.low, s.high) for v in _gaps(ys) if math.isfinite(v)]
    values += [level.y for level in panel.levels]
    if not values:
        return
    low, high = min(values), max(values)
    if panel.from_zero:
        low = min(0.0, low)
    least = 2.0 if panel.whole else abs(high) * 0.02 or 1.0
    if high - low < least:
        middle = low + least / 2 if panel.from_zero else (low + high) / 2
        low, high = middle - least / 2, middle + least / 2
    room = (high - low) * 0.08  # also below zero: a line that lies there is seen
    axes.set_ylim(low - room, high + room)


def _mark(axes: Axes, marks: Sequence[float], shaded: tuple[float, float] | None) -> None:
    from matplotlib.transforms import blended_transform_factory

    if shaded:
        axes.axvspan(*shaded, color=FAINT, alpha=0.5, linewidth=0, zorder=0)
    if not marks:
        return
    if len(marks) <= LINES_MAX:
        for x in marks:
            axes.axvline(x, color=MARK, linewidth=0.6, alpha=0.5, zorder=0.5)
        return
    place = blended_transform_factory(axes.transData, axes.transAxes)
    for_each = [0.02] * len(marks)
    alpha = max(0.08, min(0.6, 120 / len(marks)))
    axes.plot(list(marks), for_each, "|", color=MARK, markersize=5, alpha=alpha, transform=place, zorder=0.5)


def _colors() -> Iterator[str]:
    while True:
        yield from COLORS


def _gaps(values: Numbers) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def _said(value: float, _: Any = None) -> str:
    """A number on an axis: 0.25, 12, 1,500, 200k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(size, 1e4):
            return f"{value / size:,.6g}{letter}"
    return f"{value:,.6g}"
