"""Timers: when the clock's rules are due.

Theory. A rule of the clock is due so long after its guard became true. So every step looks at the clocks whose guard it
may have changed, arms those that hold now and disarms the others: no caller can forget to. A timer is armed and
disarmed far more often than one is ever due. So each keeps its one place in the heap while it is armed again with a
later time, and only whoever finds it there too early puts it in anew; and who sleeps until the next one is woken only
for one that is earlier than what he was told.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import define

from runtime.compiled import CompiledRule
from runtime.places import Elements
from runtime.wakes import Concern, Concerns

__all__ = ["Timer", "Timers"]

IDLE_MAX = 1024  # timers in the heap that are not armed, besides as many again as are


@define(eq=False)
class Timer:
    """element: None also when it is gone. due_us: when, if it is armed. heap_us: its earliest place in the heap; inf:
    it has none."""

    rule: CompiledRule
    element: Any
    due_us: int = 0
    armed: bool = False
    heap_us: float = math.inf


class Timers:
    """Inside the monitor. clocks: per rule of the clock, how long after its guard became true it is due (us), given the
    shared record and the element; None: never. on_earlier: called when one was armed that is due before what
    `next_due_us` said last."""

    def __init__(
        self, clocks: Mapping[CompiledRule, Callable[[Any, Any], int | None]], shared: Any, elements: Elements,
        now_us: Callable[[], int],
    ) -> None:  # fmt: skip
        self.on_earlier: Callable[[], None] = lambda: None
        self.clocks, self._s, self._elements, self._now_us = clocks, shared, elements, now_us
        self._concerns = Concerns(clocks)
        self._of: dict[Any, dict[CompiledRule, Timer]] = {None: {}}  # by element
        self._heap: list[tuple[int, int, Timer]] = []
        self._pushed, self._armed = 0, 0
        self._told_us = math.inf
        for clock in clocks:
            for element in elements.all[clock.sort] if clock.sort else (None,):
                self._set(clock, element, False, now_us())

    def forget(self, element: Any) -> None:
        """An element is there no more; what is left of its timers in the heap does not keep it."""
        for timer in self._of.pop(element, {}).values():
            self._disarm(timer)
            timer.element = None

    def follow(self, rule: CompiledRule, element: Any, place: int | None, phase: int | None, now_us: int) -> None:
        """A step was made now, after which the element is in this place, and all in this phase."""
        possible, over = self._concerns.at(rule, place, phase)
        for concern in possible:
            for e in self._about(concern, element):
                self._set(concern.rule, e, concern.restarts and e is element, now_us)
        for concern in over:
            for e in self._about(concern, element):
                if (timers := self._of.get(e)) and (timer := timers.get(concern.rule)):
                    self._disarm(timer)

    def _about(self, concern: Concern, element: Any) -> Iterable[Any]:
        if concern.alone:
            return (element,)
        sort = concern.rule.sort
        return list(self._elements.all[sort]) if sort else (None,)

    def _set(self, clock: CompiledRule, element: Any, again: bool, now_us: int) -> None:
        """Armed while the guard holds; a newly begun call (`again`) has its time from its own beginning."""
        timers = self._of.get(element)
        timer = timers.get(clock) if timers else None
        if not clock.guard(self._s, element):
            if timer is not None and timer.armed:
                self._disarm(timer)
        elif timer is None or not timer.armed or again:
            self._arm(timer or self._new(clock, element), now_us)

    def _new(self, clock: CompiledRule, element: Any) -> Timer:
        timer = self._of.setdefault(element, {})[clock] = Timer(clock, element)
        return timer

    def _arm(self, timer: Timer, now_us: int) -> None:
        if timer.armed:
            self._disarm(timer)
        after = self.clocks[timer.rule](self._s, timer.element)
        if after is None:
            return
        timer.armed, timer.due_us = True, now_us + after
        self._armed += 1
        if timer.due_us < timer.heap_us:
            self._push(timer)
            self._compact()
        if timer.due_us < self._told_us:
            self._told_us = timer.due_us
            self.on_earlier()

    def _disarm(self, timer: Timer) -> None:
        if timer.armed:
            timer.armed = False
            self._armed -= 1

    def _push(self, timer: Timer) -> None:
        timer.heap_us = timer.due_us
        self._pushed += 1
        heapq.heappush(self._heap, (timer.due_us, self._pushed, timer))

    def _compact(self) -> None:
        if len(self._heap) > IDLE_MAX + 2 * self._armed:
            self.drop_idle()

    def drop_idle(self) -> None:
        """Leave in the heap what is armed alone: others keep what is left of ended jobs."""
        for _, _, timer in self._heap:
            timer.heap_us = math.inf
        self._heap = []
        for timers in self._of.values():
            for timer in timers.values():
                if timer.armed:
                    self._push(timer)

    def counts(self) -> tuple[int, int]:
        """Timers that are armed, and places in the heap."""
        return self._armed, len(self._heap)

    # -- who sleeps ----------------------------------------------------------------------------------------------------
    def next_due_us(self) -> int | None:
        """When the next one is due; None: none is armed. An earlier one that is armed from now on is told."""
        timer = self._next()
        self._told_us = timer.due_us if timer else math.inf
        return timer.due_us if timer else None

    def pop_due(self) -> Timer | None:
        """The next one that is due, disarmed; None when none is."""
        timer = self._next()
        if timer is None or timer.due_us > self._now_us():
            return None
        self._disarm(timer)
        return timer

    def _next(self) -> Timer | None:
        """The first in the heap, where that is its true place."""
        while self._heap:
            at_us, _, timer = self._heap[0]
            if timer.armed and timer.due_us == at_us:
                return timer
            heapq.heappop(self._heap)
            if timer.heap_us == at_us:
                timer.heap_us = math.inf
                if timer.armed:
                    self._push(timer)
        return None
