"""Every order of a small scenario, on the shipped code: each reachable state once, each of its moves.

Theory. A state of running code cannot be put back, so it is reached again: by the choices that led to it, from the
start. Breadth first, so what is found has a shortest trace. A state is everything that what follows depends on: the
engine's variables, who waits and in which order, where every actor stands and what he holds, what is left of each armed
interval, pool, KV, contexts, handles, the device, and what the adversary has left. What only tells (journal, metrics,
timings, the clock's own number) is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from attrs import frozen

from checker.real.moves import moves
from checker.real.play import running
from checker.real.run import Run
from checker.real.scenario import Scenario
from checker.real.stage import Half
from checker.real.truth import Violated
from runtime.actors import Call, Report
from runtime.calrt import Library

__all__ = ["Explored", "explore", "state"]

DEVICE = ("broken", "jobs_running", "events_pending", "kv_units_free", "traffic_bytes")
"""Of the simulator's truth. Bytes moved: in which phase a job is."""
STATES_MAX = 100_000


Paths = dict[str, tuple[int, ...]]


@frozen
class Explored:
    """states, moves: that were reached and made. ends: states in which nobody goes on by himself. wrong: the first
    thing that was, with a shortest run; "": nothing. complete: there is nothing beyond, and nothing wrong."""

    states: int
    moves: int
    ends: int
    wrong: str
    complete: bool


# -- a state -----------------------------------------------------------------------------------------------------------
def state(run: Run) -> str:
    """Equal for runs that have the same future. Exact: no hash of it."""
    return repr(tuple(_state(run)))


def _state(run: Run) -> Iterator[Any]:
    engine, calls = run.executor.engine, run.executor.calls
    yield run.executor.program.values_of(engine._s)
    players = {player.progress.waiter: n for n, player in enumerate(run.stage.players)}
    yield [(rule.id, [players.get(w, -1) for w in waiters]) for rule, waiters in engine._waiting.items() if waiters]
    yield [_wish(player.wish) for player in run.stage.players]
    yield [_wish(client.wish) for client in run.clients]
    yield [(*_half(half), [players.get(w, -1) for w in half.granted]) for half in run.stage.halves]
    yield sorted(_armed(run))
    yield calls.generation_id, calls._kv_ids, calls.features_off.keys()
    yield [_pool(pool) for pool in calls.pools]
    yield [] if calls.kv is None else sorted((k, repr(entry)) for k, entry in calls.kv._entries.items())
    records = run.executor.records
    yield list(records.sequences), sorted(sequence.tag for sequence in records._leaving)
    yield [_context(context) for context in records.contexts()]
    yield [(n, _result(asked.handle), asked.handle.entered.is_open) for n, asked in run.asked.items()]
    yield [run.sim.truth(name) for name in DEVICE]
    yield [run.sim.kv(number) for number in calls._kv_ids.values()]
    yield [(job, number in run._ended_jobs) for job, number in run._device_jobs.items()]
    yield run.faults_left, run.cancels_left, run.removals, run.switched, run.closing, run.spoiled
    yield len(run.choices) >= run.scenario.ends_after


def _half(half: Half) -> Any:
    steps = [(rule.id, getattr(element, "key", None)) for rule, element, *_ in half.steps]
    return steps, half.answer is not None, half.who and half.who.name


def _wish(wish: Any) -> Any:
    match wish:
        case Call(effect, element):
            return "call", effect.name, getattr(element, "key", None)
        case Report(effect, element, observed, _):
            return "report", effect.name, getattr(element, "key", None), observed
    return getattr(wish, "what", type(wish).__name__), getattr(wish, "observed", "")


def _armed(run: Run) -> Iterator[tuple[str, str, int]]:
    for element, timers in run.executor.engine.timers._of.items():
        for rule, timer in timers.items():
            if timer.armed:
                yield rule.id, repr(getattr(element, "key", None)), timer.due_us - run.clock.us


def _pool(pool: Any) -> Any:
    lists = (pool._free, pool._leased, pool._returning, pool._quarantined)
    return pool._phase, [
        sorted((s.number, *s.sliced, *(n.touched for n in s.lanes.values())) for s in of) for of in lists
    ]


def _context(context: Any) -> Any:
    lease = context.lease.slot.number if context.lease is not None and context.lease.live else None
    return (
        context.job_id,
        lease,
        context.reserved,
        context.kv_id,
        context.generation_id,
        repr(context.failure),
        context.ended,
    )


def _result(handle: Any) -> Any:
    return handle.done(), handle.settled and handle.settled.status.kind.name


# -- all of them -------------------------------------------------------------------------------------------------------
def explore(
    scenario: Scenario, library: Library | None = None, states_max: int = STATES_MAX, found: Paths | None = None
) -> Explored:
    """Everything that can happen in a scenario. At states_max it stops, and is not complete. found: filled with each
    state and the choices that lead to it."""
    library, found = library or Library.load(), {} if found is None else found
    with running(scenario, library) as run:
        found[state(run)] = ()
        waiting: deque[tuple[tuple[int, ...], range]] = deque([((), _choices(run))])
    made = ends = 0
    while waiting:
        path, choices = waiting.popleft()
        ends += choices.start > 0 or not choices
        for choice in choices:
            made += 1
            try:
                with running(scenario, library) as run:
                    for step in (*path, choice):
                        run.step(step)
                    here, following = state(run), _choices(run)
                    if following.start or not following:
                        run.rest()
            except Violated as violated:
                return Explored(len(found), made, ends, str(violated), False)
            if here not in found:
                found[here] = (*path, choice)
                waiting.append((found[here], following))
                if len(found) >= states_max:
                    return Explored(len(found), made, ends, "", False)
    return Explored(len(found), made, ends, "", True)


def _choices(run: Run) -> range:
    """The moves that are some: not to rest."""
    found = moves(run)
    return range(1 if found and found[0].kind == "rest" else 0, len(found))
