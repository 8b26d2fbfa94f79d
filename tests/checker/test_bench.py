"""The benchmark gives a ratio only for equal work. How large it is, no test says."""

from __future__ import annotations

import os
from io import StringIO

import pytest
from attrs import evolve
from rich.console import Console

from checker.bench import Once, Side, Unequal, against_python, against_spin, compare, compile_anew, show
from checker.spin import SpinRun
from examples.two_phase_commit import RULEBOOK


def side(name: str, *runs: Once) -> Side:
    waiting = list(runs)
    return Side(name, lambda: waiting.pop(0))


def test_sides_take_turns_and_the_median_counts() -> None:
    fast = side("fast", *(Once(10, 20, s, s, 80.0) for s in (1.0, 3.0, 2.0)))
    slow = side("slow", *(Once(10, 20, s, s, None) for s in (20.0, 30.0, 90.0)))
    result = compare(fast, slow, rounds=3)
    assert result["ratio"] == 15.0
    assert (result["ratio_min"], result["ratio_max"]) == (10.0, 45.0)
    assert result["sides"][0]["states_per_second"] == 5.0
    assert result["sides"][0]["bytes_per_state"] == 8.0


def test_unequal_work_gives_no_ratio() -> None:
    right, wrong = Once(10, 20, 1.0, 1.0, None), Once(10, 21, 1.0, 1.0, None)
    with pytest.raises(
        Unequal, match="no ratio, the work was not the same: a 10 states and 20 transitions, b 10 and 21"
    ):
        compare(side("a", right), side("b", wrong), rounds=1)


def test_against_the_python_engine() -> None:
    result = against_python(RULEBOOK, {"managers": 3}, rounds=2)
    printed = StringIO()
    show(Console(file=printed, width=120), "Against the Python engine", result)
    assert [(s["states"], s["transitions"]) for s in result["sides"]] == [(288, 1145)] * 2
    assert "288" in printed.getvalue()


def test_against_spin(spin: None) -> None:
    result = against_spin(RULEBOOK, {"managers": 3}, rounds=1)
    assert [(s["states"], s["transitions"]) for s in result["sides"]] == [(288, 1145)] * 2
    assert result["sides"][1]["engine"].startswith("SPIN 6")
    assert result["sides"][1]["bytes_per_state"] > 0


def test_spin_that_counts_otherwise_gives_no_ratio(spin: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from checker import bench

    honest = bench.SpinProgram.run

    def one_less(self: bench.SpinProgram, depth_max: int, hash_bits: int) -> SpinRun:
        run = honest(self, depth_max, hash_bits)
        return evolve(run, states=run.states - 1)

    monkeypatch.setattr(bench.SpinProgram, "run", one_less)
    with pytest.raises(Unequal):
        against_spin(RULEBOOK, {"managers": 3}, rounds=1)


def test_compile_times_are_not_those_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "/somewhere"):
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        if before:
            monkeypatch.setenv("XDG_CACHE_HOME", before)
        with compile_anew():
            assert os.environ["XDG_CACHE_HOME"] != before
        assert os.environ.get("XDG_CACHE_HOME") == before
