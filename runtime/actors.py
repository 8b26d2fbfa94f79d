"""The actors: one generator for all of them, and the thread that drives it.

Theory. What an actor may do is data: the rules that it takes. So they all have the same life: take a rule (waiting
until one is enabled), and if it begins a call, make the call, hand what came back to the rulebook, and go on until no
call is begun. A generator yields what it wants and holds nothing but its last results; who drives it decides how:
`drive` blocks a thread, a scheduler under test chooses an order. So what is explored is the code that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from attrs import define, field, frozen

from machines.rulebook import Effect
from runtime.compiled import CompiledRule, Program
from runtime.engine import Engine, Fired, Waiter
from runtime.status import now_us

__all__ = ["Actor", "Call", "Calls", "Outcomes", "Report", "Take", "actor", "drive"]


@frozen
class Take:
    """Wait until one of `rules` is enabled (about `element`; None: about anything); it is fired. Answer: Fired, or None
    when the actor is sent away."""

    rules: tuple[CompiledRule, ...]
    element: Any


@frozen
class Call:
    """Make a call into CalRT, holding nothing. Answer: the class that was observed."""

    effect: Effect
    element: Any


@frozen
class Report:
    """What a call brought back; then, as `Take`, the next of `takes`, unless that outcome begins a call itself. Answer:
    the last step, Fired, or None when the actor is sent away."""

    effect: Effect
    element: Any
    observed: str
    takes: tuple[CompiledRule, ...]


Actor = Generator[Take | Call | Report, Any, None]
Calls = Mapping[str, Callable[[Any], str]]
"""Per effect the function that makes the call for an element and says what was observed."""


def actor(takes: tuple[CompiledRule, ...]) -> Actor:
    """Serve `takes`, about anything, until sent away."""
    fired: Fired | None = yield Take(takes, None)
    while fired is not None:
        effect, element = fired.rule.rule.begins, fired.element
        if effect is None:
            fired = yield Take(takes, None)
        else:
            observed = yield Call(effect, element)
            fired = yield Report(effect, element, observed, takes)


class Outcomes:
    """Which outcome rules take which class of which call."""

    def __init__(self, program: Program) -> None:
        self._rules: dict[tuple[str, str], tuple[CompiledRule, ...]] = {}
        for rule in program.rules.values():
            if rule.rule.outcome:
                effect, classes = rule.rule.outcome
                for observed in classes:
                    key = (effect.name, observed)
                    self._rules[key] = (*self._rules.get(key, ()), rule)

    def of(self, effect: Effect, observed: str) -> tuple[CompiledRule, ...]:
        """Raises KeyError for a class that the rulebook does not declare."""
        return self._rules[effect.name, observed]


@define(eq=False)
class Progress:
    """What an actor does, and since when in real time, whatever the engine's clock says: for health.

    about: the element of the call that it is in. due_us: of one that sleeps, when it must be awake again."""

    name: str
    doing: str = "starting"
    since_us: int = field(factory=now_us)
    about: Any = None
    due_us: float | None = None
    waiter: Waiter = field(factory=Waiter)


def drive(engine: Engine, outcomes: Outcomes, calls: Calls, who: Actor, progress: Progress) -> None:
    """Drive an actor on this thread until it ends."""
    answer: Any = None
    while True:
        try:
            wish = who.send(answer)
        except StopIteration:
            return
        progress.since_us = now_us()
        match wish:
            case Call(effect, element):
                progress.doing, progress.about = effect.name, element
                engine.must_be_outside()
                answer = calls[effect.name](element)
            case Report(effect, element, observed, takes):
                progress.doing, progress.about = "reporting", None
                rules = outcomes.of(effect, observed)
                answer = engine.report(rules, element, observed, takes, progress.waiter) or _granted(progress)
            case Take(rules, element):
                progress.doing, progress.about = "waiting", None
                answer = engine.take(rules, element, progress.waiter) or _granted(progress)


def _granted(progress: Progress) -> Fired | None:
    """What was fired on behalf of an actor that was parked, when it has been; None: it was sent away."""
    progress.doing, progress.about = "waiting", None
    progress.waiter.token.acquire()
    return progress.waiter.result
