"""Intervals, goals, and what is made of the lines: table, JSON, page, picture. No device is needed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from runtime.bench_line import Goal, line, of_comparison
from runtime.bench_plot import draw, rows_of
from runtime.bench_profile import Part, Profile
from runtime.bench_table import as_json, as_markdown, profile_table, table_of, value_text
from runtime.paired import compare, interval


@pytest.mark.parametrize(
    ("goal", "low", "high", "verdict"),
    [
        (Goal(1.03), 0.9, 1.03, "reached"), (Goal(1.03), 1.02, 1.04, "undecided"),
        (Goal(1.03), 1.04, 1.2, "not reached"), (Goal(97, at_most=False), 97, 99, "reached"),
        (Goal(97, at_most=False), 96, 98, "undecided"),
        (Goal(97, at_most=False), 90, 96.9, "not reached"),
    ],
)  # fmt: skip
def test_a_goal_is_reached_by_the_whole_interval(goal: Goal, low: float, high: float, verdict: str) -> None:
    assert goal.verdict(low, high) == verdict


@pytest.mark.parametrize(("low", "high"), [(2.0, 1.0), (float("nan"), 1.0)])
def test_what_is_no_interval_has_no_verdict(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="no interval"):
        Goal(1).verdict(low, high)


def test_the_interval_of_the_median_holds_it_about_as_often_as_it_says() -> None:
    """On three distributions whose medians are known; of 180 intervals of 95 %, 171 should."""
    random = np.random.default_rng(5)
    medians = {0.0: random.standard_normal, float(np.log(2)): random.standard_exponential, 0.5: random.random}
    held = [
        low <= median <= high
        for median, draw_blocks in medians.items()
        for low, high in (interval(draw_blocks(21)) for _ in range(60))
    ]
    assert 150 <= sum(held) <= 178  # of 80 % intervals, 137 hold it


def test_a_line_is_the_median_of_its_blocks() -> None:
    found = line("gap", "x", [1.0, 9.0, 2.0], goal=Goal(5))
    assert (found.value, found.low, found.high, found.blocks) == (2.0, 1.0, 9.0, 3)
    assert found.verdict == "undecided"
    with pytest.raises(ValueError, match="x: 1 blocks; at least 2"):
        line("gap", "x", [1.0])


def test_a_number_that_is_no_ratio_has_no_winner() -> None:
    assert line("floor", "hand-off", [2.0, 3.0], value_unit="us").verdict == ""
    ratio = compare("x", "ours", "base", [2.0, 2.0, 2.0], [4.0, 4.0, 4.0])
    assert of_comparison("tpot", ratio).verdict == "faster"
    assert of_comparison("tpot", ratio, goal=Goal(0.4)).verdict == "not reached"


TPOT = "TPOT P50, 20 ms / legacy"
LINES = [
    of_comparison("tpot", compare(TPOT, "executor", "legacy", [20e3, 21e3], [20e3, 20e3]), Goal(1.03)),
    line("floor", "3 hand-offs + logits pass", [123456.0, 123457.0], value_unit="us"),
    line(
        "gap", "a line that is as long as they may be.", [1234.5, 9999.0], goal=Goal(1.05),
        names=("a", "b"), ours=123456.0, base=123456.0,
    ),
    line("gap", "utilisation, 64 clients", [90.0, 95.0, 91.0], goal=Goal(97, at_most=False), value_unit="%"),
]  # fmt: skip
PARTS = (Part("x", 1.0, 123456.7, 123456.0), Part("steps", 14.0, None))
PROFILE = Profile("A token at 0 ms", 987.6, PARTS, PARTS, PARTS, PARTS, PARTS)


def test_the_tables_fit_into_100_columns() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100)
    console.print(table_of(LINES))
    console.print(profile_table(PROFILE))
    rows = out.getvalue().splitlines()
    assert max(len(row.rstrip()) for row in rows) <= 100
    assert "…" not in out.getvalue()  # nothing was cut
    assert " ".join(rows[1].split()) == f"{TPOT} 20,500 20,000 1.02 1.00 - 1.05 <= 1.03 undecided"
    assert sum(not row.strip() for row in rows[: len(LINES) + 3]) == 2  # between the groups


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0042, "0.004"), (0.5, "0.50"), (9.994, "9.99"), (12.34, "12.3"), (1234.4, "1,234"), (123_456.0, "123k")],
)
def test_numbers_have_about_three_digits(value: float, text: str) -> None:
    assert value_text(line("gap", "x", [value, value])) == text


def test_json_has_all_of_a_line() -> None:
    found = json.loads(as_json(LINES, [PROFILE]))
    assert set(found) == {"machine", "lines", "profiles"}
    first = found["lines"][0]
    assert {name: first[name] for name in ("group", "what", "names", "ours", "base", "value", "verdict", "goal")} == {
        "group": "tpot", "what": "TPOT P50, 20 ms / legacy", "names": ["executor", "legacy"], "ours": 20500.0,
        "base": 20000.0, "value": 1.025, "verdict": "undecided", "goal": {"value": 1.03, "at_most": True},
    }  # fmt: skip
    assert found["profiles"][0]["legs"][0] == {"what": "x", "times": 1.0, "us": 123456.7, "us_p99": 123456.0}


def test_the_page_has_a_row_for_each_line_and_part_and_no_date() -> None:
    page = as_markdown(LINES, [PROFILE])
    assert "| TPOT P50, 20 ms / legacy | 20,500 | 20,000 | 1.02 | 1.00 - 1.05 | <= 1.03 | undecided |" in page
    assert page.count("\n| x | 1.00 | 123,456.7 | 123,456 |") == 5
    assert len({row.count("|") for row in page.splitlines() if row.startswith("| ") and "TPOT" in row}) == 1


def test_a_picture_shows_shares_of_goals() -> None:
    """An interval of what should be large is turned round, so that left is better in every row."""
    rows = {row.label: row for row in rows_of(LINES)}
    assert "3 hand-offs + logits pass" not in rows  # neither a goal nor two sides
    assert rows["TPOT P50, 20 ms / legacy"].value == pytest.approx(1.025 / 1.03)
    used = rows["utilisation, 64 clients"]
    assert (used.low, used.value, used.high) == pytest.approx((97 / 95, 97 / 91, 97 / 90))
    assert [row.y for row in rows.values()] == pytest.approx([0, 1.6, 2.6])


def test_nothing_at_all_has_a_place_on_a_logarithmic_axis() -> None:
    (row,) = rows_of([line("idle", "CPU", [0.0, 0.0], goal=Goal(1), value_unit="%")])
    assert row.low == row.high > 0


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "bench.png", LINES)
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"one of \.png"):
        draw(tmp_path / "bench.txt", LINES)
    with pytest.raises(ValueError, match="no line has a goal"):
        draw(tmp_path / "bench.png", [LINES[1]])
