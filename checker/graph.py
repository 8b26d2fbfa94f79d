"""The explored graph as arrays: what liveness and whole-graph questions read."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from attrs import define, field

from checker.explore import Edge, explore
from checker.model import Model, StateTuple
from checker.result import TraceStep

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


@define(eq=False, slots=False)
class Graph:
    """All reachable states and steps, numbered in the order of discovery. Not to be changed once built.

    states: (n, slots) small unsigned ints, row i is state i; source, target: (m,) uint32 state numbers; instance: (m,)
    uint16 instance numbers; parent, parent_instance: (n,) int64, how a state was first reached (-1: the initial one).
    Edges come in the order of exploration, so `source` never decreases.
    """

    model: Model
    states: Array
    source: Array = field()
    target: Array
    instance: Array
    parent: Array
    parent_instance: Array

    @source.validator
    def _sorted(self, _: object, value: Array) -> None:
        if np.any(value[:-1] > value[1:]):
            raise ValueError("the edges of a graph must be ordered by source")

    def state(self, number: int) -> StateTuple:
        return tuple(int(v) for v in self.states[number])

    def step(self, instance: int, number: int) -> TraceStep:
        """Instance `instance` fired (-1: none, the initial state) and led to state `number`."""
        inst = self.model.instances[instance] if instance >= 0 else None
        return TraceStep(inst.name if inst else "", inst.rule.id if inst else "", self.state(number))

    def path_to(self, number: int) -> tuple[TraceStep, ...]:
        """The shortest trace from the initial state."""
        steps: list[TraceStep] = []
        while number >= 0:
            steps.append(self.step(int(self.parent_instance[number]), number))
            number = int(self.parent[number])
        return tuple(reversed(steps))

    @cached_property
    def offsets(self) -> Array:
        """(n + 1,) int64: the edges of state i are offsets[i] .. offsets[i + 1] - 1."""
        return offsets_of(self.source, len(self.states))

    @cached_property
    def depth(self) -> Array:
        """(n,) int32: steps from the initial state. Parents never decrease, so each level is a range of numbers."""
        depth = np.zeros(len(self.states), dtype=np.int32)
        start, end, level = 0, 1, 0
        while start < end:
            depth[start:end] = level
            start, end, level = end, int(np.searchsorted(self.parent, end)), level + 1
        return depth

    def edges_of(self, states: Array) -> Array:
        """The numbers of all edges that leave these states, state by state."""
        first = self.offsets[states]
        many = self.offsets[states + 1] - first
        return np.repeat(first - (np.cumsum(many) - many), many) + np.arange(int(many.sum()))


def offsets_of(source: Array, states: int) -> Array:
    """Where each state's edges begin, for edges ordered by source."""
    offsets = np.zeros(states + 1, dtype=np.int64)
    np.cumsum(np.bincount(source, minlength=states), out=offsets[1:])
    return offsets


def from_python(model: Model) -> Graph:
    """Explore with the reference engine and keep the graph. A step that is a range or illegal finding has no edge."""
    edges: list[Edge] = []
    order: list[StateTuple] = []
    explore(model, graph=edges, order=order)
    return from_edges(model, edges, order)


def from_edges(model: Model, edges: list[Edge], order: list[StateTuple]) -> Graph:
    """What the reference engine wrote down (its `graph` and `order`), as arrays."""
    flat = np.array(edges, dtype=np.int64).reshape(-1, 3)
    parent, parent_instance = (np.full(len(order), -1, dtype=np.int64) for _ in range(2))
    # Reversed, so that of several edges to one state the first one stays: it is the one that discovered the state.
    backwards = flat[::-1]
    parent[backwards[:, 1]], parent_instance[backwards[:, 1]] = backwards[:, 0], backwards[:, 2]
    parent[0] = parent_instance[0] = -1
    hi = max((s.hi for s in model.slots), default=0)
    return Graph(
        model=model,
        states=np.array(order, dtype=np.min_scalar_type(hi)).reshape(len(order), len(model.slots)),
        source=flat[:, 0].astype(np.uint32),
        target=flat[:, 1].astype(np.uint32),
        instance=flat[:, 2].astype(np.uint16),
        parent=parent,
        parent_instance=parent_instance,
    )
