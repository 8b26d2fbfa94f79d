"""The scheduler: the shipped actors without a thread, every step a choice, and the same choices the same run."""

from __future__ import annotations

import threading

import pytest

from checker.real import MOVES, Plan, Run, Scenario, chosen, drawn, play, running
from runtime.calrt import Library
from runtime.cast import CAST
from runtime.executor import DeviceExecutor
from runtime.status import StatusKind

SEEDS = range(5)


def story(run: Run) -> list[str]:
    return [f"{e.at_us} {e.rule} {e.element} {e.observed}" for e in run.executor.journal.entries()]


def kinds(run: Run) -> list[StatusKind]:
    return [asked.result.status.kind for asked in run.asked.values() if asked.result]


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("fine", [False, True])
def test_when_nobody_chooses_every_job_succeeds(library: Library, slots: int, fine: bool) -> None:
    scenario = Scenario(slots=slots, inflight=slots, clients=(Plan((3, 1, 1)), Plan((2, 2, 1))), fine=fine)
    run = play(scenario, (), library)
    assert kinds(run) == [StatusKind.OK] * 6
    assert not run.refused
    assert run.truth.fired["completion.deliver"] == 6
    assert run.generations == 1
    assert not any(run.sim.violations())


def test_the_same_choices_are_the_same_run(library: Library) -> None:
    stories = set()
    for seed in SEEDS:
        scenario, choices = drawn(seed), chosen(seed, 100)
        first, second = play(scenario, choices, library), play(scenario, choices, library)
        assert first.moves_made == second.moves_made
        assert story(first) == story(second)
        stories.add(tuple(story(first)))
    assert len(stories) > len(SEEDS) // 2, "other choices are other runs"


def test_what_was_recorded_is_the_run(library: Library) -> None:
    """The choices that a run wrote down lead to it again, also those that were made when the list had ended."""
    for seed in SEEDS:
        first = play(drawn(seed), chosen(seed, 60), library)
        again = play(drawn(seed), first.choices, library)
        assert (first.moves_made, story(first)) == (again.moves_made, story(again))


def test_another_choice_is_another_run(library: Library) -> None:
    """Negative control of the two above."""
    scenario = Scenario()
    assert story(play(scenario, (), library)) != story(play(scenario, (0, 1), library))


def test_no_thread_is_started(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(self: threading.Thread) -> None:
        raise AssertionError(f"{self.name} was started")

    monkeypatch.setattr(threading.Thread, "start", no)
    for seed in SEEDS:
        play(drawn(seed), chosen(seed, 60), library)


def test_the_actors_are_those_of_the_cast(library: Library) -> None:
    """One for each thread that the executor would have, made by the executor's own crew."""
    with running(Scenario(), library) as run:
        config = run.executor.config
        assert len(run.stage.players) == sum(part.threads(config) for part in CAST)
        assert {type(p.who).__name__ for p in run.stage.players} == {"generator"}
        assert {p.who.__name__ for p in run.stage.players} == {"actor"}
        assert isinstance(run.executor, DeviceExecutor)
        run.end()


def test_a_parked_actor_has_no_move(library: Library) -> None:
    """It goes on only when the engine has granted it something; when it may is not asked of its rules."""
    with running(Scenario(clients=()), library) as run:
        parked = [p for p in run.stage.players if p.parked]
        assert len(parked) == len(run.stage.players), "it is Ready, and nothing is to be done"
        assert all(p.wish is None for p in parked)
        run.executor.engine._s.mode = 0  # behind the engine's back: nothing was granted
        run.stage.grant()
        assert all(p.wish is None for p in parked)
        run.executor.engine._s.mode = run.truth._books.shared[run.truth._at[""]["mode"]]
        run.end()


def test_time_passes_by_choice_alone(library: Library) -> None:
    with running(Scenario(moves=("time",), faults=0), library) as run:
        before = run.clock.us
        while run.step(0) and run.clock.us == before:
            pass
        assert run.clock.us == before, "somebody could go on until the end, so nobody waited for a deadline"
        run.end()
    late = play(Scenario(moves=("time",), faults=0), [1, 1, 2, 1, 3] * 12, library)
    assert late.overdue
    assert late.clock.us > before


def test_what_follows_a_step_can_be_a_move_of_its_own(library: Library) -> None:
    run = play(Scenario(fine=True, clients=(Plan((3, 1)),)), (), library)
    followed = [m for m in run.moves_made if m.startswith("what follows ")]
    assert any("completion.deliver" in m for m in followed)
    assert not any(m.startswith("what follows ") for m in play(Scenario(), (), library).moves_made)


@pytest.mark.parametrize("move", MOVES)
def test_each_move_of_the_adversary_can_be_made(library: Library, move: str) -> None:
    """And is not offered where the scenario does not have it."""
    said = {
        "cancel": "cancel job", "remove": "somebody removes", "switch": "switch the model", "close": "close",
        "give_up": "give up", "early_wait": "wait returns early", "time": "the next deadline passes",
    }[move]  # fmt: skip
    made = {True: "", False: ""}
    for has in made:
        moves = tuple(m for m in MOVES if (m == move) == has)
        scenario = Scenario(moves=moves, faults=1, kinds=(), ends_after=0)
        made[has] = "\n".join(m for seed in SEEDS for m in moves_offered(scenario, seed, library))
    assert said in made[True]
    assert said not in made[False]


def moves_offered(scenario: Scenario, seed: int, library: Library) -> list[str]:
    from checker.real.moves import moves

    offered: list[str] = []
    with running(scenario, library) as run:
        for choice in chosen(seed, 30):
            found = moves(run)
            regular = [m.text for m in found]
            offered += regular if len(regular) > 1 or regular[:1] != ["the next deadline passes"] else []
            run.step(choice)
        run.end()
    return offered
