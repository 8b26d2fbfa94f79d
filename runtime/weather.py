"""Faults by a seed while the executor serves, and what they led to: drains, recoveries, generations.

Theory. Each call of infer, Wait, Apply and canAllocate fails by the same chance. What happens then is drawn among all
that the simulator can do at that call, but for what nobody can recover from: codes for which §8 wants a person
(Compatibility, Artifact), and, under a policy that stands on a vendor fact, a device that breaks this fact. Each
generation draws anew from the seed.

Faults befall the device while it serves, and it recovers undisturbed: a golden run makes some 26 such calls and has one
attempt on each rung of the reset ladder, so at a chance of 5 % four recoveries in ten fail for bad luck alone, and no
executor outlives a hundred of them. `everywhere` spares nothing: then the simulator draws by itself, at every call and
among everything (docs/simulator.md), and a device that Failed is an honest end.
"""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from attrs import define, field

from machines.errors import CODES, observed
from runtime.compiled import CompiledRule
from runtime.executor import DeviceExecutor
from runtime.simulator import Simulator

__all__ = ["Weather"]

MILLION = 1_000_000
CALLS = ("infer", "wait", "apply", "can_allocate")
PLANNED = 64  # faults of each call that are planned ahead; nearly every generation ends long before
RECOVERS = frozenset({"recover", "retry"})  # events of the device's table that lead to a reset
NEEDS_A_PERSON = ("compatibility", "artifact")
SURVIVABLE = tuple(c.number for c in CODES if c.number and observed("infer", c.number) not in NEEDS_A_PERSON)
BREAKS_A_FACT = {"write_after_reset": "reset_stops_dma"}
AS_THE_FACT_SAYS = -1
ARGUMENT_MAX = {"throw": 3, "nan": 1024, "inf": 1024, "short_tensor": 1024, "late": 10_000}


@define(eq=False)
class Weather:
    """simulator: None where the device is none; then nothing is injected.

    causes: which rules began drains that led to a reset. resets: how often the device began to recover.
    """

    simulator: Simulator | None
    seed: int = 0
    rate: float = 0.0
    everywhere: bool = False
    facts: frozenset[str] = frozenset()  # that must not be broken
    causes: Counter[str] = field(factory=Counter, init=False)
    resets: int = field(default=0, init=False)
    _executor: DeviceExecutor | None = field(default=None, init=False)
    _cause: str = field(default="", init=False)
    _mark: int = field(default=0, init=False)
    _blowing: bool = field(default=False, init=False)
    _over: bool = field(default=False, init=False)
    _mu: Any = field(factory=threading.Lock, init=False)

    def before_start(self) -> None:
        """Faults that may befall the start."""
        self._mark = self.fired()
        if self.everywhere:
            self._blow()

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
        """No more faults."""
        with self._mu:
            self._over = True
            self._calm()

    def fired(self) -> int:
        """Faults that were injected so far."""
        return self.simulator.faults_fired() if self.simulator else 0

    def mark(self) -> int:
        """How many there were when the device last became Ready: what fails now must have met one since."""
        return self._mark

    # -- steps ---------------------------------------------------------------------------------------------------------
    def _see(self, rule: CompiledRule) -> None:
        events = {event for target, event in rule.rule.fires if target.args[0].name == "device"}
        if not events:
            return
        with self._mu:
            if "drain" in events:
                self._cause = self._cause or rule.id
            if events & RECOVERS:
                self.resets += 1
                self.causes[self._cause or rule.id] += 1
                self._cause = ""
        self._look()

    def _look(self) -> None:
        """The state is asked for under our lock: steps may be told out of their order."""
        with self._mu:
            assert self._executor is not None
            ready = self._executor.ready()
            if ready and not self._blowing:
                self._mark = self.fired()
            if ready and not self._over:
                self._blow()
            elif not self.everywhere:
                self._calm()
            self._blowing = ready

    def _blow(self) -> None:
        if not self.simulator or not self.rate or self._blowing or self._over:
            return
        if self.everywhere:
            if not self._executor:
                self.simulator.fault_seed(self.seed, round(self.rate * MILLION))
            return
        assert self._executor is not None
        draw = random.Random(f"{self.seed}/{self._executor.calls.generation_id}")
        for call in CALLS:
            for nth in _when(draw, self.rate):
                self._plan(draw, call, nth)

    def _plan(self, draw: random.Random, call: str, nth: int) -> None:
        assert self.simulator is not None
        actions = [
            a.name
            for a in self.simulator.actions()
            if (call in a.calls or "*" in a.calls) and BREAKS_A_FACT.get(a.name) not in self.facts
        ]
        action = draw.choice(actions)
        if action != "return":
            self.simulator.fault(call, action, draw.randrange(ARGUMENT_MAX.get(action, 1)), 0, nth)
        elif call in ("infer", "wait"):
            self.simulator.fault(call, action, draw.choice(SURVIVABLE), AS_THE_FACT_SAYS, nth)
        else:  # these answer yes or no
            self.simulator.fault(call, action, 0, 0, nth)

    def _calm(self) -> None:
        if self.simulator and self.rate:
            self.simulator.faults_clear()


def _when(draw: random.Random, rate: float) -> Iterator[int]:
    """At which coming calls, from 1, if each fails by this chance."""
    at = 0
    for _ in range(PLANNED):
        at += 1 if rate >= 1 else 1 + int(math.log(1 - draw.random()) / math.log(1 - rate))
        yield at
