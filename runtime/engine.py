"""The engine: fires rules, parks who must wait, and fires on their behalf as soon as they may go on.

Theory. All own state lies behind one monitor (docs/decisions.md). A step is one rule fired inside it: whoever fires a
rule then, still inside, looks at those who wait for a rule that this step may have enabled, fires it on behalf of the
first, and so on until nobody can go on; only after leaving the monitor it hands each of them one private token. So a
wake-up is never lost, never comes too early, and wakes just those who go on. Which rules a step may enable follows
from what the rule writes and what the guards read; it is worked out once.

A deadline is a rule of the clock. The engine arms a timer in the step that makes its guard true and disarms it in the
step that makes it false, so no caller can forget to; a driver of time asks for `next_due_us` and calls `expire`.

Nothing here knows CalRT or what the rules are about.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from attrs import define, field

from runtime.compiled import CompiledRule, Program
from runtime.journal import Journal
from runtime.places import Elements
from runtime.timers import Timers
from runtime.wakes import Concern, Concerns

__all__ = ["Engine", "Fired", "MonitorHeld", "Unreceived", "Waiter"]


class MonitorHeld(RuntimeError):
    """A call that may block was begun inside the monitor (§5.2 forbids it)."""


class Unreceived(RuntimeError):
    """No rule took what a call brought back: proved impossible by the checker (receptive)."""


class Fired(NamedTuple):
    """One step. element: what the rule was about, or None."""

    rule: CompiledRule
    element: Any


class _Step(NamedTuple):
    """One that was made and noted. concerns: which rules, that somebody waits for, it may have enabled."""

    rule: CompiledRule
    element: Any
    concerns: tuple[Concern, ...]


@define(eq=False)
class Waiter:
    """One parked actor: it waits for the first of `rules` (about `element`, or about anything).

    result: what was fired on its behalf; None when it was sent away. granted_us: when it was last let go, in real time.
    """

    rules: tuple[CompiledRule, ...] = ()
    element: Any = None
    result: Fired | None = None
    parked: bool = False
    granted_us: int = 0
    token: Any = field(factory=threading.Lock)

    def __attrs_post_init__(self) -> None:
        self.token.acquire()


class Engine:
    """A program's state, and the only one who changes it. Thread-safe.

    timers: for rules of the clock, how long after its guard became true a rule is due (us), given the shared record and
    the element; None: never. now_us: the monotonic clock.
    """

    def __init__(
        self,
        program: Program,
        timers: Mapping[str, Callable[[Any, Any], int | None]],
        now_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
        journal: Journal | None = None,
    ) -> None:
        self.program = program
        self.now_us = now_us
        self.journal = journal or Journal()
        self.on_step: Callable[[CompiledRule, Any], None] | None = None  # after each step, before anybody is woken
        self.in_step: Mapping[CompiledRule, Callable[[CompiledRule, Any], None]] = {}  # in the moment of such a step
        self._s = program.shared()
        self._mu = threading.Lock()
        self._owner = 0
        self._stopped = False
        self._elements = Elements(self._s, program.places, program.phase)
        self._waiting: dict[CompiledRule, dict[Waiter, None]] = {}
        self.awaited = Concerns(self._waiting)
        clocks = {program.rules[name]: after for name, after in timers.items()}
        with self:
            self.timers = Timers(clocks, self._s, self._elements, lambda: self.now_us())

    # -- the monitor --------------------------------------------------------------------------------------------------
    def __enter__(self) -> Engine:
        self._mu.acquire()
        self._owner = threading.get_ident()
        return self

    def __exit__(self, *error: object) -> None:
        self._owner = 0
        self._mu.release()

    def must_be_outside(self) -> None:
        """Raises MonitorHeld when this thread is inside the monitor: no call into CalRT may be made there."""
        if self._owner == threading.get_ident():
            raise MonitorHeld("a call that may block was begun while the monitor is held")

    # -- elements -----------------------------------------------------------------------------------------------------
    def add(self, sort: str, tag: Any, key: Any = None, **links: Any) -> Any:
        """A new element in its initial state. tag: whatever the caller knows it by. key: what the journal calls it;
        without one, its tag."""
        element = self.program.element(sort)
        element.tag, element.key = tag, tag if key is None else key
        for name, other in links.items():
            setattr(element, name, other)
        with self:
            self._elements.add(sort, element)
        return element

    def remove(self, sort: str, element: Any) -> None:
        """Forget an element, with its timers."""
        with self:
            self._elements.remove(sort, element)
            self.timers.forget(element)

    def read(self, look: Callable[[Any], Any], within_s: float = -1) -> Any:
        """What `look` makes of the shared record, in one moment. For reports only. Raises TimeoutError when the monitor
        is not to be had within so many seconds (-1: however long it takes)."""
        if not self._mu.acquire(timeout=within_s):
            raise TimeoutError(f"the monitor has been held for more than {within_s:g} s")
        try:
            self._owner = threading.get_ident()
            return look(self._s)
        finally:
            self.__exit__()

    # -- firing -------------------------------------------------------------------------------------------------------
    def fire(
        self,
        rules: Iterable[CompiledRule],
        element: Any = None,
        observed: str = "",
        then: Callable[[], None] | None = None,
    ) -> CompiledRule | None:
        """Fire the first of `rules` that is enabled, now; None where none is. then: done in the same moment, so that
        nobody sees the step without it."""
        with self:
            fired = self._first(rules, element)
            if fired is None:
                return None
            if then is not None:
                then()
            steps = [self._noted(fired, observed)]
            granted = self._grant(steps)
        self._finish(steps, granted)
        return fired.rule

    def take(self, rules: tuple[CompiledRule, ...], element: Any, waiter: Waiter) -> Fired | None:
        """Fire the first of `rules` that is enabled (about `element`; None: about anything). None: parked in `waiter`,
        whose token comes when it has been fired on its behalf, or when it was sent away."""
        with self:
            fired = self._take(rules, element, waiter)
            if fired is None:
                return None
            steps = [self._noted(fired)]
            granted = self._grant(steps)
        self._finish(steps, granted)
        return fired

    def report(
        self, outcomes: Iterable[CompiledRule], element: Any, observed: str, takes: tuple[CompiledRule, ...],
        waiter: Waiter,
    ) -> Fired | None:  # fmt: skip
        """What a call brought back: fire the first of `outcomes`, and while a step begins no call, take the next of
        `takes`, all in one moment and before anybody who waits. So an actor goes on without handing over to another.

        The last step; or None: as `take`, then. Raises Unreceived where no outcome is enabled."""
        with self:
            fired: Fired | None = self._first(outcomes, element)
            if fired is None:
                raise Unreceived(f"no rule took {observed!r} about {getattr(element, 'key', None)}")
            steps = [self._noted(fired, observed)]
            while fired is not None and fired.rule.rule.begins is None:
                fired = self._take(takes, None, waiter)
                if fired is not None:
                    steps.append(self._noted(fired))
            granted = self._grant(steps)
        self._finish(steps, granted)
        return fired

    def send_away(self, waiter: Waiter) -> bool:
        """Interrupt a parked take. False: it was not parked any more; what was fired for it counts."""
        with self:
            if not waiter.parked:
                return False
            self._unpark(waiter)
            waiter.result = None
        waiter.token.release()
        return True

    def wait_for(self, rule: CompiledRule, timeout_s: float | None) -> bool:
        """Block until a rule that is about nothing is enabled, and fire it. False: not within the time (None: however
        long it takes), or everybody was sent away."""
        waiter = Waiter()
        if self.take((rule,), None, waiter):
            return True
        if not waiter.token.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self.send_away(waiter)
            waiter.token.acquire()
        return waiter.result is not None

    def stop(self) -> None:
        """Send everybody away, now and from now on."""
        with self:
            self._stopped = True
            waiters = list(dict.fromkeys(w for ws in self._waiting.values() for w in ws))
            for waiter in waiters:
                self._unpark(waiter)
                waiter.result = None
        self._finish([], waiters)

    def _finish(self, steps: list[_Step], granted: list[Waiter]) -> None:
        """Outside the monitor: first what belongs to the steps, then the tokens, so that who wakes finds all done."""
        error: BaseException | None = None
        for rule, element, _ in steps if self.on_step else ():
            try:
                self.on_step(rule, element)  # type: ignore[misc]
            except BaseException as first:  # a bug there must not keep others for ever (F47)
                error = error or first
        for waiter in granted:
            waiter.token.release()
        if error is not None:
            raise error

    # -- inside the monitor -------------------------------------------------------------------------------------------
    def _first(self, rules: Iterable[CompiledRule], element: Any) -> Fired | None:
        s, phase = self._s, self._elements.phase()
        for rule in rules:
            if rule.phases is not None and phase not in rule.phases:
                continue
            if element is not None or not rule.sort:
                if rule.fire(s, element):
                    return Fired(rule, element)
            elif rule.may(s):
                for candidate in self._elements.possible(rule.sort, rule.places):
                    if rule.fire(s, candidate):
                        return Fired(rule, candidate)
        return None

    def _take(self, rules: tuple[CompiledRule, ...], element: Any, waiter: Waiter) -> Fired | None:
        """Fired, and still to be noted; None: parked, or sent away."""
        waiter.result = None
        if self._stopped:
            waiter.token.release()
            return None
        fired = self._first(rules, element)
        if fired is None:
            self._park(rules, element, waiter)
        return fired

    def _park(self, rules: tuple[CompiledRule, ...], element: Any, waiter: Waiter) -> None:
        waiter.rules, waiter.element, waiter.parked = rules, element, True
        for rule in rules:
            if rule not in self._waiting:
                self._waiting[rule] = {}
                self.awaited.grown()
            self._waiting[rule][waiter] = None

    def _unpark(self, waiter: Waiter) -> None:
        waiter.granted_us = time.monotonic_ns() // 1000
        waiter.parked = False
        for rule in waiter.rules:
            del self._waiting[rule][waiter]

    def _noted(self, fired: Fired, observed: str = "") -> _Step:
        """Of each step, as soon as it was made: `in_step`, its line in the journal, its element's place, its timers."""
        rule, element = fired
        journal, elements, now_us = self.journal, self._elements, self.now_us()
        if rule in self.in_step:
            self.in_step[rule](rule, element)
        journal.add(now_us, rule.id, getattr(element, "key", None), observed)
        if journal.wants_checkpoint:
            journal.checkpoint(self.program.values_of(self._s))
        place, phase = elements.place(rule.sort, element), elements.phase()
        self.timers.follow(rule, element, place, phase, now_us)
        return _Step(rule, element, self.awaited.at(rule, place, phase)[0])

    def _grant(self, steps: list[_Step]) -> list[Waiter]:
        """Go on for everybody whom these steps enable; what is fired on their behalf is put behind, and enables others.

        The waiters that have been served."""
        granted: list[Waiter] = []
        s, waiting = self._s, self._waiting
        for _, element, concerns in steps:
            for concern in concerns:
                rule = concern.rule
                if not (waiters := waiting[rule]):
                    continue
                if rule.guard(s, element) if concern.alone or not rule.sort else rule.may(s):
                    self._serve(concern, element, list(waiters), steps, granted)
        return granted

    def _serve(
        self, concern: Concern, element: Any, waiters: list[Waiter], steps: list[_Step], granted: list[Waiter]
    ) -> None:
        """Those who wait for one rule, in their order, until nothing is there for an actor that serves anybody."""
        exhausted = False
        for waiter in waiters:
            if exhausted and waiter.element is None:
                continue
            fired = self._for(waiter, concern, element)
            if fired is None:
                exhausted = exhausted or waiter.element is None
                continue
            self._unpark(waiter)
            waiter.result = fired
            granted.append(waiter)
            steps.append(self._noted(fired))

    def _for(self, waiter: Waiter, concern: Concern, element: Any) -> Fired | None:
        """Fire the concerned rule for a waiter, if it is enabled for it now."""
        if waiter.element is None:
            return self._first((concern.rule,), element if concern.alone else None)
        if concern.alone and waiter.element is not element:
            return None
        return self._first((concern.rule,), waiter.element)

    # -- the clock ----------------------------------------------------------------------------------------------------
    @property
    def on_arm(self) -> Callable[[], None]:
        """Called when a timer was armed that is due before what `next_due_us` said last."""
        return self.timers.on_earlier

    @on_arm.setter
    def on_arm(self, call: Callable[[], None]) -> None:
        self.timers.on_earlier = call

    def next_due_us(self) -> int | None:
        """When the next timer is due; None: no timer is armed."""
        with self:
            return self.timers.next_due_us()

    def expire(self) -> Fired | None:
        """Fire the next rule of the clock that is due; None when none is."""
        while True:
            with self:
                timer = self.timers.pop_due()
            if timer is None:
                return None
            if self.fire((timer.rule,), timer.element):
                return Fired(timer.rule, timer.element)
