"""The joint protocol: who fires what.

One overview (a matrix: actor by machine, the events it fires there, the calls it begins) and, per actor, pages that fit
a screen. On a page every rule is a small table (guard, call, events, updates) with edges to the machine events that it
fires and the calls that it begins or ends; the machines show the rows that those events may take.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator

from diagrams.picture import Cell, Edge, Line, Link, Node, Note, Picture, Role, Tone
from diagrams.text import packed, wrapped_expression
from machines.expr import Expr
from machines.rulebook import Actor, Each, Effect, Rule, Rulebook
from machines.table import Table

__all__ = ["joint_pictures"]

CALLS = "calls"
PAGE_LINES = 34  # of rule text; what one screen shows
TEXT_COLUMNS = 72  # characters of rule text in a line
NAME_WIDTH, TEXT_WIDTH = 34, 350  # points; all rules are equally wide
EVENT_COLUMNS = 44
CELL_COLUMNS = 20


def joint_pictures(book: Rulebook) -> tuple[Picture, ...]:
    """The overview first, then every actor's pages in the order of the rulebook."""
    return (_overview(book), *(page for actor in book.actors for page in _pages(book, actor)))


# -- the overview -------------------------------------------------------------------------------------------------
def _overview(book: Rulebook) -> Picture:
    head = [Cell([Line("actor", Tone.QUIET)]), *(_column_head(t) for t in book.tables)]
    if book.effects:
        head.append(Cell([Line("calls begun", Tone.HEAD)]))
    rows = [tuple(head), *(_overview_row(book, actor) for actor in book.actors)]
    return Picture(
        name="joint",
        title=f"{book.name}: who fires what",
        subtitle=f"{len(book.rules)} rules. A row is an actor, a column a machine, a cell the events it fires there.",
        nodes=(Node("matrix", tuple(rows), (Role.MATRIX,)),),
    )


def _column_head(table: Table) -> Cell:
    return Cell([Line(table.name, Tone.HEAD, quiet=table.cites)], href=f"table-{table.name}.svg")


def _overview_row(book: Rulebook, actor: Actor) -> tuple[Cell, ...]:
    rules = rules_of(book, actor)
    name = Cell(
        [Line(actor.name, Tone.HEAD, quiet=f"{len(rules)} rule{'s' * (len(rules) != 1)}")],
        actor_role(actor),
        href=f"{page_name(actor, 1, _page_count(rules))}.svg" if rules else "",
    )
    events = [[e for e in t.events if any((t, e) in fired_events(r) for r in rules)] for t in book.tables]
    cells = [name, *(_matrix_cell(names) for names in events)]
    if book.effects:
        cells.append(_matrix_cell([r.begins.name for r in rules if r.begins]))
    return tuple(cells)


def _matrix_cell(names: list[str]) -> Cell:
    return Cell(_packed(names, CELL_COLUMNS) or [Line("")])


# -- an actor's pages ---------------------------------------------------------------------------------------------
def _pages(book: Rulebook, actor: Actor) -> Iterator[Picture]:
    pages = _split(rules_of(book, actor))
    for number, rules in enumerate(pages, 1):
        yield _page(book, actor, rules, number, len(pages))


def _split(rules: list[Rule]) -> list[list[Rule]]:
    """As few pages as fit a screen, in the order of the rulebook, and those as equally full as can be."""
    heights = [_height(r) for r in rules]
    wanted = math.ceil(sum(heights) / PAGE_LINES)
    room = max(heights, default=0)
    while len(pages := _fill(rules, heights, room)) > wanted:
        room += 1
    return pages


def _fill(rules: list[Rule], heights: list[int], room: int) -> list[list[Rule]]:
    pages: list[list[Rule]] = []
    filled = room
    for rule, height in zip(rules, heights, strict=True):
        if filled + height > room:
            pages.append([])
            filled = 0
        pages[-1].append(rule)
        filled += height
    return pages


def _page_count(rules: list[Rule]) -> int:
    return len(_split(rules))


def _height(rule: Rule) -> int:
    """Lines of text that the rule's node has, and one of distance."""
    return 1 + sum(max(len(cell.text) for cell in row) for row in rule_rows(rule))


def page_name(actor: Actor, number: int, total: int) -> str:
    return f"joint-{actor.name}" + (f"-{number}" if total > 1 else "")


def _page(book: Rulebook, actor: Actor, rules: list[Rule], number: int, total: int) -> Picture:
    fired = [f for r in rules for f in fired_events(r)]
    machines = [(t, [e for e in t.events if (t, e) in fired]) for t in book.tables]
    called = [e for e in book.effects if any(e in effects_of(r) for r in rules)]
    return Picture(
        name=page_name(actor, number, total),
        title=f"{actor.name}: what it fires" + (f" ({number} of {total})" if total > 1 else ""),
        subtitle=actor.about,
        nodes=(
            *(Node(r.id, rule_rows(r), (Role.RULE,), hint=r.about) for r in rules),
            *(_machine(t, events) for t, events in machines if events),
            *([_calls(called)] if called else []),
        ),
        edges=tuple(edge for number, r in enumerate(rules) for edge in _edges(r, number)),
        notes=_notes(rules),
        stack=tuple(r.id for r in rules),
        down=False,
    )


PARTS = {
    "call": "the call that the step begins, or whose return it takes",
    "when": "guard over our bookkeeping",
    "world": "what must be true of the world, which only the checker knows",
    "fires": "events of machines",
    "then": "our bookkeeping after it",
    "truth": "the world after it (checker only)",
    "each": "what happens for every element at once",
}
"""The parts of a rule, in the order in which they are drawn, with what a reader must know."""


def _notes(rules: list[Rule]) -> tuple[Note, ...]:
    shown = {cell.port for r in rules for row in rule_rows(r) for cell in row}
    return (Note("", ("; ".join(f"{name}: {says}" for name, says in PARTS.items() if name in shown),)),)


def rule_rows(rule: Rule) -> tuple[tuple[Cell, ...], ...]:
    """A rule as a table: its name and §, then one row per part that it has."""
    about = "  ".join(part for part in (rule.cites, _over(rule)) if part)
    head = Cell([Line(rule.id, Tone.HEAD, quiet=about)], actor_role(rule.actor), span=2)
    parts = {
        "call": _packed(_call(rule), TEXT_COLUMNS),
        "when": _condition(rule.guard),
        "world": _condition(rule.world),
        "fires": _packed((_event_name(t, e) for t, e in rule.fires), TEXT_COLUMNS),
        "then": _updates(rule.then),
        "truth": _updates(rule.truth),
        "each": [line for each in rule.each for line in _each(each)],
    }
    return ((head,), *(_part(name, parts[name]) for name in PARTS if parts[name]))


def _each(each: Each) -> list[Line]:
    events = [_event_name(t, e) for t, e in each.fires]
    updates = [f"{t} := {v}" for t, v in (*each.then, *each.truth)]
    return _packed([f"for every {_index(each.index)}:", *events, *updates], TEXT_COLUMNS)


def _part(name: str, text: list[Line]) -> tuple[Cell, ...]:
    return (Cell([Line(name, Tone.QUIET)], width=NAME_WIDTH), Cell(text, width=TEXT_WIDTH, port=name))


def _over(rule: Rule) -> str:
    """`for every job`, and `for every job, seq other` when it is about two."""
    return f"for every {', '.join(map(_index, rule.over))}" if rule.over else ""


def _index(index: Expr) -> str:
    """`job`; `job other` for an index that is not the sort's own."""
    sort = index.args[0].name
    return str(sort) if str(index) == sort else f"{sort} {index}"


def _call(rule: Rule) -> list[str]:
    ended = [f"{rule.outcome[0].name} returned {' or '.join(rule.outcome[1])}"] if rule.outcome else []
    return ended + ([f"begins {rule.begins.name}"] if rule.begins else [])


def _condition(guard: Expr) -> list[Line]:
    return [Line(t) for t in wrapped_expression(str(guard), TEXT_COLUMNS)] if guard.conjuncts() else []


def _updates(pairs: Iterable[tuple[Expr, Expr]]) -> list[Line]:
    return _packed((f"{target} := {value}" for target, value in pairs), TEXT_COLUMNS)


def _event_name(target: Expr, event: str) -> str:
    return f"{target.args[0].machine.name}.{event}"


def _edges(rule: Rule, shade: int) -> Iterator[Edge]:
    for out, fires in (("fires", rule.fires), ("each", [f for e in rule.each for f in e.fires])):
        for target, event in fires:
            yield Edge(rule.id, _machine_id(target.args[0].machine), Link.FIRES, out=out, into=event, shade=shade)
    if rule.begins:
        yield Edge(rule.id, CALLS, Link.BEGINS, out="call", into=rule.begins.name)
    if rule.outcome:
        yield Edge(rule.id, CALLS, Link.ENDS, out="call", into=rule.outcome[0].name)


def _machine(table: Table, events: list[str]) -> Node:
    """A machine with those of its events that are fired on this page."""
    head = Cell([Line(table.name, Tone.HEAD, quiet=table.cites)], Role.MACHINE)
    return Node(_machine_id(table), ((head,), *((_event(table, e),) for e in events)), (Role.LIST,), hint=table.about)


def _event(table: Table, event: str) -> Cell:
    """An event with the rows it may take, grouped by target, then where it is ignored and rejected."""
    moves: dict[str, list[str]] = {}
    for e in table.entries.values():
        if e.event == event:
            meaning = f"{{}} -> {e.target.name}" if e.kind == "goto" else f"{e.kind.removesuffix('e')}ed in {{}}"
            moves.setdefault(meaning, []).append(e.source.name)
    rows = [meaning.format(", ".join(sources)) for meaning, sources in moves.items()]
    return Cell([Line(event), *_quiet(rows)], port=event)


def _calls(effects: list[Effect]) -> Node:
    rows = [(Cell([Line("calls", Tone.HEAD)], Role.EFFECT),)]
    for e in effects:
        rows.append((Cell([Line(e.name, quiet=e.cites), *_quiet([f"returns {', '.join(e.classes)}"])], port=e.name),))
    return Node(CALLS, tuple(rows), (Role.LIST,))


def _quiet(texts: Iterable[str]) -> list[Line]:
    return [Line(t, Tone.QUIET) for text in texts for t in textwrap.wrap(text, EVENT_COLUMNS, subsequent_indent="   ")]


# -- reading rules ------------------------------------------------------------------------------------------------
def rules_of(book: Rulebook, actor: Actor) -> list[Rule]:
    return [r for r in book.rules if r.actor is actor]


def fires_of(rule: Rule) -> list[tuple[Expr, str]]:
    """Every event that the rule fires, also those for every element of a sort."""
    return [*rule.fires, *(f for e in rule.each for f in e.fires)]


def fired_events(rule: Rule) -> list[tuple[Table, str]]:
    """The same as pairs of a machine and an event, each once."""
    return list(dict.fromkeys((target.args[0].machine, event) for target, event in fires_of(rule)))


def effects_of(rule: Rule) -> list[Effect]:
    return [e for e in (rule.begins, rule.outcome[0] if rule.outcome else None) if e is not None]


def actor_role(actor: Actor) -> Role:
    return Role.ENVIRONMENT if actor.environment else Role.OBSERVER if actor.observes else Role.OURS


def _machine_id(table: Table) -> str:
    return f"machine {table.name}"


def _packed(parts: Iterable[str], columns: int) -> list[Line]:
    return [Line(t) for t in packed(parts, columns)]
