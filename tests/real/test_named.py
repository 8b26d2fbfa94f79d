"""Failures in the field that are about order, as schedules: what happened is made to happen at every pause point.

The run goes on by itself for so many steps, then the events of the story come, in each order and with some steps in
between, and then it goes on by itself to its end. What must hold after every step is asked by the oracle; here is what
the story adds. The numbers are those of the scenarios under test in tests/scenarios, with real threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import permutations

import pytest
from attrs import frozen

from checker.real import Plan, Run, Scenario, running
from checker.real.moves import Move, moves
from runtime.calrt import Library
from runtime.status import StatusKind

ONE = (Plan((3, 1)),)
TWO = (Plan((3, 1)), Plan((2, 1)))
BETWEEN = (0, 1, 3)  # steps between two events
NEVER = 400  # no run is that long
OK, CANCELLED, LATE = StatusKind.OK, StatusKind.CANCELLED, StatusKind.DEADLINE_EXCEEDED


@frozen
class Story:
    """events: a kind of move, or a fault's name, or words that a move begins with. seen: what must come to pass in some
    of its runs, or the story would not be told: rules that were fired, kinds of answers."""

    name: str
    scenario: Scenario
    events: tuple[str, ...]
    seen: tuple[str | StatusKind, ...]
    also: Callable[[Run], None] = lambda run: None


def is_event(move: Move, event: str) -> bool:
    return event == move.kind or (move.fault is not None and move.fault.name == event) or move.text.startswith(event)


def happens(run: Run, event: str, within: int) -> bool:
    """The event, as soon as it can: after so many steps at most."""
    for _ in range(within):
        at = next((n for n, move in enumerate(moves(run)) if is_event(move, event)), None)
        if at is not None:
            return run.step(at)
        if not run.step(0):
            return False
    return False


def told(story: Story, after: int, order: tuple[str, ...], between: int, library: Library) -> tuple[Run, bool]:
    """One run, and whether its first event came to pass that late."""
    with running(story.scenario, library) as run:
        on_time = all(run.step(0) for _ in range(after))
        on_time = on_time and happens(run, order[0], within=1 if len(order) == 1 else 20)
        for event in order[1:]:
            for _ in range(between):
                run.step(0)
            happens(run, event, within=20)
        run.end()
        story.also(run)
    return run, on_time


def every(story: Story, library: Library, points: int, betweens: tuple[int, ...]) -> Iterator[Run]:
    for order in permutations(story.events):
        for between in betweens if len(order) > 1 else (0,):
            for after in range(points):
                run, on_time = told(story, after, order, between, library)
                yield run
                if not on_time and len(run.choices) <= after:
                    break


# -- what the stories add ----------------------------------------------------------------------------------------------
def answers(run: Run) -> list[StatusKind]:
    return [asked.result.status.kind for asked in run.asked.values() if asked.result]


def nothing_leaked(run: Run) -> None:
    """Nothing was in doubt in the end, so every slot is free and no sequence of an ended client holds KV."""
    assert not run.faulted
    calls = run.executor.calls
    assert calls.pool is not None
    counts = calls.pool.counts()
    assert (counts.leased, counts.quarantined) == (0, 0)


def nothing_after_the_cancel(run: Run) -> None:
    """F11: no infer() begins for a job whose client is gone."""
    gone: set[object] = set()
    for entry in run.executor.journal.entries():
        assert not (entry.rule == "submitter.infer" and entry.element in gone)
        if entry.rule == "client.cancel":
            gone.add(entry.element)


def bounded(run: Run) -> None:
    """F40: every recovery is on the budget; the device serves again or is Failed."""
    recoveries = run.truth.fired["lifecycle.recover"] + run.truth.fired["clock.grace.recover"]
    retries = run.truth.fired["lifecycle.golden.failed"] + run.truth.fired["lifecycle.configure.failed"]
    assert recoveries + retries <= run.scenario.recoveries


def everybody_ok(run: Run) -> None:
    """F27: a refusal is no end."""
    assert set(answers(run)) == {OK}


def scenario(*moves: str, kinds: tuple[str, ...] = (), faults: int = 0, **more: object) -> Scenario:
    return Scenario(moves=moves, kinds=kinds, faults=faults, ends_after=0, **{"clients": ONE, **more})  # type: ignore[arg-type]


RACE = scenario("cancel", cancels=1)
DEADLINE = (("request_ms_max", 10), ("execution_ms", 1000), ("grace_ms", 1000))
HANG = scenario("time", kinds=("infer.hang",), faults=1, clients=TWO, unlike_ms=(("execution_ms", 10),))
STORIES = (
    Story("F01 cancel and completion", RACE, ("cancel",), (OK, CANCELLED), nothing_leaked),
    Story("F02 cancel and completion, what follows a step later", scenario("cancel", cancels=1, fine=True), ("cancel",),
          (OK, CANCELLED), nothing_leaked),
    Story("F03 cancel while Wait blocks", RACE, ("cancel",), ("completion.discard", "completion.commit.ok")),
    Story("F04 exception and deadline", scenario("time", kinds=("infer.ccu_exception",), faults=1, unlike_ms=DEADLINE),
          ("infer.ccu_exception", "time"), ("completion.wait.exception", "clock.request")),
    Story("F05 a completion that nobody waits for", scenario(
        "time", kinds=("infer.hang", "wait.device"), faults=2, clients=TWO, slots=2, inflight=2,
        unlike_ms=(("grace_ms", 10), ("execution_ms", 1000)),
    ), ("wait.device", "time"), ("completion.wait.stale",)),
    Story("F11 the client is gone", scenario("cancel", cancels=2, clients=TWO), ("cancel",), (CANCELLED,),
          nothing_after_the_cancel),
    Story("F13 a hang, a deadline, and the next job", HANG,
          ("infer.hang", "time"), ("clock.execution", "lifecycle.recover")),
    Story("F18 cancel, and the record is used again", scenario("cancel", cancels=2, clients=TWO, fine=True),
          ("cancel",), (CANCELLED, "records.forget")),
    Story("F19 deadline and completion", scenario("time", unlike_ms=DEADLINE), ("time",), (OK, LATE)),
    Story("F27 refused, and tried again", scenario("time", kinds=("reserve.refused",), faults=1, clients=TWO,
          unlike_ms=(("admission_ms", 1000), ("request_ms_max", 1000), ("execution_ms", 1000), ("queue_ms", 1000))),
          ("reserve.refused",), ("admission.reserve.refused.prefill", "clock.kv_retry"), everybody_ok),
    Story("F40 a reset that lies", scenario(
        kinds=("infer.nan", "reset.ignore"), faults=2, policy="rebuild-golden"), ("infer.nan", "reset.ignore"),
        ("lifecycle.golden.failed", "lifecycle.golden.passed"), bounded),
    Story("F42 a submit during a recovery", scenario(kinds=("infer.device",), faults=1, clients=TWO),
          ("infer.device", "client 2"), ("lifecycle.recover", OK)),
    Story("F48 closing twice", scenario("close"), ("close",), (OK, "client.close"), lambda run: run.close()),
)  # fmt: skip


def tell(story: Story, library: Library, points: int, betweens: tuple[int, ...]) -> int:
    seen: Counter[str | StatusKind] = Counter()
    runs = 0
    for run in every(story, library, points, betweens):
        runs += 1
        seen.update([*run.truth.fired, *answers(run)])
    assert [what for what in story.seen if not seen[what]] == []
    return runs


def name(story: Story) -> str:
    return story.name.replace(" ", "_")


@pytest.mark.nightly
@pytest.mark.parametrize("story", STORIES, ids=name)
def test_at_every_pause_point(story: Story, library: Library) -> None:
    print(story.name, tell(story, library, NEVER, BETWEEN), "runs")


@pytest.mark.parametrize("story", [s for s in STORIES if s.name[:3] in ("F01", "F03", "F19")], ids=name)
def test_one_event_at_every_pause_point(story: Story, library: Library) -> None:
    assert tell(story, library, NEVER, (0,)) > 20


# F24: each call on a job's way in fails, or succeeds and says that it failed.
WAY_IN = tuple(f for f in Scenario().kinds if f.split(".")[0] in ("reserve", "prepare"))

ENDS = ("prepare.artifact", "prepare.programming")  # no model is left; this kind of call is off for the generation


@pytest.mark.parametrize("fault", WAY_IN)
def test_f24_failing_at_each_step_of_the_way_in(fault: str, library: Library) -> None:
    """The next job is served, and what was taken is given back or in doubt by the steps, which the oracle counts."""
    with running(scenario(kinds=(fault,), faults=1, clients=TWO), library) as run:
        assert happens(run, fault, within=40)
        run.end()
    assert (OK in answers(run)) == (fault not in ENDS)
    assert len(answers(run)) == len(run.asked)
