"""What can be done now, as a list: first what goes on by itself, then what the adversary may do.

Theory. The order is what makes a run short when its choices are small: move 0 is "the same actor goes on", or else the
first that can; time passes by itself only when nobody can go on; faults come last, so
that negative choices are faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from checker.real.clients import Client, Pause, Reported
from checker.real.faults import Fault
from checker.real.stage import Player
from runtime.actors import Call, Report

if TYPE_CHECKING:
    from checker.real.run import Run

__all__ = ["Move", "moves"]

REMOVALS_MAX = 2


class Move(NamedTuple):
    """Somebody does something. text: in words. kind: a method of Run's that does it."""

    text: str
    kind: str
    who: Any = None
    fault: Fault | None = None


REST = Move("rest", "rest")
TIME = Move("the next deadline passes", "time")


def moves(run: Run) -> list[Move]:
    """All of them; the first is that of the actor that made the last one, if it can go on. Where nothing goes on by
    itself the first is to rest, if there is another."""
    regular = [*_halves(run), *_actors(run), *_clients(run)]
    if run.sim.truth("events_pending"):
        regular.append(Move("the device comes to its next event", "device"))
    last = run.last
    for at, move in enumerate(regular if last is not None else ()):
        if move.who is last:
            regular.insert(0, regular.pop(at))
            break
    time = run.executor.engine.next_due_us() is not None
    if time and not regular:
        regular = [TIME]
        time = False
    if not run.begun:
        return regular
    adversary = [TIME] if time and "time" in run.scenario.moves else []
    adversary += _adversary(run)
    return [*(regular or [REST]), *adversary] if regular or adversary else []


def _halves(run: Run) -> Iterator[Move]:
    for half in run.stage.halves:
        yield Move(f"what follows {half.text}", "follow", half.who or half)


def _actors(run: Run) -> Iterator[Move]:
    for player in run.stage.players:
        wish = player.wish
        if isinstance(wish, Call):
            if wish.effect.name != "wait" or run.may_return(wish.element):
                yield Move(f"{player.name}: {wish.effect.name}", "act", player)
        elif isinstance(wish, Report):
            yield Move(f"{player.name}: {wish.effect.name} returned {wish.observed}", "act", player)
        elif wish is not None:
            yield Move(f"{player.name}: takes a rule", "act", player)


def _clients(run: Run) -> Iterator[Move]:
    for client in run.clients:
        match client.wish:
            case Pause(what, ready):
                if ready():
                    yield Move(f"{client.name}: {what}", "client", client)
            case Call(effect, _):
                yield Move(f"{client.name}: {effect.name}", "client", client)
            case Reported(call, observed):
                yield Move(f"{client.name}: {call.effect.name} returned {observed}", "client", client)


def _adversary(run: Run) -> Iterator[Move]:
    allowed = run.scenario.moves
    if "cancel" in allowed and run.cancels_left:
        for number, asked in run.asked.items():
            if not asked.handle.settled:
                yield Move(f"cancel job {number}", "cancel", asked)
    if "remove" in allowed and run.removals < REMOVALS_MAX:
        for sequence in list(run.executor.records.sequences):
            yield Move(f"somebody removes sequence {sequence}", "remove", sequence)
    if "switch" in allowed and run.scenario.switches and not run.switched and run.is_ready():
        yield Move("switch the model", "switch")
    if len(run.choices) >= run.scenario.ends_after:
        yield from _ends(run)
    if run.faults_left:
        for player in run.stage.players:
            yield from _gone_wrong(run, player, "act")
        for client in run.clients:
            yield from _gone_wrong(run, client, "client")


def _ends(run: Run) -> Iterator[Move]:
    if "close" in run.scenario.moves and not run.closing:
        yield Move("close", "close")
    if "give_up" in run.scenario.moves and run.faults_left and not run.ended():
        yield Move("give up", "give_up")


def _gone_wrong(run: Run, who: Player | Client, kind: str) -> Iterator[Move]:
    wish = who.wish
    if not isinstance(wish, Call):
        return
    if wish.effect.name == "wait" and not run.may_return(wish.element):
        if "early_wait" in run.scenario.moves:
            yield Move(f"{who.name}: wait returns early", "early", who)
        return
    for fault in run.kinds.get(wish.effect.name, ()):
        yield Move(f"{who.name}: {fault.name}", kind, who, fault)
