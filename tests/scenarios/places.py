"""Where a job can be stopped on its way, what can happen to it there, and what must be true of it afterwards.

Theory. A job's life is a chain of steps (rules fired in the engine) and calls (effects). So there are four kinds of
places: before a call, after it and before it is reported, and around what the executor does for a step once it has been
decided (`DeviceExecutor._after`). `life` plays the rulebook with a device that always says yes, and says which steps
and calls there are; nobody types them. Time passes by moving the engine's clock, never by waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import define, field, frozen
from executing import LONG_MS as LONG_MS
from executing import PATIENT as PATIENT
from executing import READY_S, Bench
from moments import books, pool_of, until

from machines.answer import ANSWER, AnswerState
from machines.job import JOB, JobState
from machines.protocol import RULEBOOK
from machines.protocol.variables import job as job_sort
from machines.rulebook import Rule
from machines.table import Table
from runtime.actors import Outcomes
from runtime.compiled import CompiledRule, Program
from runtime.config import Config
from runtime.engine import Engine
from runtime.job import InferenceResult
from runtime.status import Status, StatusKind

DEADLINE_US = 60 * 1_000_000
ENDS = (JobState.Succeeded, JobState.Failed)


# -- the life of a job -------------------------------------------------------------------------------------------------
def _of_ours(rule: Rule) -> bool:
    return rule.outcome is None and not rule.actor.environment and rule.actor.name != "clock"


def life(arrival: str = "client.arrive.prefill") -> tuple[list[str], list[str]]:
    """(steps, calls) of a job to which nothing happens, from its arrival on: played on the rulebook alone."""
    program = Program(RULEBOOK, Config(manifest="none").parameters())
    engine = Engine(program, {})
    ours = [r for r in program.rules.values() if _of_ours(r.rule)]
    outcomes = Outcomes(program)
    steps: list[str] = []
    calls: list[str] = []

    def go_on(elements: list[Any]) -> None:
        moved = True
        while moved:
            moved = False
            for rule in ours:
                for element in elements if rule.sort else [None]:
                    if (rule.sort in ("", "job")) and engine.fire((rule,), element):
                        follow(rule, element)
                        moved = True

    def follow(rule: CompiledRule, element: Any) -> None:
        while True:
            steps.append(rule.id)
            begun = rule.rule.begins
            if begun is None:
                return
            calls.append(begun.name)
            good = begun.returns[0].observed
            taker = engine.fire(outcomes.of(begun, good), element, good)
            assert taker is not None
            rule = taker

    go_on([])
    steps.clear()
    calls.clear()
    job = engine.add("job", "a job", seq_of=engine.add("seq", "its sequence"))
    assert engine.fire((program.rules[arrival],), job)
    go_on([job])
    return steps, calls


@frozen
class Place:
    """when: "before" or "after". what: the name of a call, or the id of a step."""

    when: str
    what: str

    def __str__(self) -> str:
        return f"{self.when}-{self.what}"


_STEPS, CALLS = life()
PLACES = tuple(Place(when, what) for what in (*CALLS, *_STEPS) for when in ("before", "after"))
IN_ADMISSION = tuple(p for p in PLACES if p.what in ("reserve", "prepare") or p.what.startswith("admission."))


# -- stopping there ----------------------------------------------------------------------------------------------------
@define
class Hold:
    """One thread that stands at a place until `go`. there: it has come; nobody is held a second time."""

    there: threading.Event = field(factory=threading.Event)
    _go: threading.Event = field(factory=threading.Event)

    def stand(self) -> None:
        if not self.there.is_set():
            self.there.set()
            assert self._go.wait(READY_S), "nobody let it go on"

    def go(self) -> None:
        self._go.set()


@contextmanager
def held(b: Bench, place: Place) -> Iterator[Hold]:
    """The first thread that comes to the place stops there. Let go at the end of the block at the latest."""
    hold = Hold()
    around = _around_call if place.what in b.executor._table else _around_step
    undo = around(b, place, hold)
    try:
        yield hold
    finally:
        hold.go()
        undo()


def _around_call(b: Bench, place: Place, hold: Hold) -> Callable[[], None]:
    table: Any = b.executor._table
    call = table[place.what]

    def held_call(element: Any) -> str:
        if place.when == "before":
            hold.stand()
        observed: str = call(element)
        if place.when == "after":
            hold.stand()
        return observed

    table[place.what] = held_call
    return lambda: table.update({place.what: call})


def _around_step(b: Bench, place: Place, hold: Hold) -> Callable[[], None]:
    engine = b.executor.engine
    after = engine.on_step
    assert after is not None

    def held_step(rule: CompiledRule, element: Any) -> None:
        if rule.id == place.what and place.when == "before":
            hold.stand()
        after(rule, element)
        if rule.id == place.what and place.when == "after":
            hold.stand()

    engine.on_step = held_step

    def undo() -> None:
        engine.on_step = after

    return undo


def pass_time(b: Bench, us: int) -> None:
    """The executor's clock moves on, and what is then due happens, on this thread or on the clock's own."""
    engine = b.executor.engine
    engine.now_us = Later(engine.now_us, us)
    while engine.expire():
        pass
    until(lambda: (due := engine.next_due_us()) is None or due > engine.now_us())


class Later:
    """A clock that is so much later than another."""

    def __init__(self, clock: Callable[[], int], us: int) -> None:
        later = isinstance(clock, Later)
        self._clock: Callable[[], int] = clock._clock if later else clock
        self._us: int = clock._us + us if later else us

    def __call__(self) -> int:
        return self._clock() + self._us


def answers_again(b: Bench, patch: pytest.MonkeyPatch, at: str) -> None:
    """A mistake, for controls: at that step the job's result takes the place of the answer that it has."""
    after = b.executor._after

    def step(rule: CompiledRule, element: Any) -> None:
        if rule.id == at:
            context = element.tag
            context.handle._result = InferenceResult(Status(kind=StatusKind.OK), context.logits, context.timings)
        after(rule, element)

    patch.setattr(b.executor.engine, "on_step", step)


def keeps_the_slot(b: Bench, patch: pytest.MonkeyPatch) -> None:
    """Another one: no slot is ever given back."""
    patch.setitem(b.executor._table, "undo", lambda job: "ok")


# -- what must be true -------------------------------------------------------------------------------------------------
def lived(b: Bench, job_id: int, table: Table, variable: str) -> list[Any]:
    """The states of one of the job's machines, in their order, as the journal says: the table decides what each
    step did."""
    states = [table.initial]
    for entry in b.executor.engine.journal.entries():
        if isinstance(entry.element, tuple) and entry.element[0] == job_id:
            rule = b.executor.program.rules[entry.rule].rule
            for target, event in rule.fires:
                if (target.args[0].name, target.args[0].sort) == (variable, job_sort):
                    row = table.entry(states[-1], event)
                    assert row is not None, f"{entry.rule}: {event} in {states[-1]}"
                    if row.target is not states[-1]:
                        states.append(row.target)
    return states


def wrong_ends(b: Bench, job_id: int) -> list[str]:
    """Empty when the job had one end and one answer."""
    states, answers = lived(b, job_id, JOB, "state"), lived(b, job_id, ANSWER, "answer")
    wrong = []
    if sum(state in ENDS for state in states) != 1:
        wrong.append(f"its states were {states}")
    if len([a for a in answers if a is not AnswerState.Pending]) != 1:
        wrong.append(f"its answers were {answers}")
    return wrong


def ledger(b: Bench) -> dict[str, Any]:
    """Everything that somebody can hold, in the rulebook's variables and in the objects beside them. Resets so far are
    not held by anybody."""
    calls = b.executor.calls
    assert calls.kv is not None
    own = books(b)
    del own["recoveries"]
    return {
        "books": own, "pool": pool_of(b).counts(), "kv": calls.kv.abstract(), "KvSeqIds": dict(calls._kv_ids),
        "jobs": len(b.executor.records.jobs), "on the device": b.sim.truth("jobs_running"),
    }  # fmt: skip


def settled(b: Bench, before: dict[str, Any]) -> list[str]:
    """Once everybody has gone: what is not as it was. Empty: the ledger is balanced."""
    try:
        until(lambda: ledger(b) == before)
    except AssertionError:
        now = ledger(b)
        wrong = [key for key in before if before[key] != now[key]]
        return [f"{key} was {_but(before[key], now[key])}, is {_but(now[key], before[key])}" for key in wrong]
    return []


def _but(value: Any, other: Any) -> Any:
    """Of a table only what is not so in the other."""
    return {k: v for k, v in value.items() if k not in other or other[k] != v} if isinstance(value, dict) else value
