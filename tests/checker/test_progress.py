"""What a running campaign shows: a live table on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import checker.progress
from checker.campaign import execute, plan_campaign
from checker.engines import Search
from checker.memory import default_limit_mb, resident_mb
from checker.progress import LiveBoard, PlainBoard, QuietBoard, board_for
from checker.result import Progress
from tests.checker.door import door_rulebook

HALFWAY = Progress(level=7, states=12_000, frontier=300, transitions=40_000, seconds=2.0, memory_mb=81.4)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_right_board_for_a_stream() -> None:
    assert type(board_for(Terminal(), 1, quiet=False)) is LiveBoard
    assert type(board_for(io.StringIO(), 1, quiet=False)) is PlainBoard
    assert type(board_for(Terminal(), 1, quiet=True)) is QuietBoard


def test_plain_lines_are_occasional(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    task = plan_campaign(door_rulebook()).tasks[0]
    report = PlainBoard(out).started(task)
    report(HALFWAY)
    assert out.getvalue() == ""
    monkeypatch.setattr(checker.progress, "PLAIN_EVERY_SECONDS", 0.0)
    report(HALFWAY)
    assert out.getvalue() == "... small: level 7, 12,000 states, 6,000 states/s, frontier 300, 81 MB\n"


def test_plain_lines_name_each_run_that_ended() -> None:
    out = io.StringIO()
    execute(plan_campaign(door_rulebook()), Search("python"), PlainBoard(out))
    ended = sorted(line.split(" states")[0] for line in out.getvalue().splitlines())
    assert ended == ["... careless: REFUTED, 12", "... large: PROVED, 14", "... small: PROVED, 6"]


def test_the_live_table_has_a_line_per_running_run() -> None:
    out = io.StringIO()
    plan = plan_campaign(door_rulebook())
    board = LiveBoard(Console(file=out, force_terminal=True, width=100), total=len(plan.tasks))
    with board:
        board.started(plan.tasks[0])
        board.started(plan.tasks[1])(HALFWAY)
        board.live.refresh()
    shown = out.getvalue()
    assert "0 of 3 runs done" in shown
    for cell in ("small", "careless", "12,000", "6,000", "81 MB"):
        assert cell in shown


def test_a_run_that_ended_leaves_the_live_table() -> None:
    plan = plan_campaign(door_rulebook())
    board = LiveBoard(Console(file=io.StringIO(), force_terminal=True), total=len(plan.tasks))
    execute(plan, Search("python"), board)
    assert (board.going, board.done) == ({}, 3)


def test_memory_is_measured_and_bounded() -> None:
    before = resident_mb()
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])  # touch every page
    assert resident_mb() - before > 32
    assert 2 * default_limit_mb(2) == pytest.approx(default_limit_mb(1), abs=2)
