"""Plots: what is given is in the file, and what cannot be drawn is refused in one line.

Read back from SVG, whose texts stay texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from attrs import evolve

from runtime.plots import LINES_MAX, Level, Panel, PlotsMissing, Series, _figure, available, small_multiples

SVG = "{http://www.w3.org/2000/svg}"
RSS = Panel("RSS, MiB", [Series([0, 1_000, 2_000_000], [100, 101, 102])])
LATENCY = Panel("latency, ms", [Series([0, 1, 2], [1, 2, 3], "p50"), Series([0, 1, 2], [4, 5, 6], "p99")])


def drawn(path: Path, panels: list[Panel], **more: Any) -> ElementTree.Element:
    small_multiples(path, panels, **{"title": "a soak", "x_label": "jobs", **more})
    return ElementTree.parse(path).getroot()


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(e.itertext()) for e in root.iter(f"{SVG}text")]


def stroked(root: ElementTree.Element, color: str) -> list[str]:
    """The paths of this colour, each as SVG has it: M begins a piece of the line."""
    return [e.get("d", "") for e in root.iter(f"{SVG}path") if color in e.get("style", "")]


def test_titles_labels_and_axes_are_there(tmp_path: Path) -> None:
    said = texts(drawn(tmp_path / "p.svg", [RSS, LATENCY]))
    for text in ("a soak", "RSS, MiB", "latency, ms", "p50", "p99", "2M", "0"):
        assert text in said, text
    assert said.count("jobs") == 2, "one below each column"


def boxes(panel: Panel) -> tuple[Any, Any]:
    """Where the panel is, and where its legend, in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _figure([panel], "a soak", "jobs", 1)
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    return axes.get_window_extent(), legend.get_window_extent()


def test_a_legend_lies_over_no_curve() -> None:
    """A curve may be anywhere in its panel, also in each corner."""
    for panel in (LATENCY, evolve(LATENCY, log=True), evolve(LATENCY, note="flat")):
        inside, legend = boxes(panel)
        assert legend.y0 >= inside.y1 - 1
        assert legend.x1 <= inside.x1 + 1


def test_a_log_axis_says_so(tmp_path: Path) -> None:
    assert "log scale" in texts(drawn(tmp_path / "log.svg", [evolve(LATENCY, log=True)]))
    assert "log scale" not in texts(drawn(tmp_path / "linear.svg", [LATENCY]))


def test_a_line_at_zero_is_not_on_the_edge() -> None:
    figure = _figure([Panel("leases", [Series([0, 1], [0, 0])], whole=True, from_zero=True)], "a soak", "jobs", 1)
    low, high = figure.axes[0].get_ylim()
    assert low < 0 < 1 < high
    assert [tick for tick in figure.axes[0].get_yticks() if low <= tick <= high] == [0, 1, 2]


def test_a_mark_is_in_every_panel(tmp_path: Path) -> None:
    none = len(stroked(drawn(tmp_path / "0.svg", [RSS, RSS]), "#b0302a"))
    some = drawn(tmp_path / "3.svg", [RSS, RSS], marks=[10, 20, 30], marks_label="| recovery")
    assert len(stroked(some, "#b0302a")) - none == 3 * 2
    assert "| recovery" in texts(some)


def test_many_marks_are_a_rug(tmp_path: Path) -> None:
    marks = list(range(LINES_MAX + 1))
    root = drawn(tmp_path / "p.svg", [RSS], marks=marks)
    ticks = [e for e in root.iter(f"{SVG}use") if "#b0302a" in e.get("style", "")]
    assert len(ticks) == len(marks)


def test_what_was_not_measured_is_a_gap(tmp_path: Path) -> None:
    gap = Panel("threads", [Series([0, 1, 2, 3, 4], [8, 8, None, 8, 8])], whole=True)
    (line,) = [d for d in stroked(drawn(tmp_path / "p.svg", [gap]), "#0072b2") if "L" in d]
    assert line.count("M") == 2


def test_a_bound_and_intervals(tmp_path: Path) -> None:
    ratio = Panel(
        "ratio", [Series([0, 1], [1.0, 1.02], low=[0.99, 1.0], high=[1.01, 1.05], points=True)],
        levels=[Level(1.04, "at most")], ticks=["P50", "P99"],
    )  # fmt: skip
    root = drawn(tmp_path / "p.svg", [ratio], marks=[0])
    assert {"at most", "P50", "P99"} <= set(texts(root))
    assert len([d for d in stroked(root, "#0072b2") if d.count("L") == 1]) == 2, "an interval for each point"
    assert stroked(root, "#b0302a") == [], "no marks where x is no number"


def test_png(tmp_path: Path) -> None:
    small_multiples(tmp_path / "p.png", [RSS], title="a soak")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "panels"), [("p.bmp", [RSS]), ("p", [RSS]), ("p.svg", [])])
def test_refused(tmp_path: Path, name: str, panels: list[Panel]) -> None:
    with pytest.raises(ValueError, match="a plot"):
        small_multiples(tmp_path / name, panels, title="a soak")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not available()
    with pytest.raises(PlotsMissing, match=r"p\.svg was not drawn: matplotlib is not installed") as missing:
        small_multiples(tmp_path / "p.svg", [RSS], title="a soak")
    assert "\n" not in str(missing.value)
    assert list(tmp_path.iterdir()) == []
