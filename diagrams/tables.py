"""One transition table as a picture.

States are nodes; the rows between two states share one edge, one line per event with its §. What a state ignores or
rejects changes nothing, so it is small print below the picture, with its reason.
"""

from __future__ import annotations

from diagrams.picture import Cell, Edge, Line, Link, Node, Note, Picture, Role, Tone
from machines.expr import State
from machines.table import Entry, Table

__all__ = ["TROUBLE", "table_picture"]

TROUBLE = frozenset({"Failed", "Quarantined", "Unknown", "Lost", "Rejected", "Error"})
"""Names that mean trouble in every table of this project. A table does not say it; the specification's names do."""


def table_picture(table: Table, *, name: str = "") -> Picture:
    """The picture of a table; `name` is its file name (default `table-` and the table's name)."""
    between: dict[tuple[State, State], list[Entry]] = {}
    for entry in table.gotos():
        between.setdefault((entry.source, entry.target), []).append(entry)
    return Picture(
        name=name or f"table-{table.name}",
        title=f"{table.name}  {table.cites}".strip(),
        subtitle=table.about,
        nodes=tuple(_state(table, s) for s in table.states),
        edges=tuple(_edge(table, *ends, entries) for ends, entries in between.items()),
        notes=_notes(table),
    )


def _state(table: Table, state: State) -> Node:
    roles = roles_of(table, state)
    text = [Line(state.name, Tone.HEAD)]
    if Role.DEAD_END in roles:
        text.append(Line("dead end", Tone.QUIET))
    return Node(state.name, ((Cell(text),),), roles, hint=f"{table.name}.{state.name}")


def _edge(table: Table, source: State, target: State, entries: list[Entry]) -> Edge:
    """All rows from one state to another. The usual way is declared in order, so its edges lead to the next member."""
    roles = roles_of(table, target)
    link = Link.TO_NOTHING if Role.PSEUDO in roles else Link.TO_TROUBLE if Role.TROUBLE in roles else Link.GOTO
    text = tuple(Line(e.event, quiet=e.cites) for e in entries)
    return Edge(source.name, target.name, link, text, spine=target.code == source.code + 1)


def roles_of(table: Table, state: State) -> tuple[Role, ...]:
    """The roles of a state, from the plain to the specific; a pseudo state is nothing else."""
    if state in table.pseudo:
        return (Role.PSEUDO,)
    roles = [Role.STATE]
    if state is table.initial:
        roles.append(Role.INITIAL)
    if state in table.final:
        roles.append(Role.REST)
    if state.name in TROUBLE:
        roles.append(Role.TROUBLE)
    if not any(e.source is state and e.target is not state for e in table.gotos()):
        roles.append(Role.DEAD_END)
    return tuple(roles)


def _notes(table: Table) -> tuple[Note, ...]:
    """What is ignored or rejected, grouped by event and reason."""
    notes = []
    for kind in ("ignore", "reject"):
        grouped: dict[tuple[str, str, str], list[str]] = {}
        for e in table.entries.values():
            if e.kind == kind:
                grouped.setdefault((e.event, e.status, e.why), []).append(e.source.name)
        text = tuple(
            f"{event} in {', '.join(sources)}{f' with {status}' if status else ''}: {why}"
            for (event, status, why), sources in grouped.items()
        )
        if text:
            notes.append(Note("Ignored (taken, changes nothing)" if kind == "ignore" else "Rejected", text))
    return tuple(notes)
