"""The reference engine: breadth-first exploration in plain Python. Slow, short, and what the C engine is held equal to.

Theory. Each instance is compiled to a Python function `state -> None | successor | finding`. The search is a plain
queue: states are numbered in the order of discovery, levels are distances from the initial state, the parent of a state
is the one that discovered it first. So the first finding of each property has the shortest trace, and the order is the
same in every engine: by parent's number, then by instance number.
"""

from __future__ import annotations

import linecache
import time
from collections.abc import Callable
from typing import Any

from checker.memory import resident_mb
from checker.model import Instance, Model, StateTuple
from checker.result import (
    DEADLOCK,
    ILLEGAL,
    RANGE,
    RECEPTIVE,
    Exploration,
    Finding,
    Limits,
    Progress,
    ProgressCallback,
    TraceStep,
)
from machines.expr import Expr
from machines.printing import to_python

Edge = tuple[int, int, int]
"""(number of the source state, number of the target state, number of the instance)."""

PROGRESS_EVERY = 4096  # states between two looks at the clock


def explore(
    model: Model,
    *,
    limits: Limits | None = None,
    stop_at_first: bool = False,
    progress: ProgressCallback | None = None,
    graph: list[Edge] | None = None,
    order: list[StateTuple] | None = None,
) -> Exploration:
    """Explore every reachable state. `graph` and `order`, when given, receive the edges and the states in order."""
    return _Search(model, limits or Limits(), stop_at_first, progress, graph, order).run()


class _Search:
    def __init__(
        self,
        model: Model,
        limits: Limits,
        stop_at_first: bool,
        progress: ProgressCallback | None,
        graph: list[Edge] | None,
        order: list[StateTuple] | None,
    ) -> None:
        self.model, self.limits, self.stop_at_first, self.progress, self.graph = (
            model, limits, stop_at_first, progress, graph,
        )  # fmt: skip
        self.order: list[StateTuple] = [] if order is None else order
        self.code = compile_model(model)
        self.number: dict[StateTuple, int] = {}
        self.parent: list[tuple[int, int]] = []
        self.findings: dict[str, Finding] = {}
        self.fired = [0] * len(model.instances)
        self.cells: set[int] = set()
        self.reached: set[str] = set()
        self.transitions = 0
        self.started = time.monotonic()

    def run(self) -> Exploration:
        self._add(self.model.initial, -1, -1)
        depth, level_end, at, stopped = 0, 1, 0, ""
        while at < len(self.order):
            if at == level_end:
                depth, level_end = depth + 1, len(self.order)
            if at % PROGRESS_EVERY == 0:
                stopped = self._look_at_the_clock(depth, len(self.order) - at)
            if stopped or (self.stop_at_first and self.findings):
                stopped = stopped or "stopped at the first finding"
                break
            if self.limits.states is not None and len(self.order) > self.limits.states:
                stopped = f"limit of {self.limits.states:,} states"
                break
            self._expand(at)
            at += 1
        return Exploration(
            engine="python",
            states=len(self.order),
            transitions=self.transitions,
            depth=depth,
            fired=tuple(self.fired),
            cells=frozenset(self.model.cells[c] for c in self.cells),
            reached=frozenset(self.reached),
            findings=self.findings,
            complete=not stopped,
            stopped=stopped,
            seconds=time.monotonic() - self.started,
            memory_mb=resident_mb(),
        )

    def _expand(self, at: int) -> None:
        state = self.order[at]
        for prop, detail in self.code.judge(state):
            self._report(prop, detail, at, None)
        self.reached.update(self.code.see(state))
        before = self.transitions
        for n, fire in enumerate(self.code.fire):
            result = fire(state, self.cells)
            if result is None:
                continue
            self.transitions += 1
            self.fired[n] += 1
            after, broken, lost = result
            for prop, detail in broken:
                self._report(prop, detail, at, (n, after))
            if lost:
                continue
            target = self.number.get(after)
            if target is None:
                target = self._add(after, at, n)
            if self.graph is not None:
                self.graph.append((at, target, n))
        if self.transitions == before and not self.code.legal_end(state):
            self._report(DEADLOCK, "no rule is enabled and this is not a legal end", at, None)

    def _add(self, state: StateTuple, parent: int, instance: int) -> int:
        self.number[state] = n = len(self.order)
        self.order.append(state)
        self.parent.append((parent, instance))
        return n

    def _report(self, prop: str, detail: str, at: int, last: tuple[int, StateTuple] | None) -> None:
        if prop not in self.findings:
            self.findings[prop] = Finding(prop, detail, self._trace(at, last))

    def _trace(self, at: int, last: tuple[int, StateTuple] | None) -> tuple[TraceStep, ...]:
        steps = [] if last is None else [self._step(*last)]
        while at >= 0:
            parent, instance = self.parent[at]
            steps.append(self._step(instance, self.order[at]))
            at = parent
        return tuple(reversed(steps))

    def _step(self, instance: int, state: StateTuple) -> TraceStep:
        if instance < 0:
            return TraceStep("", "", state)
        fired = self.model.instances[instance]
        return TraceStep(fired.name, fired.rule.id, state)

    def _look_at_the_clock(self, depth: int, frontier: int) -> str:
        seconds = time.monotonic() - self.started
        memory_mb = resident_mb()
        if self.progress:
            self.progress(Progress(depth, len(self.order), frontier, self.transitions, seconds, memory_mb))
        if self.limits.memory_mb is not None and memory_mb > self.limits.memory_mb:
            return f"limit of {self.limits.memory_mb} MB"
        limit = self.limits.seconds
        return f"limit of {limit:g} s" if limit is not None and seconds > limit else ""


# -- compilation --------------------------------------------------------------------------------------------------
Fire = Callable[[StateTuple, set[int]], "tuple[StateTuple, list[tuple[str, str]], bool] | None"]


class CompiledModel:
    """The functions of one model: fire[n](state, cells), judge(state), see(state), legal_end(state)."""

    def __init__(self, namespace: dict[str, Any], instances: int) -> None:
        self.fire: list[Fire] = [namespace[f"fire_{n}"] for n in range(instances)]
        self.judge: Callable[[StateTuple], list[tuple[str, str]]] = namespace["judge"]
        self.see: Callable[[StateTuple], list[str]] = namespace["see"]
        self.legal_end: Callable[[StateTuple], bool] = namespace["legal_end"]


def compile_model(model: Model) -> CompiledModel:
    """Generate and compile the Python source of a model; it is registered in linecache, so tracebacks show it."""
    lines = ["# Generated from a rulebook. Do not edit."]
    for inst in model.instances:
        lines += _fire_source(model, inst)
    lines += _judge_source(model)
    source = "\n".join(lines) + "\n"
    name = f"<model {model.rulebook.name} {id(model):x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace: dict[str, Any] = {}
    exec(compile(source, name, "exec"), namespace)
    return CompiledModel(namespace, len(model.instances))


def _now(slot: int, primed: bool) -> str:
    return f"{'t' if primed else 's'}[{slot}]"


def _text(e: Expr) -> str:
    return to_python(e, _now)


def _fire_source(model: Model, inst: Instance) -> list[str]:
    out = [f"def fire_{inst.number}(s, cells):  # {inst.name!r}", f"    if not {_text(inst.guard)}: return None"]
    for k, step in enumerate(inst.steps):
        out.append(f"    x{k} = {step.targets}[s[{step.slot}]]")
    rejecting = [(k, step) for k, step in enumerate(inst.steps) if -2 in step.targets]
    for k, step in rejecting:  # the cell that rejects was used, though nothing happens
        out.append(f"    if x{k} == -2: cells.add({step.cells}[s[{step.slot}]])")
    if rejecting:
        out.append(f"    if {' or '.join(f'x{k} == -2' for k, _ in rejecting)}: return None")
    out += ["    t = list(s)", "    broken = []"]
    for k, step in enumerate(inst.steps):
        name = model.slots[step.slot].name
        out += [
            f"    if x{k} < 0: broken.append(({ILLEGAL!r}, "
            f"{f'{name} takes {step.event} in '!r} + {[s.name for s in step.table.states]}[s[{step.slot}]]))",
            f"    else: t[{step.slot}] = x{k}; cells.add({step.cells}[s[{step.slot}]])",
        ]
    out.append("    if broken: return tuple(t), broken[:1], True")
    out += [f"    t[{slot}] = int({_text(value)})" for slot, value in inst.updates]
    for slot, value in inst.updates:
        if not (value.is_const and 0 <= value.value <= model.slots[slot].hi):
            detail = f"{model.slots[slot].name} leaves 0..{model.slots[slot].hi}: "
            out.append(
                f"    if not 0 <= t[{slot}] <= {model.slots[slot].hi}: "
                f"return tuple(t), [({RANGE!r}, {detail!r} + str(t[{slot}]))], True"
            )
    for g in model.steps:
        if g.prop.about_rule(inst.rule.id):  # type: ignore[attr-defined]
            out.append(f"    if not {_text(g.holds)}: broken.append(({g.prop.id!r}, {g.name!r}))")
    out.append("    return tuple(t), broken, False")
    return out


def _judge_source(model: Model) -> list[str]:
    out = ["def judge(s):", "    broken = []"]
    for g in model.invariants:
        out.append(f"    if not {_text(g.holds)}: broken.append(({g.prop.id!r}, {g.name!r}))")
    for p in model.pending:
        takers = " + ".join(f"(1 if {_text(t)} else 0)" for t in p.takers) or "0"
        out += [
            f"    if {_text(p.when)}:",
            f"        n = {takers}",
            f"        if n != 1: broken.append(({RECEPTIVE!r}, {p.name!r} + f' is taken by {{n}} rules'))",
        ]
    out += ["    return broken", "def see(s):", "    seen = []"]
    for g in model.sometimes:
        out.append(f"    if {_text(g.holds)}: seen.append({g.prop.id!r})")
    out += ["    return seen", f"def legal_end(s): return bool({_text(model.legal_end)})"]
    return out
