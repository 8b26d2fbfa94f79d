"""Hypothesis: any scenario, any schedule. What the executor does is what the rulebook says, and true."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from schedules import PROFILE, PROFILES, RECOVERING, SCHEDULES, scenarios

import checker.real
from checker.real import Run, Scenario, Violated, choices, chosen, play
from runtime.calls import DeviceCalls
from runtime.calrt import Library


class Statistics:
    """Of all runs of one test."""

    def __init__(self) -> None:
        self.generations: Counter[int] = Counter()
        self.rules: Counter[str] = Counter()
        self.moves = self.steps = 0

    def count(self, run: Run) -> None:
        self.generations[run.generations] += 1
        self.rules += run.truth.fired
        self.moves += len(run.choices)
        self.steps += run.truth.replay.steps

    def share(self, generation: int) -> float:
        """Of the runs that came so far."""
        return sum(n for g, n in self.generations.items() if g >= generation) / self.generations.total()

    def __str__(self) -> str:
        runs = self.generations.total()
        shares = ", ".join(f"{self.share(g):.0%} generation {g}" for g in sorted(self.generations)[1:])
        return f"{runs} runs, {self.moves} moves, {self.steps} steps, {len(self.rules)} rules; {shares}"


def explore(strategy: object, profile: settings, library: Library) -> Statistics:
    statistics = Statistics()

    @profile
    @given(strategy, SCHEDULES)
    def every(scenario: Scenario, schedule: bytes) -> None:
        statistics.count(play(scenario, choices(schedule), library))

    every()
    print(statistics)
    return statistics


def test_any_scenario_any_schedule(library: Library) -> None:
    statistics = explore(scenarios(), PROFILE, library)
    assert statistics.share(1) == 1


def test_where_devices_fail_later_generations_are_reached(library: Library) -> None:
    """The same, where something goes wrong in every run and recovery is allowed: or nothing of it would be explored."""
    half = settings(PROFILE, max_examples=PROFILE.max_examples // 2)
    statistics = explore(scenarios(RECOVERING, faults=3), half, library)
    assert statistics.share(2) > 0.6
    assert statistics.share(3) > 0.5


@pytest.mark.nightly
def test_for_half_an_hour(library: Library) -> None:
    explore(scenarios(), PROFILES["nightly"], library)


def test_a_failure_is_printed_as_code(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which, run, is the same failure."""
    monkeypatch.setattr(DeviceCalls, "quarantine", lambda self, context: None)
    with pytest.raises(Violated) as violated:
        play(Scenario(faults=2, kinds=("infer.hang", "wait.timeout"), moves=()), chosen(0, 80), library)
    said = str(violated.value).splitlines()
    assert said[-1].startswith("play(Scenario(")
    with pytest.raises(Violated) as again:
        eval(said[-1], vars(checker.real))
    assert str(again.value).splitlines()[:: len(said) - 1] == [said[0], said[-1]]
