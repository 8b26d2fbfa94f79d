"""Faults by a seed while the executor serves, and what they led to: drains, recoveries, generations.

Theory. Each call of infer, Wait, Apply and canAllocate fails by the same chance. What happens then is drawn among all
that the simulator can do at that call, but for what nobody can recover from: codes for which §8 wants a person
(Compatibility, Artifact, and Programming, which switches a feature off), and, under a policy that stands on a vendor
fact, a device that breaks this fact. Each generation draws anew from the seed.

Faults befall the device while it serves, and it recovers undisturbed: a golden run makes some 26 such calls and has one
attempt on each rung of the reset ladder, so at a chance of 5 % four recoveries in ten fail for bad luck alone, and no
executor outlives a hundred of them. `everywhere` spares nothing: then the simulator draws by itself, at every call and
among everything (docs/simulator.md), and a device that Failed is an honest end.

Which of the planned faults were injected follows from the device's own record of the calls: the nth call since the
plan was begun. A call that comes while it is being made is counted too, so a fault may be listed a call early; none is
missed.
"""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import define, field

from machines.errors import CODES, ErrorClass
from runtime.compiled import CompiledRule
from runtime.executor import DeviceExecutor
from runtime.simulator import Call, Simulator
from runtime.symptoms import UNKNOWN, Fault

__all__ = ["Weather"]

MILLION = 1_000_000
STARTED, YES_OR_NO = ("infer", "wait"), ("apply", "can_allocate")
CALLS = (*STARTED, *YES_OR_NO)
REMEMBERED = 4096  # faults that were injected, the last ones: more than any two generations have
PLANNED = 64  # faults of each call that are planned ahead; nearly every generation ends long before
RECOVERS = frozenset({"recover", "retry"})  # events of the device's table that lead to a reset
NEEDS_A_PERSON = (ErrorClass.Compatibility, ErrorClass.Artifact, ErrorClass.Programming)
SURVIVABLE = tuple(c.number for c in CODES if c.number and c.kind not in NEEDS_A_PERSON)
BREAKS_A_FACT = {"write_after_reset": "reset_stops_dma", "ignore": "reset_is_honest"}
AS_THE_FACT_SAYS = -1
ARGUMENT_MAX = {"throw": 3, "nan": 1024, "inf": 1024, "short_tensor": 1024, "late": 10_000}


@define(eq=False)
class Plan:
    """Faults that were planned at once. read: number of the first call that has not been counted yet."""

    read: int
    faults: dict[tuple[str, int], list[Fault]] = field(factory=dict)  # by call and its number from then on, from 1
    calls: Counter[str] = field(factory=Counter, init=False)

    def came(self, calls: tuple[Call, ...]) -> Iterator[Fault]:
        """Those that were injected at these calls, the next ones of the device's record."""
        for call in calls:
            self.read = call.number + 1
            self.calls[call.call] += 1
            yield from self.faults.get((call.call, self.calls[call.call]), ())


@define(eq=False)
class Weather:
    """simulator: None where the device is none; then nothing is injected.

    lull: in this share of the generations faults that were added one by one are forgotten when the device leaves Ready.
    causes: which rules began drains that led to a reset, as the executor's metrics say. resets: how often the device
    began to recover. failed_by: the rules by which the device began to drain for the last time, and Failed; empty while
    it has not.
    """

    simulator: Simulator | None
    seed: int | str = 0
    rate: float = 0.0
    everywhere: bool = False
    facts: frozenset[str] = frozenset()  # that must not be broken
    lull: float = 0.0
    causes: Counter[str] = field(factory=Counter, init=False)
    resets: int = field(default=0, init=False)
    failed_by: tuple[str, ...] = field(default=(), init=False)
    _actions: dict[str, list[str]] = field(factory=dict, init=False)  # that are possible, of each call
    _plan: Plan | None = field(default=None, init=False)
    _came: list[Fault] = field(factory=list, init=False)  # without the first `_forgotten`
    _forgotten: int = field(default=0, init=False)
    _fired_before: int = field(default=0, init=False)
    _executor: DeviceExecutor | None = field(default=None, init=False)
    _mark: int = field(default=0, init=False)
    _blowing: bool = field(default=False, init=False)
    _over: bool = field(default=False, init=False)
    _mu: Any = field(factory=threading.Lock, init=False)

    def before_start(self) -> None:
        """Faults that may befall the start."""
        self._fired_before = self.fired()
        if self.everywhere:
            self._blow()

    def plan(self, faults: Iterable[tuple[str, str, int]]) -> None:
        """Besides, in a calm (rate 0): at the nth coming call, from 1, this happens; as (call, action, nth)."""
        for call, action, nth in faults:
            self.add(Fault(call, action), nth)

    def add(self, fault: Fault, nth: int, b: int = 0) -> None:
        """One fault more, at the nth coming call, from 1. b: as the simulator's. Only in a calm."""
        if not self.simulator or self.rate:
            return
        with self._mu:
            self._plan = self._plan or Plan(self.simulator.calls_total())
            self._note()
            at = self._plan.calls[fault.call] + nth
            self.simulator.fault(fault.call, fault.action, fault.a, b, nth)
            meanwhile = sum(call.call == fault.call for call in self.simulator.trace(self._plan.read))
            for number in range(at, at + meanwhile + 1):
                self._plan.faults.setdefault((fault.call, number), []).append(fault)

    def drawn(self, draw: random.Random, call: str) -> tuple[Fault, int]:
        """A fault that may befall this call, among all but those that break a fact, and the simulator's `b` of it."""
        action = draw.choice(self._possible(call))
        if action != "return":
            return Fault(call, action, draw.randrange(ARGUMENT_MAX.get(action, 1))), 0
        if call in YES_OR_NO:
            return Fault(call, action), 0
        return Fault(call, action, draw.choice(SURVIVABLE)), AS_THE_FACT_SAYS if call in STARTED else 0

    def _possible(self, call: str) -> list[str]:
        if call not in self._actions:
            actions = self.simulator.actions() if self.simulator else ()
            mine = [a.name for a in actions if call in a.calls or "*" in a.calls]
            self._actions[call] = [name for name in mine if BREAKS_A_FACT.get(name) not in self.facts]
        return self._actions[call]

    def follow(self, executor: DeviceExecutor) -> None:
        """From now on see every step of the executor that changes its device's state."""
        after = executor.engine.on_step

        def on_step(rule: CompiledRule, element: Any) -> None:
            if after:
                after(rule, element)
            self._see(rule)

        self._executor = executor
        executor.engine.on_step = on_step
        self._look()

    def end(self) -> None:
        """No more faults, until `resume`."""
        with self._mu:
            self._over = True
            self._calm()

    def resume(self) -> None:
        """Faults again after `end`, as at the beginning of the generation; at once where the device serves."""
        with self._mu:
            self._over = self._blowing = False
        self._look()

    def fired(self) -> int:
        """Faults that were injected so far."""
        return self.simulator.faults_fired() if self.simulator else 0

    def mark(self) -> int:
        """A place in the list of faults: when the device last became Ready. What fails now must have met one since."""
        return self._mark

    def since(self, mark: int) -> tuple[Fault, ...]:
        """The faults that were injected from there on."""
        with self._mu:
            self._note()
            return tuple(self._came[max(0, mark - self._forgotten) :])

    def _note(self) -> None:
        """Write down what was injected meanwhile; of what others planned only that it was."""
        if self._plan and self.simulator:
            self._came += self._plan.came(self.simulator.trace(self._plan.read))
        elif not self.rate or self.everywhere:
            self._came += [UNKNOWN] * (self.fired() - self._fired_before - self._forgotten - len(self._came))
        if (more := len(self._came) - REMEMBERED) > REMEMBERED:
            del self._came[:more]
            self._forgotten += more

    # -- steps ---------------------------------------------------------------------------------------------------------
    def _see(self, rule: CompiledRule) -> None:
        events = {event for target, event in rule.rule.fires if target.args[0].name == "device"}
        if not events:
            return
        with self._mu:
            assert self._executor is not None
            if "fail" in events and not self.failed_by:
                self.failed_by = tuple(dict.fromkeys((self._executor.observer.cause(rule.id), rule.id)))
            if events & RECOVERS:
                self.resets += 1
                self.causes[self._executor.observer.cause(rule.id)] += 1
        self._look()

    def _look(self) -> None:
        """The state is asked for under our lock: steps may be told out of their order."""
        with self._mu:
            assert self._executor is not None
            ready = self._executor.ready()
            if ready and not self._blowing:
                self._note()
                self._mark = self._forgotten + len(self._came)
            if ready and not self._over:
                self._blow()
            elif not self.everywhere:
                self._calm()
                self._forget_some()
            self._blowing = ready

    def _blow(self) -> None:
        if not self.simulator or not self.rate or self._blowing or self._over:
            return
        if self.everywhere:
            if not self._executor:
                self.simulator.fault_seed(_number(self.seed), round(self.rate * MILLION))
            return
        assert self._executor is not None
        draw = random.Random(f"{self.seed}/{self._executor.calls.generation_id}")
        self._plan = Plan(self.simulator.calls_total())
        for call in CALLS:
            for nth in _when(draw, self.rate):
                self._add(draw, call, nth)

    def _add(self, draw: random.Random, call: str, nth: int) -> None:
        assert self.simulator is not None
        assert self._plan is not None
        fault, b = self.drawn(draw, call)
        self.simulator.fault(call, fault.action, fault.a, b, nth)
        self._plan.faults[call, nth] = [fault]

    def _forget_some(self) -> None:
        assert self._executor is not None
        draw = random.Random(f"{self.seed}/lull/{self._executor.calls.generation_id}")
        if self.simulator and self._plan and draw.random() < self.lull:
            self.simulator.faults_clear()
            self._note()
            self._plan.faults.clear()

    def _calm(self) -> None:
        if self.simulator and self.rate:
            self.simulator.faults_clear()
            self._note()
            self._plan = None


def _number(seed: int | str) -> int:
    return seed if isinstance(seed, int) else random.Random(seed).getrandbits(32)


def _when(draw: random.Random, rate: float) -> Iterator[int]:
    """At which coming calls, from 1, if each fails by this chance."""
    at = 0
    for _ in range(PLANNED):
        at += 1 if rate >= 1 else 1 + int(math.log(1 - draw.random()) / math.log(1 - rate))
        yield at
