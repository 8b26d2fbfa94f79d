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

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import define, field, frozen

from runtime.compiled import CompiledRule, Program
from runtime.journal import Journal

__all__ = ["Engine", "Fired", "MonitorHeld", "Waiter"]

DISARMED_MAX = 1024


class MonitorHeld(RuntimeError):
    """A call that may block was begun inside the monitor (§5.2 forbids it)."""


@frozen
class Fired:
    """One step. element: what the rule was about, or None."""

    rule: CompiledRule
    element: Any


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


@define(eq=False)
class _Timer:
    rule: CompiledRule
    element: Any
    due_us: int
    armed: bool = True


@frozen(eq=False)
class _Concern:
    """A rule that a step of another may enable (or, for a timer, disable).

    alone: only about the step's own element. restarts: the step begins a call, and the rule is about calls.
    """

    rule: CompiledRule
    alone: bool
    restarts: bool


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
        self.on_arm: Callable[[], None] = lambda: None  # the driver of time is told of an earlier deadline
        self.on_step: Callable[[CompiledRule, Any], None] | None = None  # after each step, before anybody is woken
        self._s = program.shared()
        self._mu = threading.Lock()
        self._owner = 0
        self._stopped = False
        self._waiting: dict[CompiledRule, dict[Waiter, None]] = {}
        self._awaited: dict[CompiledRule, tuple[_Concern, ...]] = {}
        self._timers = {program.rules[name]: after for name, after in timers.items()}
        self._clocked: dict[CompiledRule, tuple[_Concern, ...]] = {}
        self._armed: dict[tuple[CompiledRule, Any], _Timer] = {}
        self._due: list[tuple[int, int, _Timer]] = []
        self._arms = 0
        with self:
            self._arm_all(self._timers)

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
            self._elements(sort)[element] = None
        return element

    def remove(self, sort: str, element: Any) -> None:
        """Forget an element, with its timers."""
        with self:
            del self._elements(sort)[element]
            for key in [k for k in self._armed if k[1] is element]:
                self._disarm(key)

    def _elements(self, sort: str) -> dict[Any, None]:
        found: dict[Any, None] = getattr(self._s, f"{sort}_elements")
        return found

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
            for rule in rules:
                if rule.fire(self._s, element):
                    if then is not None:
                        then()
                    steps, granted = self._settle(rule, element, observed)
                    break
            else:
                return None
        self._finish(steps, granted)
        return rule

    def take(self, rules: tuple[CompiledRule, ...], element: Any, waiter: Waiter) -> Fired | None:
        """Fire the first of `rules` that is enabled (about `element`; None: about anything). None: parked in `waiter`,
        whose token comes when it has been fired on its behalf, or when it was sent away."""
        with self:
            waiter.result = None
            if self._stopped:
                waiter.token.release()
                return None
            fired = self._first(rules, element)
            if fired is None:
                self._park(rules, element, waiter)
                return None
            steps, granted = self._settle(fired.rule, fired.element, "")
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

    def _finish(self, steps: list[Fired], granted: list[Waiter]) -> None:
        """Outside the monitor: first what belongs to the steps, then the tokens, so that who wakes finds all done."""
        try:
            if self.on_step is not None:
                for step in steps:
                    self.on_step(step.rule, step.element)
        finally:  # a bug there must not keep others for ever (F47)
            for waiter in granted:
                waiter.token.release()

    # -- inside the monitor -------------------------------------------------------------------------------------------
    def _first(self, rules: Iterable[CompiledRule], element: Any) -> Fired | None:
        for rule in rules:
            if element is not None or not rule.sort:
                if rule.fire(self._s, element):
                    return Fired(rule, element)
            else:
                for candidate in self._elements(rule.sort):
                    if rule.fire(self._s, candidate):
                        return Fired(rule, candidate)
        return None

    def _park(self, rules: tuple[CompiledRule, ...], element: Any, waiter: Waiter) -> None:
        waiter.rules, waiter.element, waiter.result, waiter.parked = rules, element, None, True
        for rule in rules:
            if rule not in self._waiting:
                self._waiting[rule] = {}
                self._awaited.clear()  # worked out anew, with this rule
            self._waiting[rule][waiter] = None

    def _unpark(self, waiter: Waiter) -> None:
        waiter.granted_us = time.monotonic_ns() // 1000
        waiter.parked = False
        for rule in waiter.rules:
            del self._waiting[rule][waiter]

    def _settle(self, rule: CompiledRule, element: Any, observed: str) -> tuple[list[Fired], list[Waiter]]:
        """Journal the step, set timers, and go on for everybody whom it enables; their steps are settled likewise.

        The steps that were taken, in their order, and the waiters that have been served."""
        steps, granted = [Fired(rule, element)], []
        for step in steps:
            rule, element = step.rule, step.element
            self.journal.add(self.now_us(), rule.id, getattr(element, "key", None), observed)
            if len(steps) == 1 and self.journal.wants_checkpoint:  # no later step has been taken yet
                self.journal.checkpoint(self.program.values_of(self._s))
            self._set_timers(rule, element)
            for concern in self._concerns(rule):
                exhausted = False  # nothing is there for an actor that serves anybody
                for waiter in list(self._waiting[concern.rule]):
                    if not waiter.parked or (exhausted and waiter.element is None):
                        continue
                    fired = self._for(waiter, concern, element)
                    if fired is None:
                        exhausted = exhausted or waiter.element is None
                    else:
                        self._unpark(waiter)
                        waiter.result = fired
                        granted.append(waiter)
                        steps.append(fired)
            observed = ""
        return steps, granted

    def _for(self, waiter: Waiter, concern: _Concern, element: Any) -> Fired | None:
        """Fire the concerned rule for a waiter, if it is enabled for it now."""
        if waiter.element is not None:
            return (
                None
                if concern.alone and waiter.element is not element
                else self._first((concern.rule,), waiter.element)
            )
        return self._first((concern.rule,), element if concern.alone else None)

    def _concerns(self, rule: CompiledRule) -> tuple[_Concern, ...]:
        if rule not in self._awaited:
            self._awaited[rule] = tuple(_concerned(rule, self._waiting))
        return self._awaited[rule]

    # -- timers -------------------------------------------------------------------------------------------------------
    def _set_timers(self, rule: CompiledRule, element: Any) -> None:
        if rule not in self._clocked:
            self._clocked[rule] = tuple(_concerned(rule, self._timers))
        for concern in self._clocked[rule]:
            clock = concern.rule
            elements: Iterable[Any] = (element,)
            if not concern.alone:
                elements = self._elements(clock.sort) if clock.sort else (None,)
            for e in elements:
                self._set_timer(clock, e, again=concern.restarts and e is element)

    def _arm_all(self, clocks: Iterable[CompiledRule]) -> None:
        for clock in clocks:
            for e in self._elements(clock.sort) if clock.sort else (None,):
                self._set_timer(clock, e, again=False)

    def _set_timer(self, clock: CompiledRule, element: Any, again: bool) -> None:
        """Armed while the guard holds; a newly begun call (`again`) has its time from its own beginning."""
        key = (clock, element)
        holds = clock.guard(self._s, element)
        if key in self._armed and (again or not holds):
            self._disarm(key)
        if holds and key not in self._armed:
            after = self._timers[clock](self._s, element)
            if after is None:
                return
            timer = _Timer(clock, element, self.now_us() + after)
            self._armed[key] = timer
            self._arms += 1
            heapq.heappush(self._due, (timer.due_us, self._arms, timer))
            self._compact()
            if self._due[0][2] is timer:
                self.on_arm()

    def _compact(self) -> None:
        """Timers that were disarmed wait in the heap until they are due; they must not be many more than the armed."""
        if len(self._due) > DISARMED_MAX + 2 * len(self._armed):
            self._due = [entry for entry in self._due if entry[2].armed]
            heapq.heapify(self._due)

    def _disarm(self, key: tuple[CompiledRule, Any]) -> None:
        self._armed.pop(key).armed = False

    def next_due_us(self) -> int | None:
        """When the next timer is due; None: no timer is armed."""
        with self:
            while self._due and not self._due[0][2].armed:
                heapq.heappop(self._due)
            return self._due[0][0] if self._due else None

    def expire(self) -> Fired | None:
        """Fire the next rule of the clock that is due; None when none is."""
        while True:
            with self:
                if not self._due or (self._due[0][2].armed and self._due[0][0] > self.now_us()):
                    return None
                timer = heapq.heappop(self._due)[2]
                if not timer.armed:
                    continue
                self._disarm((timer.rule, timer.element))
            if self.fire((timer.rule,), timer.element):
                return Fired(timer.rule, timer.element)


def _concerned(rule: CompiledRule, others: Iterable[CompiledRule]) -> Iterable[_Concern]:
    """The rules among `others` whose guard reads what `rule` writes."""
    written = {name for _, name in rule.writes}
    for other in others:
        touched = {(whose, name) for whose, name in other.reads if name in written}
        if not touched:
            continue
        own = all(whose == "own" for whose, _ in touched)
        beyond = any(whose == "any" and name in {n for _, n in touched} for whose, name in rule.writes)
        begins = rule.rule.begins
        yield _Concern(
            other,
            alone=own and not beyond and rule.sort == other.sort and rule.sort != "",
            restarts=begins is not None and begins.call.args[0].name in {name for _, name in touched},
        )
