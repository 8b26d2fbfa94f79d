"""The explored graph as arrays: what liveness and whole-graph questions read."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from attrs import frozen

from checker.model import Model, StateTuple
from checker.result import TraceStep

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


@frozen(eq=False)
class Graph:
    """All reachable states and steps, numbered in the order of discovery.

    states: (n, slots) small unsigned ints, row i is state i; source, target: (m,) uint32 state numbers; instance: (m,)
    uint16 instance numbers; parent, parent_instance: (n,) int64, how each state was first reached (-1 for the initial one).
    """

    model: Model
    states: Array
    source: Array
    target: Array
    instance: Array
    parent: Array
    parent_instance: Array

    def state(self, number: int) -> StateTuple:
        return tuple(int(v) for v in self.states[number])

    def path_to(self, number: int) -> tuple[TraceStep, ...]:
        """The shortest trace from the initial state."""
        steps: list[TraceStep] = []
        while number >= 0:
            fired = int(self.parent_instance[number])
            inst = self.model.instances[fired] if fired >= 0 else None
            steps.append(TraceStep(inst.name if inst else "", inst.rule.id if inst else "", self.state(number)))
            number = int(self.parent[number])
        return tuple(reversed(steps))
