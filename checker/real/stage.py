"""The executor's own actors without threads: whoever holds the stage says who takes the next step.

Theory. An actor is a generator that yields what it wants (`runtime.actors`); the executor's crew drives it on a thread
and blocks where it must wait. A stage is a crew, too, and starts none: each actor stands before what it wants until
somebody lets it do that, once, on his own thread. An actor that is parked in the engine goes on only when the engine
has granted it: its private token is there. So whatever the engine forgets to grant stays parked, and is seen.

A step has two halves: inside the monitor rules are fired; outside of it is done what follows them, and those who were
granted something are let go. Other threads may come in between. On a `fine` stage the halves are two moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define, field

from runtime.actors import Actor, Call, Progress, Report, Take, actor
from runtime.compiled import CompiledRule
from runtime.crew import Crew
from runtime.engine import Fired, Waiter

__all__ = ["Half", "Player", "Stage", "VirtualClock"]


@define(eq=False)
class VirtualClock:
    """Microseconds that pass only when somebody says so."""

    us: int = 1_000_000

    def __call__(self) -> int:
        return self.us


@define(eq=False)
class Half:
    """The second half of what `who` did is still to come."""

    who: Player | None
    steps: list[Any]
    granted: list[Waiter]
    answer: Any = None

    @property
    def text(self) -> str:
        return ", ".join(rule.id for rule, *_ in self.steps)


@define(eq=False)
class Player:
    """An actor on the stage. wish: what it wants to do next; None: it has ended, is parked in the engine, or between
    the halves of a step."""

    progress: Progress
    who: Actor
    wish: Take | Call | Report | None = field(default=None)
    parked: bool = False

    @property
    def name(self) -> str:
        return self.progress.name

    def answer(self, answer: Any) -> None:
        """What it wanted has been done."""
        self.parked = False
        try:
            self.wish = self.who.send(answer)
        except StopIteration:
            self.wish = None


class Stage(Crew):
    """A crew without a thread. players: its actors. halves: steps whose second half is still to come."""

    players: list[Player]
    halves: list[Half]
    fine = False

    def _life(self, takes: tuple[CompiledRule, ...], progress: Progress) -> Callable[[], None]:
        self.players = [*getattr(self, "players", ()), Player(progress, actor(takes))]
        return lambda: None

    def start(self) -> None:
        self.halves = []
        self._finish = self._engine._finish
        for player in self.players:
            player.answer(None)

    def stop(self, within_s: float) -> None:
        self._engine.stop()

    def left(self) -> bool:
        return False

    # -- one step ------------------------------------------------------------------------------------------------------
    def grant(self) -> None:
        """Whoever was granted what he was parked for has it, as soon as he is done with his last step."""
        busy = [half.who for half in self.halves]
        for player in self.players:
            waiter = player.progress.waiter
            if player.parked and player not in busy and waiter.token.acquire(blocking=False):
                player.answer(waiter.result)

    def act(self, player: Player) -> None:
        """The player does what it wants; on a fine stage the first half of it."""
        wish = player.wish
        if isinstance(wish, Call):
            self._engine.must_be_outside()
            player.answer(self._calls[wish.effect.name](wish.element))
            return
        half = Half(player, [], [])
        fired = self.in_halves(lambda: self._entered(wish, player.progress.waiter), half)
        player.wish = None
        if fired is None:
            player.parked = True
        elif half in self.halves:
            half.answer = fired
        else:
            player.answer(fired)

    def _entered(self, wish: Take | Report | None, waiter: Waiter) -> Fired | None:
        match wish:
            case Take(rules, element):
                return self._engine.take(rules, element, waiter)
            case Report(effect, element, observed, takes):
                rules = self.outcomes.of(effect, observed)
                return self._engine.report(rules, element, observed, takes, waiter)
        raise ValueError("a player that wants nothing cannot act")

    def in_halves(self, do: Callable[[], Any], half: Half | None = None) -> Any:
        """Enter the engine once; on a fine stage what follows that is left for `follow`."""
        half = half or Half(None, [], [])

        def later(steps: list[Any], granted: list[Waiter]) -> None:
            half.steps, half.granted = steps, granted
            self.halves.append(half)

        if not self.fine:
            return do()
        self._engine._finish = later  # type: ignore[method-assign]
        try:
            return do()
        finally:
            del self._engine._finish

    def follow(self, half: Half) -> None:
        """The second half: what follows its steps, then the tokens."""
        self.halves.remove(half)
        self._finish(half.steps, half.granted)
        if half.who is not None and half.answer is not None:
            half.who.answer(half.answer)
