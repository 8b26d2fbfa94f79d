"""A rulebook's rules over books with any number of elements: is this step allowed, and what follows from it?

Theory. A rule that is said to have been fired is fired once more: its guard must hold, its machines must have rows, its
values stay in their ranges. It is written from `expr` and `ground` alone and shares nothing with the compiler that the
executor runs, so that one can be held against the other. Every new value is read from the state before; what is refused
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from machines.books import NOBODY, Bookkeeping, Books, Key, Record, constant
from machines.expr import Expr, Var, const
from machines.ground import fold
from machines.printing import to_python
from machines.rulebook import Each, Rule, Rulebook
from machines.table import Table

__all__ = ["Law", "Lawful", "Refusal"]

OWNERS = ("s", "e", "l", "o")  # shared, the rule's element, what that is linked to, each element of a sort


@frozen
class Refusal:
    """Why a step is not allowed. kind: "rule", "guard", "row", "range", "observed", or what a reader adds."""

    kind: str
    text: str

    def __str__(self) -> str:
        return self.text


Place = tuple[int, int]
"""(owner, position): which of OWNERS, and which of its variables."""
Value = Callable[[Record, Record, Record, Record], int]


@frozen(eq=False)
class _Row:
    place: Place
    table: Table
    event: str
    targets: tuple[int, ...]  # by state; -1: none


@frozen(eq=False)
class _Update:
    place: Place
    var: Var
    high: int
    value: Value


@frozen(eq=False)
class Lawful:
    """One rule. sort: what it is about, or "". parts: what happens for each element of a sort."""

    rule: Rule
    sort: str
    guard: Value
    rows: tuple[_Row, ...]
    updates: tuple[_Update, ...]
    parts: tuple[tuple[str, tuple[_Row, ...], tuple[_Update, ...]], ...]

    def takes(self, observed: str) -> bool:
        return observed in self.rule.outcome[1] if self.rule.outcome else observed == ""


class Law(Bookkeeping):
    """A rulebook under parameters; besides: rules besides its own, on which somebody waits and that change nothing."""

    def __init__(self, book: Rulebook, values: Mapping[str, int], besides: Iterable[Rule] = ()) -> None:
        super().__init__(book, values)
        rules = (*(r for r in book.rules if not _of_the_world(r)), *besides)
        self.rules = {r.id: self._lawful(r) for r in rules}

    # -- steps ---------------------------------------------------------------------------------------------------------
    def owners(self, books: Books, lawful: Lawful, key: Key | None) -> tuple[Record, Record, Record]:
        """Shared record, the element's, and that of what it is linked to. The element must be there."""
        if not lawful.sort or key is None:
            return books.shared, NOBODY, NOBODY
        linked = self.link(lawful.sort, key)
        own = books.elements[lawful.sort][key]
        return books.shared, own, books.elements[linked[0]][linked[1]] if linked else NOBODY

    def enabled(self, books: Books, lawful: Lawful, key: Key | None) -> bool:
        """Whether `fire` would take the step. Nothing is changed."""
        if lawful.sort:
            self.element(books, lawful.sort, key)  # type: ignore[arg-type]
        s, e, linked = self.owners(books, lawful, key)
        may = bool(lawful.guard(s, e, linked, NOBODY))
        may = may and not isinstance(self._writes(books, lawful, (s, e, linked)), Refusal)
        if lawful.sort:
            self.leave(books, lawful.sort, key)  # type: ignore[arg-type]
        return may

    def fire(self, books: Books, lawful: Lawful, key: Key | None) -> Refusal | None:
        """Take the step. What is refused changes nothing."""
        if lawful.sort:
            self.element(books, lawful.sort, key)  # type: ignore[arg-type]
        s, e, linked = self.owners(books, lawful, key)
        if not lawful.guard(s, e, linked, NOBODY):
            return Refusal("guard", f"its guard does not hold: {lawful.rule.full_guard}")
        writes = self._writes(books, lawful, (s, e, linked))
        if isinstance(writes, Refusal):
            return writes
        for record, position, value in writes:
            record[position] = value
        if lawful.sort:
            self.leave(books, lawful.sort, key)  # type: ignore[arg-type]
        return None

    def _writes(
        self, books: Books, lawful: Lawful, owners: tuple[Record, Record, Record]
    ) -> list[tuple[Record, int, int]] | Refusal:
        found: list[tuple[Record, int, int]] = []
        wrong = _collect(found, lawful.rows, lawful.updates, (*owners, NOBODY))
        for sort, rows, updates in lawful.parts:
            for other in books.elements[sort].values():
                wrong = wrong or _collect(found, rows, updates, (*owners, other))
        return wrong or found

    # -- rules ---------------------------------------------------------------------------------------------------------
    def _lawful(self, rule: Rule) -> Lawful:
        names = {index.args: "e" for index in rule.over}
        parts = tuple(self._part(part, {**names, part.index.args: "o"}) for part in rule.each)
        return Lawful(
            rule,
            rule.over[0].args[0].name if rule.over else "",
            self.compiled(rule.full_guard, names),
            tuple(self._row(target, event, names) for target, event in rule.fires),
            tuple(self._update(t, value, names) for t, value in rule.full_then if not t.args[0].world),
            tuple(part for part in parts if part[1] or part[2]),
        )

    def _part(self, part: Each, names: Names) -> tuple[str, tuple[_Row, ...], tuple[_Update, ...]]:
        updates = tuple(self._update(t, value, names) for t, value in part.then if not t.args[0].world)
        return part.index.args[0].name, tuple(self._row(t, event, names) for t, event in part.fires), updates

    def _place(self, target: Expr, names: Names) -> Place:
        var, index, _ = target.args
        of = "s" if index is None else _owner(index, names)
        return OWNERS.index(of), self.variables[var.sort.name if var.sort else ""].index(var)

    def _row(self, target: Expr, event: str, names: Names) -> _Row:
        table: Table = target.args[0].machine
        entries = [table.entry(state, event) for state in table.states]
        targets = tuple(-1 if e is None or e.kind == "reject" else e.target.code for e in entries)
        return _Row(self._place(target, names), table, event, targets)

    def _update(self, target: Expr, value: Expr, names: Names) -> _Update:
        var: Var = target.args[0]
        high = constant(var.domain.hi, self.values)
        return _Update(self._place(target, names), var, high, self.compiled(value, names))

    def compiled(self, x: Expr, names: Names) -> Value:
        """An expression as a function of the owners' records."""
        text = to_python(self.placed(x, names), lambda name, _: str(name))
        made: Value = eval(f"lambda s, e, l, o: {text}")
        return made

    def placed(self, x: Expr, names: Names) -> Expr:
        """With parameters folded in, and each variable as its place in its owner's record."""
        match x.op:
            case "const" | "slot":
                return x
            case "param":
                return const(self.values[x.args[0].name])
            case "index":
                return Expr("slot", (f"id({names[x.args]})", False))
            case "ref":
                owner, position = self._place(x, names)
                return Expr("slot", (f"{OWNERS[owner]}[{position}]", False))
            case "count" | "every" | "some" | "map":
                raise ValueError(f"({x}): a rule reads its own, its linked and shared variables only")
            case _:
                return fold(x.op, [self.placed(a, names) for a in x.args])


Names = Mapping[tuple[Any, ...], str]
"""From an index (its arguments) to whose record it means."""


def _of_the_world(rule: Rule) -> bool:
    """A step of the device that changes nothing of ours."""
    return rule.actor.environment and not (rule.fires or rule.then or rule.begins or rule.outcome)


def _owner(index: Expr, names: Names) -> str:
    return "l" if index.op == "map" else names[index.args]


def _collect(
    found: list[tuple[Record, int, int]], rows: Sequence[_Row], updates: Iterable[_Update], owners: Sequence[Record]
) -> Refusal | None:
    """What rows and updates write, all read from the state before."""
    for row in rows:
        owner, position = row.place
        state = owners[owner][position]
        if (target := row.targets[state]) < 0:
            name = list(row.table.states)[state].name
            return Refusal("row", f"{row.table.name} is {name}, where {row.event} is not possible")
        found.append((owners[owner], position, target))
    for update in updates:
        value = int(update.value(*owners))
        if not 0 <= value <= update.high:
            return Refusal("range", f"{update.var.path} would be {value}; allowed are 0 to {update.high}")
        found.append((owners[update.place[0]], update.place[1], value))
    return None
