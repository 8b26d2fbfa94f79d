"""Random small rulebooks: what the framework can say, drawn by Hypothesis.

A rulebook is drawn in the order in which a person writes one: parameters and sorts, tables, variables, rules,
properties. Draws are well formed by construction where that is easy (tables have no traps, updates mostly stay in
range); what is left over the framework itself rejects (`RulebookError`), and the draw is thrown away. Guards are mostly
about something that moves, so that most rulebooks go somewhere, some get stuck, and some break a property.

Everything is drawn by three primitives (`Drawer`), not by strategies of strategies: that is fifty times faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from attrs import define, field
from hypothesis import reject
from hypothesis import strategies as st

from machines.expr import (
    TRUE,
    Domain,
    Expr,
    Map,
    Param,
    Sort,
    State,
    Var,
    all_of,
    any_of,
    const,
    count,
    every,
    ite,
    some,
)
from machines.rulebook import (
    Actor,
    Each,
    Effect,
    Invariant,
    LeadsTo,
    Property,
    Return,
    Rule,
    Rulebook,
    Sometimes,
    Step,
    variable,
)
from machines.table import Ignore, Reject, Row, RulebookError, Table

T = TypeVar("T")
Over = tuple[Expr, ...]

OURS, THEIRS, WATCHER = Actor("ours"), Actor("theirs", environment=True), Actor("watcher", observes=True)
Call = State("Call", ["Idle", "Busy"])
HIGHEST = (1, 2, 1, 3, 2, 0, 5, 300)  # highest values of the variables that are drawn; 0: a variable of one value
EFFECTS = ([("ok", "")], [("ok", ""), ("err", "")], [("ok", ""), ("ok", "lie"), ("err", "")])


class Drawn:
    """A rulebook that prints as a person would write it down: what Hypothesis shows when a test fails. Not an attrs
    class, for those it prints field by field."""

    def __init__(self, book: Rulebook) -> None:
        self.book = book

    def __repr__(self) -> str:
        lines = [" ".join(f"{p.name}={p.default}" for p in self.book.params)]
        lines += [f"{v.path} in 0..{v.domain.hi}, at first {v.initial}" for v in self.book.variables]
        for t in self.book.tables:
            cells = [f"{e.source}.{e.event} {e.kind} {e.target}" for e in t.entries.values()]
            lines.append(f"{t.name}: {', '.join(cells)}")
        for r in self.book.rules:
            changes = [f"{t}.{event}" for t, event in r.fires] + [f"{t} := {v}" for t, v in (*r.full_then, *r.truth)]
            each = [f"{x.index}: {t}.{event}" for x in r.each for t, event in x.fires]
            each += [f"{x.index}: {t} := {v}" for x in r.each for t, v in (*x.then, *x.truth)]
            over = ", ".join(map(str, r.over))
            lines.append(f"{r.id}({over}) if {r.full_guard} and {r.world}: {', '.join(changes + each)}")
        return "\n".join(lines)


@st.composite
def rulebooks(draw: Any) -> Drawn:
    """A whole rulebook with 2 to 12 rules."""
    return Drawn(_Author(Drawer(draw)).rulebook())


@define
class Drawer:
    """The primitives. Earlier members, and no, are simpler: Hypothesis shrinks towards them."""

    draw: Any

    def number(self, lo: int, hi: int) -> int:
        return int(self.draw(st.integers(lo, hi)))

    def pick(self, members: Sequence[T]) -> T:
        return members[self.number(0, len(members) - 1)]

    def chance(self, one_in: int) -> bool:
        return self.number(1, one_in) == one_in

    def some(self, members: Sequence[T], at_most: int) -> list[T]:
        left, out = list(members), []
        for _ in range(min(self.number(0, at_most), len(left))):
            out.append(left.pop(self.number(0, len(left) - 1)))
        return out


@define
class _Author:
    """Draws the parts of one rulebook, each about what was declared before it."""

    d: Drawer
    params: list[Param] = field(factory=list)
    sorts: list[Sort] = field(factory=list)
    maps: list[Map] = field(factory=list)
    variables: list[Var] = field(factory=list)
    guarded: bool = False  # every rule has a guard, so that the rulebook may get stuck

    def rulebook(self) -> Rulebook:
        self.guarded = self.d.chance(2)
        self.declare()
        effects, outcomes = self.calls()
        many = self.d.number(2, 4) if self.guarded else self.d.number(4, 8)
        rules = [*(self.rule(n) for n in range(many)), *outcomes]
        fired = {(t.args[0].machine, e) for r in rules for t, e in [*r.fires, *(f for x in r.each for f in x.fires)]}
        tables = {v.machine for v in self.variables if v.machine}
        unfired = {e.id: "drawn" for t in tables for e in t.entries.values() if (t, e.event) not in fired}
        legal_end = self.condition((), world=True) if self.guarded else TRUE
        try:
            return Rulebook(
                "drawn", [OURS, THEIRS, WATCHER], self.params, self.sorts, self.variables, rules, effects,
                self.properties(rules), self.maps, legal_end=legal_end, unfired=unfired,
            )  # fmt: skip
        except RulebookError:
            return reject()

    # -- declarations -------------------------------------------------------------------------------------------
    def declare(self) -> None:
        d = self.d
        self.params = [Param("size", default=d.number(1, 3), lo=1, hi=3), Param("fact", default=d.number(0, 1))]
        self.sorts = [Sort("one", self.params[0].expr)]
        if d.chance(2):
            self.sorts.append(Sort("two", d.number(1, 2)))
            self.maps = [Map("map", self.sorts[0], self.sorts[1], lambda i, _: 0)]
        places: list[Sort | None] = [None, *self.sorts]
        for n in range(d.number(1, 2)):
            self.variables.append(variable(f"machine{n}", self.table(f"table{n}"), sort=d.pick(places)))
        for n in range(d.number(2, 4)):
            hi = d.pick(HIGHEST)
            self.variables.append(
                variable(f"v{n}", Domain(hi), d.number(0, min(hi, 2)), sort=d.pick(places), world=n > 0 and d.chance(2))
            )

    def table(self, name: str) -> Table:
        """A machine in which every state can be reached. States without a way out are final."""
        d = self.d
        states = State(name.capitalize(), [f"S{n}" for n in range(d.number(2, 4))])
        members = list(states)
        events = [f"e{n}" for n in range(d.number(1, 3))]
        cells: dict[tuple[State, str], State | str] = {}
        for n in range(1, len(members)):
            free = [(s, e) for s in members[:n] for e in events if (s, e) not in cells]
            cells[d.pick(free)] = members[n]
        for key in [(s, e) for s in members for e in events if (s, e) not in cells]:
            kind = d.pick(["goto", "ignore", "impossible", "reject", "goto", "goto"])
            if kind != "impossible":
                cells[key] = d.pick(members) if kind == "goto" else kind
        for event in events:
            if not any(e == event for _, e in cells):
                cells[members[0], event] = members[0]
        rows = [_row(source, event, cell) for (source, event), cell in cells.items()]
        leads = {s for (s, _), cell in cells.items() if isinstance(cell, State) and cell is not s}
        return Table(name, states, members[0], rows, final=set(members) - leads)

    def refs(self, over: Over, *, world: bool, enums: bool) -> list[Expr]:
        """The variables that can be named where `over` is bound: the numbers, or the machines and other enums."""
        out = []
        for v in self.variables:
            if (v.world and not world) or (v.domain.enum is not None) != enums:
                continue
            if v.sort is None:
                out.append(v.ref)
            out += [getattr(v.sort.at(i), v.name) for i in over if v.sort is not None and i.args[0] is v.sort]
            for m in self.maps:
                out += [getattr(m.of(i), v.name) for i in over if v.sort is m.target and i.args[0] is m.source]
        return out

    # -- expressions --------------------------------------------------------------------------------------------
    def condition(self, over: Over, *, world: bool, primed: bool = False, depth: int = 2) -> Expr:
        """A boolean expression. primed: it may read next values."""
        d = self.d

        def inner() -> Expr:
            return self.condition(over, world=world, primed=primed, depth=depth - 1)

        match d.number(0, 9) if depth else 0:
            case 6:
                return inner() & inner()
            case 7:
                return inner() | inner()
            case 8:
                return ~inner()
            case 9:
                return ite(inner(), inner(), inner())
            case 5 if not over:
                index = d.pick(self.sorts).named("any")
                body = self.condition((index,), world=world, primed=primed, depth=depth - 1)
                return d.pick([every(index, body), some(index, body), count(index, body) <= d.number(0, 2)])
            case _:
                return self.atom(over, world=world, primed=primed)

    def atom(self, over: Over, *, world: bool, primed: bool) -> Expr:
        d = self.d
        enums, numbers = (self.refs(over, world=world, enums=e) for e in (True, False))
        kinds = [*["enum"] * (2 * bool(enums)), *["number"] * (2 * bool(numbers)), "fact"]
        kind = d.pick(kinds)
        if kind == "fact":
            return d.pick([self.params[1].expr == 1, self.params[0].expr > 1])
        left = d.pick(enums if kind == "enum" else numbers)
        domain = left.args[0].domain
        if primed and d.chance(2):
            left = left.next
        if kind == "enum":
            return self.equals(left)
        right = d.pick(numbers) if d.chance(4) else const(d.number(0, min(domain.hi.value, 3)))
        return d.pick([left == right, left < right, left <= right, left > right])

    def equals(self, ref: Expr) -> Expr:
        domain = ref.args[0].domain
        return ref == (self.d.pick(list(domain.enum)) if domain.enum else self.d.number(0, min(domain.hi.value, 3)))

    def value(self, target: Expr, over: Over, *, world: bool) -> Expr:
        """A new value of a variable: mostly in its range. A wide one always is, or the search would be long."""
        d = self.d
        hi = target.args[0].domain.hi.value
        top = min(hi, 3)
        match d.number(0, 7):
            case 0:
                return const(d.number(0, top))
            case 1 | 2:
                return ite(target < top, target + 1, 0)
            case 3:
                return ite(target > 0, target - 1, target)
            case 4:
                return ite(self.condition(over, world=world), d.number(0, top), target)
            case 5 if hi:
                return ite(self.condition(over, world=world), 1, 0)
            case 6 if hi <= 3:
                return d.pick(self.refs(over, world=world, enums=False)) + 0
            case 7 if hi <= 3:
                return d.pick([target + 1, target - 1])
            case _:
                return const(top)

    # -- rules --------------------------------------------------------------------------------------------------
    def updates(self, over: Over, taken: set[Var], *, world: bool) -> dict[Expr, Expr]:
        """Of own variables, or of the world's (which may read the world). `taken` is written already."""
        targets = [r for r in self.refs(over, world=True, enums=False) if r.args[0].world == world]
        out = {}
        for target in self.d.some(targets, 2):
            if target.args[0] not in taken:
                taken.add(target.args[0])
                out[target] = self.value(target, over, world=world)
        return out

    def fires(self, over: Over, taken: set[Var]) -> tuple[dict[Expr, str], Expr]:
        """Events, and a guard under which most of them are possible."""
        d = self.d
        out, guards = {}, []
        for machine in d.some(self.refs(over, world=False, enums=True), 2):
            var = machine.args[0]
            if var in taken or var.machine is None:
                continue
            taken.add(var)
            out[machine] = d.pick(var.machine.events)
            sources = [e.source for e in var.machine.entries.values() if e.event == out[machine]]
            if not d.chance(5):
                guards.append(any_of(*(machine == s for s in sources)))
        return out, all_of(*guards)

    def rule(self, number: int) -> Rule:
        d = self.d
        actor = d.pick([OURS, THEIRS, WATCHER, OURS])
        over = tuple(s.index for s in d.some(self.sorts, 2))
        if len(over) == 1 and d.chance(5):
            over = (*over, over[0].args[0].named("other"))
        taken: set[Var] = set()
        events, possible = ({}, TRUE) if actor is THEIRS else self.fires(over, taken)
        then = {} if actor is THEIRS else self.updates(over, taken, world=False)
        truth = self.updates(over, taken, world=True)
        each = [self.bulk(taken)] if actor is not THEIRS and d.chance(4) else []
        guard = self.guard(over)
        world = self.condition(over, world=True, depth=1) if actor is not OURS and d.chance(2) else TRUE
        name = f"{actor.name}.rule{number}"
        return Rule(
            name, actor, possible & guard, over=over, fires=events, then=then, truth=truth, each=each, world=world
        )

    def guard(self, over: Over) -> Expr:
        """In a guarded rulebook one that is seldom true; else any, often none."""
        if self.guarded:
            variables = [r for e in (True, False) for r in self.refs(over, world=False, enums=e)]
            about = self.d.some(variables, 2) or variables[:1]
            return all_of(*(self.equals(v) for v in about))
        return TRUE if self.d.chance(3) else self.condition(over, world=False, depth=1)

    def bulk(self, taken: set[Var]) -> Each:
        """Something that happens to every element of a sort, in variables of that sort only: a shared one, or a mapped
        one, would be written several times."""
        index = self.d.pick(self.sorts).named("each")
        own = _Author(self.d, self.params, self.sorts, [], [v for v in self.variables if v.sort is index.args[0]])
        events = {} if self.d.chance(2) else own.fires((index,), taken)[0]
        then = own.updates((index,), taken, world=False)
        return Each(index, fires=events, then=then, truth=own.updates((index,), taken, world=True))

    def calls(self) -> tuple[list[Effect], list[Rule]]:
        """Perhaps one effect: its call variable, the rule that begins it, and outcome rules for all its classes."""
        d = self.d
        if d.chance(2):
            return [], []
        sort = d.pick([None, *self.sorts])
        over = () if sort is None else (sort.index,)
        call = variable("call", Domain.of(Call), Call.Idle, sort=sort)
        returns = []
        for name, variant in d.pick(EFFECTS):
            when = self.condition(over, world=True) if d.chance(3) else TRUE
            returns.append(Return(name, when, self.updates(over, set(), world=True), variant=variant))
        effect = Effect("call", call.ref, Call.Busy, Call.Idle, returns, over=sort)
        begin = Rule("ours.begin", OURS, self.condition(over, world=False, depth=1), over=over, begins=effect)
        outcomes = [self.outcome(f"ours.outcome{n}", effect, name, over) for n, name in enumerate(effect.classes)]
        if d.chance(5):
            outcomes.append(self.outcome("ours.other_outcome", effect, effect.classes[0], over))
        self.variables.append(call)
        return [effect], [begin, *outcomes]

    def outcome(self, name: str, effect: Effect, observed: str, over: Over) -> Rule:
        taken = {v for v in self.variables if v.world}
        events, possible = self.fires(over, taken) if self.d.chance(3) else ({}, TRUE)
        then = self.updates(over, taken, world=False)
        guard = self.condition(over, world=False) if self.d.chance(2) else TRUE
        return Rule(name, OURS, possible & guard, over=over, fires=events, then=then, outcome=(effect, (observed,)))

    # -- properties ---------------------------------------------------------------------------------------------
    def properties(self, rules: list[Rule]) -> list[Property]:
        """Conditions are weakened by others, so that not nearly every property is broken at once."""
        d = self.d
        element = (self.sorts[0].index,)
        at = d.pick([(), element])

        def weak(over: Over, primed: bool = False) -> Expr:
            parts = [self.condition(over, world=True, primed=primed) for _ in range(d.number(2, 4))]
            return any_of(*parts)

        return [
            Invariant("invariant", "drawn", over=at, holds=weak(at)),
            Step("step", "drawn", on=d.pick(["*", "ours.*", rules[0].id]), holds=weak((), primed=True)),
            Step("step_each", "drawn", on=rules[-1].id, over=element, holds=weak(element, primed=True)),
            Sometimes("sometimes", "drawn", over=at, reached=self.condition(at, world=True)),
            LeadsTo("leads_to", "drawn", when=self.condition((), world=True), then=weak(())),
        ]


def _row(source: State, event: str, cell: State | str) -> Row | Ignore | Reject:
    if isinstance(cell, State):
        return Row(source, event, cell)
    return Ignore(source, event, "drawn") if cell == "ignore" else Reject(source, event, "Refused", "drawn")
