"""Transition tables: rows `source, event, target`, total over states and events.

Theory. A machine is a table. Each pair (state, event) has exactly one meaning:

- **goto**: a `Row`; the event moves the machine to the row's target; - **ignore**: an `Ignore` with its reason; the
event is taken and changes nothing; - **reject**: a `Reject` with a status; the whole joint rule that fires the event
is refused, nothing of it happens, and the caller gets the status; - **impossible**: everything else. The checker
proves that no rule fires such an event there; at run time it raises.

`Table(...)` validates itself and names every problem at once. A state without a way out must be named in `final`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import transitions
from attrs import Factory, field, frozen

from machines.expr import State

__all__ = ["Ignore", "Reject", "Row", "RulebookError", "Table"]


class RulebookError(ValueError):
    """A table or rulebook is wrong. `problems` lists every finding: what, where, and what is allowed."""

    def __init__(self, subject: str, problems: Iterable[str]) -> None:
        self.subject = subject
        self.problems = tuple(problems)
        super().__init__(f"{subject}: " + "; ".join(self.problems))


def as_tuple(values: Iterable[Any]) -> tuple[Any, ...]:
    """`tuple`, in a form that the type checker accepts as a converter."""
    return tuple(values)


def as_set(values: Iterable[Any]) -> frozenset[Any]:
    """`frozenset`, in a form that the type checker accepts as a converter."""
    return frozenset(values)


def _sources(value: State | Iterable[State]) -> tuple[State, ...]:
    return (value,) if isinstance(value, State) else tuple(value)


@frozen
class Row:
    """goto: in `source` (or each of several), `event` leads to `target`. cites: the specification's section."""

    source: tuple[State, ...] = field(converter=_sources)
    event: str
    target: State
    cites: str = ""


@frozen
class Ignore:
    """In `source`, `event` is taken and changes nothing, because `why`."""

    source: tuple[State, ...] = field(converter=_sources)
    event: str
    why: str


@frozen
class Reject:
    """In `source`, a rule that fires `event` is refused as a whole and the caller gets `status`, because `why`."""

    source: tuple[State, ...] = field(converter=_sources)
    event: str
    status: str
    why: str


@frozen
class Entry:
    """One cell of a table: what `event` does in `source`. kind: "goto", "ignore" or "reject"."""

    table: str
    source: State
    event: str
    kind: str
    target: State
    cites: str = ""
    why: str = ""
    status: str = ""

    @property
    def id(self) -> str:
        """Stable name, such as `job.Queued.submit`."""
        return f"{self.table}.{self.source.name}.{self.event}"


@frozen(eq=False)
class Table:
    """One machine.

    states: the enum; initial: where it starts; final: states in which it may rest for ever (also those without a way
    out); pseudo: states that are not the specification's but mean "there is no such thing" (drawn as a dot).
    Raises RulebookError, naming every problem, when the rows are not a well-formed machine.
    """

    name: str
    states: type[State]
    initial: State
    rows: tuple[Row | Ignore | Reject, ...] = field(converter=as_tuple)
    final: frozenset[State] = field(default=frozenset(), converter=as_set)
    pseudo: frozenset[State] = field(default=frozenset(), converter=as_set)
    cites: str = ""
    about: str = ""
    entries: Mapping[tuple[State, str], Entry] = field(init=False, default=Factory(dict))
    events: tuple[str, ...] = field(init=False, default=())

    def __attrs_post_init__(self) -> None:
        entries, problems = _expand(self)
        object.__setattr__(self, "entries", entries)
        object.__setattr__(self, "events", tuple(dict.fromkeys(e.event for e in entries.values())))
        problems += _shape_problems(self)
        if problems:
            raise RulebookError(f"table {self.name}", problems)

    def entry(self, source: State, event: str) -> Entry | None:
        """The cell, or None where the event is impossible."""
        return self.entries.get((source, event))

    def kind(self, source: State, event: str) -> str:
        """One of "goto", "ignore", "reject" and "impossible"."""
        entry = self.entries.get((source, event))
        return entry.kind if entry else "impossible"

    def gotos(self) -> list[Entry]:
        return [e for e in self.entries.values() if e.kind == "goto"]

    def machine(self) -> transitions.Machine:
        """The table as a `transitions.Machine`: for interop, for GraphMachine and as an oracle.

        goto is a transition, ignore an internal transition; reject and impossible both raise MachineError. The machine
        has no model: `machine.events[event].trigger(model)` moves any object that has a `state`, a state's name.
        """
        machine = transitions.Machine(**self.machine_arguments())
        for event in self.events:  # one that is only rejected has no transition, and must still be known
            machine.events.setdefault(event, transitions.Event(event, machine))
        return machine

    def machine_arguments(self) -> dict[str, Any]:
        """Keyword arguments that build this table as a `transitions` machine (also a GraphMachine)."""
        return {
            "model": None,
            "states": [s.name for s in self.states],
            "initial": self.initial.name,
            "auto_transitions": False,
            "transitions": [
                {
                    "trigger": e.event,
                    "source": e.source.name,
                    "dest": e.target.name if e.kind == "goto" else None,
                }
                for e in self.entries.values()
                if e.kind != "reject"
            ],
        }


def _expand(table: Table) -> tuple[dict[tuple[State, str], Entry], list[str]]:
    """One entry per source state; duplicates and foreign states are problems."""
    entries: dict[tuple[State, str], Entry] = {}
    problems: list[str] = []
    allowed = f"allowed are {', '.join(s.name for s in table.states)}"
    for row in table.rows:
        if not isinstance(row, Row | Ignore | Reject):
            problems.append(f"{row!r} is no row; allowed are Row, Ignore and Reject")
            continue
        target = row.target if isinstance(row, Row) else None
        named = [*row.source, *([target] if target is not None else [])]
        for state in named:
            if not isinstance(state, table.states):
                problems.append(f"row on {row.event!r} names unknown state {state!r}; {allowed}")
        if not row.event or not row.event.isidentifier():
            problems.append(f"row from {row.source} has event {row.event!r}, which is not a name")
        if not row.source:
            problems.append(f"row on {row.event!r} has no source state")
        if isinstance(row, Ignore | Reject) and not row.why:
            problems.append(f"{type(row).__name__} on {row.event!r} gives no reason")
        if any(not isinstance(s, table.states) for s in named):
            continue
        for source in row.source:
            entry = _entry(table.name, source, row)
            old = entries.get((source, row.event))
            if old is None:
                entries[source, row.event] = entry
            elif (old.kind, old.target) == (entry.kind, entry.target):
                problems.append(f"row {entry.id} is declared twice")
            else:
                problems.append(
                    f"row {entry.id} is nondeterministic: {old.kind} to {old.target.name} and "
                    f"{entry.kind} to {entry.target.name}"
                )
    return entries, problems


def _entry(table: str, source: State, row: Row | Ignore | Reject) -> Entry:
    if isinstance(row, Row):
        return Entry(table, source, row.event, "goto", row.target, cites=row.cites)
    if isinstance(row, Ignore):
        return Entry(table, source, row.event, "ignore", source, why=row.why)
    return Entry(table, source, row.event, "reject", source, why=row.why, status=row.status)


def _shape_problems(table: Table) -> list[str]:
    """Unreachable states, dead rows, trap states."""
    problems: list[str] = []
    for name, members in (("initial", {table.initial}), ("final", table.final), ("pseudo", table.pseudo)):
        for state in members:
            if not isinstance(state, table.states):
                problems.append(f"{name} state {state!r} is not one of {table.states.__name__}")
    moves: dict[State, set[State]] = {s: set() for s in table.states}
    for e in table.entries.values():
        if e.kind == "goto":
            moves[e.source].add(e.target)
    reached, frontier = {table.initial}, [table.initial]
    while frontier:
        for nxt in moves.get(frontier.pop(), ()):
            if nxt not in reached:
                reached.add(nxt)
                frontier.append(nxt)
    for state in table.states:
        if state not in reached:
            problems.append(f"state {state.name} is unreachable from {table.initial.name}")
            problems.extend(
                f"row {e.id} is dead: its source is unreachable" for e in table.entries.values() if e.source is state
            )
        elif not moves[state] - {state} and state not in table.final:
            problems.append(f"state {state.name} is a trap: no row leads out of it; add a row or name it in final=")
    return problems
