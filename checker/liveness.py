"""Leads-to under weak fairness: `when ~> then`, or a lasso that shows a fair run on which it fails.

Theory. Weak fairness, per *fair group* (an actor and the element it serves, `Instance.fair_group`): a group that from
some moment on is always enabled steps again and again. An environment's steps and a vendor call's return belong to no
group: nothing forces them. Every run may also pause for ever in a state where no fair group is enabled.

`when ~> then` fails iff some fair run reaches a state with `when` and from there on never meets `then`. Such a run ends
in one strongly connected component of the states that avoid `then`. A component (maximal, in the part that can be
reached from a trigger without meeting `then`) holds a fair run iff for every group

- the group is disabled in one of its states (visited again and again, the group asks for nothing), or
- an edge inside it belongs to the group (taken again and again).

A larger component only makes both easier, so looking at maximal ones is exact. A single state without a loop is a
component too: the run pauses there, which is fair iff no group is enabled.

Enabled means: it has an edge in the graph. A step that ends in a range or illegal finding has none; that finding
already refutes the run. A step that changes nothing (an ignored event) counts as a step of its group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from attrs import frozen
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from checker.graph import Array, Graph, offsets_of
from checker.model import GroundProperty
from checker.result import Finding, TraceStep
from checker.vector import holds

GROUPS_PER_WORD = 64
BLOCK_EDGES = 1 << 22  # edges taken at once: bounds the temporaries


@frozen
class Vacuous:
    """The trigger of a leads-to never holds, so the property says nothing. Never green."""

    prop: str
    detail: str


Outcome: TypeAlias = "Finding | Vacuous | None"


def check(graph: Graph) -> dict[str, Outcome]:
    """Every leads-to of the model, by property id: None if it holds, a lasso that refutes it, or that it is vacuous."""
    groups = FairGroups(graph)
    cases: dict[str, list[GroundProperty]] = {}
    for g in graph.model.leads_to:
        cases.setdefault(g.prop.id, []).append(g)
    return {prop: _judge(graph, groups, instances) for prop, instances in cases.items()}


def _judge(graph: Graph, groups: FairGroups, instances: list[GroundProperty]) -> Outcome:
    """One property: the shortest of its instances' counterexamples."""
    findings: list[Finding] = []
    triggered = False
    for g in instances:
        trigger = holds(g.when, graph.states)
        triggered |= bool(trigger.any())
        found = _refute(graph, groups, g, trigger)
        if found is not None:
            findings.append(found)
    if not triggered:
        return Vacuous(instances[0].prop.id, "its trigger holds in no reachable state")
    return min(findings, key=lambda f: len(f.trace), default=None)


class FairGroups:
    """Which fair groups are enabled in each state. Groups are bits, 64 to a word; the words are independent."""

    def __init__(self, graph: Graph) -> None:
        instances = graph.model.instances
        self.names = sorted({i.fair_group for i in instances} - {""})
        words = range(0, len(self.names), GROUPS_PER_WORD)
        number = {name: n for n, name in enumerate(self.names)}
        self.bit_of_instance = [np.zeros(len(instances), dtype=np.uint64) for _ in words]
        for inst in instances:
            if inst.fair_group:
                word, bit = divmod(number[inst.fair_group], GROUPS_PER_WORD)
                self.bit_of_instance[word][inst.number] = np.uint64(1) << np.uint64(bit)
        self.enabled = [np.zeros(len(graph.states), dtype=np.uint64) for _ in words]
        for enabled, bit_of in zip(self.enabled, self.bit_of_instance, strict=True):
            for block in _blocks(len(graph.source)):
                np.bitwise_or.at(enabled, graph.source[block].astype(np.intp), bit_of[graph.instance[block]])

    def idle(self, states: Array) -> Array:
        """For each of these states: no fair group is enabled, a run may pause there for ever."""
        idle = np.ones(len(states), dtype=bool)
        for enabled in self.enabled:
            idle &= enabled[states] == 0
        return idle


def _blocks(edges: int) -> Iterator[slice]:
    for at in range(0, edges, BLOCK_EDGES):
        yield slice(at, min(at + BLOCK_EDGES, edges))


# -- one instance of a property -------------------------------------------------------------------------------------
def _refute(graph: Graph, groups: FairGroups, g: GroundProperty, trigger: Array) -> Finding | None:
    avoids = ~holds(g.holds, graph.states)
    region = _Region.behind(graph, trigger & avoids, avoids)
    states = np.flatnonzero(region.distance >= 0)
    if not len(states):
        return None
    component, fair = _fair_components(graph, groups, states)
    candidates = np.flatnonzero(fair[component])
    if not len(candidates):
        return None
    nearest = candidates[np.argmin(region.distance[states[candidates]])]
    members = states[component == component[nearest]]
    resting = members[groups.idle(members)]
    if len(resting):
        end = int(resting[np.argmin(region.distance[resting])])
        cycle: list[int] = []
    else:
        end = int(states[nearest])
        cycle = _Cycle(graph, groups, members).around(end)
    prefix = region.path_to(end)
    trace = prefix + tuple(graph.step(int(graph.instance[e]), int(graph.target[e])) for e in cycle)
    rest = "nothing fair is enabled there" if not cycle else "every fair actor gets its turn"
    return Finding(g.prop.id, f"{g.name}: never again reaches its goal, though {rest}", trace, loop=len(prefix) - 1)


@frozen(eq=False)
class _Region:
    """The states that a run may be in after a trigger and before the goal.

    distance: (n,) int32 steps from the initial state by way of a trigger, -1 outside; via: the edge it was reached by
    inside the region, -1 for a trigger state that was reached no sooner from another.
    """

    graph: Graph
    distance: Array
    via: Array

    @classmethod
    def behind(cls, graph: Graph, triggers: Array, avoids: Array) -> _Region:
        """Breadth first from all triggers; each enters at its own depth, so prefixes come out shortest."""
        distance = np.full(len(graph.states), -1, dtype=np.int32)
        via = np.full(len(graph.states), -1, dtype=np.int64)
        seeds = np.flatnonzero(triggers)
        entries = np.split(seeds, np.flatnonzero(np.diff(graph.depth[seeds])) + 1) if len(seeds) else []
        waiting = {int(graph.depth[s[0]]): s for s in entries}
        frontier = np.zeros(0, dtype=np.int64)
        level = 0
        while waiting or len(frontier):
            if not len(frontier):
                level = min(waiting)
            entering = waiting.pop(level, frontier[:0])
            entering = entering[distance[entering] < 0]
            distance[entering] = level
            frontier = np.concatenate([frontier, entering])
            edges = graph.edges_of(frontier)
            targets = graph.target[edges].astype(np.int64)
            new = avoids[targets] & (distance[targets] < 0)
            frontier = _first_visits(edges[new], targets[new], via)
            level += 1
            distance[frontier] = level
        return cls(graph, distance, via)

    def path_to(self, state: int) -> tuple[TraceStep, ...]:
        steps: list[TraceStep] = []
        while (edge := int(self.via[state])) >= 0:
            steps.append(self.graph.step(int(self.graph.instance[edge]), state))
            state = int(self.graph.source[edge])
        return self.graph.path_to(state) + tuple(reversed(steps))


def _first_visits(edges: Array, targets: Array, via: Array) -> Array:
    """Record by which edge each target is reached, the first of several; the targets, each once."""
    via[targets[::-1]] = edges[::-1]
    return np.asarray(targets[via[targets] == edges])


def _fair_components(graph: Graph, groups: FairGroups, states: Array) -> tuple[Array, Array]:
    """Strong components of the part of the graph on `states`: component of each, and whether it holds a fair run."""
    local = np.full(len(graph.states), -1, dtype=np.int32)
    local[states] = np.arange(len(states), dtype=np.int32)
    inside = np.zeros(len(graph.source), dtype=bool)
    for block in _blocks(len(graph.source)):
        inside[block] = (local[graph.source[block]] >= 0) & (local[graph.target[block]] >= 0)
    source, target = local[graph.source[inside]], local[graph.target[inside]]
    offsets = offsets_of(source, len(states)).astype(np.int32)  # csgraph wants its indices as int32
    matrix: Any = csr_array((np.ones(len(source), dtype=np.int8), target, offsets), shape=(len(states), len(states)))
    many, component = connected_components(matrix, directed=True, connection="strong")
    del matrix
    within = component[source] == component[target]
    home, instance = component[source[within]], graph.instance[inside][within]
    fair = np.ones(many, dtype=bool)
    for enabled, bit_of in zip(groups.enabled, groups.bit_of_instance, strict=True):
        always = np.full(many, ~np.uint64(0), dtype=np.uint64)
        np.bitwise_and.at(always, component.astype(np.intp), enabled[states])
        taken = np.zeros(many, dtype=np.uint64)
        for block in _blocks(len(home)):
            np.bitwise_or.at(taken, home[block].astype(np.intp), bit_of[instance[block]])
        fair &= (always & ~taken) == 0
    return component, fair


class _Cycle:
    """A cycle inside one fair component that shows for every group that it is disabled or takes a step on the way."""

    def __init__(self, graph: Graph, groups: FairGroups, members: Array) -> None:
        self.graph, self.groups = graph, groups
        self.member = np.zeros(len(graph.states), dtype=bool)
        self.member[members] = True

    def around(self, start: int) -> list[int]:
        """Edge numbers of a cycle from `start` back to it; greedy: always on to the nearest witness still missing."""
        cycle: list[int] = []
        at = start
        missing = self._still_missing([e.copy() for e in self._enabled_at(at)], cycle)
        while any(missing):
            leg = self._walk(at, missing, None)
            cycle += leg
            at = int(self.graph.target[leg[-1]])
            missing = self._still_missing(missing, leg)
        return cycle if at == start and cycle else cycle + self._walk(at, missing, start)

    def _enabled_at(self, state: int) -> list[np.uint64]:
        return [enabled[state] for enabled in self.groups.enabled]

    def _still_missing(self, missing: list[np.uint64], leg: list[int]) -> list[np.uint64]:
        """The groups without a witness after these edges."""
        for edge in leg:
            after = self._enabled_at(int(self.graph.target[edge]))
            took = [bit_of[self.graph.instance[edge]] for bit_of in self.groups.bit_of_instance]
            missing = [m & ~t & e for m, t, e in zip(missing, took, after, strict=True)]
        return missing

    def _walk(self, start: int, missing: list[np.uint64], goal: int | None) -> list[int]:
        """Shortest walk of at least one edge inside the component: to `goal`, or to any witness of a missing group."""
        via = np.full(len(self.graph.states), -1, dtype=np.int64)
        frontier = np.array([start], dtype=np.int64)
        while len(frontier):
            edges = self.graph.edges_of(frontier)
            edges = edges[self.member[self.graph.target[edges]]]
            targets = self.graph.target[edges].astype(np.int64)
            hit = targets == goal if goal is not None else self._witnesses(edges, targets, missing)
            if hit.any():
                return self._back(int(edges[np.argmax(hit)]), start, via)
            new = (via[targets] < 0) & (targets != start)
            frontier = _first_visits(edges[new], targets[new], via)
        raise AssertionError("a strongly connected component has a way to each of its states")

    def _witnesses(self, edges: Array, targets: Array, missing: list[np.uint64]) -> Array:
        hit = np.zeros(len(edges), dtype=bool)
        for m, enabled, bit_of in zip(missing, self.groups.enabled, self.groups.bit_of_instance, strict=True):
            hit |= ((bit_of[self.graph.instance[edges]] | ~enabled[targets]) & m) != 0
        return hit

    def _back(self, edge: int, start: int, via: Array) -> list[int]:
        walk = [edge]
        while (state := int(self.graph.source[walk[-1]])) != start:
            walk.append(int(via[state]))
        return walk[::-1]
