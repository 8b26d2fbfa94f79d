"""Which rows and rules never fired: a rulebook with a part that cannot happen has not been proved, only not tried.

Rows are the cells of the tables (goto, ignore and reject). They are counted over all runs that are expected PROVED
together, because a row or rule may belong to one policy only. What is declared unreachable (`Rule.unreachable`,
`Rulebook.unfired`) is excused, and must then really never fire: a stale excuse is a failure too.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve, frozen

from checker.model import Model
from checker.result import Exploration
from machines.rulebook import Rulebook


@frozen
class Part:
    """Coverage of one kind of thing ("rule" or "row"), by id. excused: declared unreachable, id -> reason."""

    kind: str
    fired: frozenset[str]
    all: tuple[str, ...]
    excused: dict[str, str]

    @property
    def missing(self) -> list[str]:
        return [i for i in self.all if i not in self.fired and i not in self.excused]

    @property
    def stale(self) -> list[str]:
        """Declared unreachable, and yet fired."""
        return [i for i in self.all if i in self.fired and i in self.excused]

    def without_stale(self) -> Part:
        return evolve(self, excused={i: why for i, why in self.excused.items() if i not in self.fired})

    def __str__(self) -> str:
        fired = sum(i in self.fired for i in self.all)
        quiet = sum(i in self.excused and i not in self.fired for i in self.all)
        return f"{fired} of {len(self.all)} {self.kind}s" + (f" ({quiet} declared unreachable)" if quiet else "")


@frozen
class Coverage:
    """judged: False when no verdict is possible (part of a campaign, a run that did not end); `why` says so."""

    rules: Part
    rows: Part
    judged: bool
    why: str = ""

    @property
    def problems(self) -> list[str]:
        out = []
        for part in (self.rules, self.rows):
            out += [f"{part.kind} {i} never fired" for i in part.missing]
            out += [f"{part.kind} {i} fired, but is declared unreachable ({part.excused[i]})" for i in part.stale]
        return out

    @property
    def ok(self) -> bool:
        return self.judged and not self.problems


def fired_rules(model: Model, exploration: Exploration) -> set[str]:
    return {i.rule.id for i, n in zip(model.instances, exploration.fired, strict=True) if n}


def of_campaign(book: Rulebook, runs: Iterable[tuple[Model, Exploration]], why_not: str = "") -> Coverage:
    """Coverage of everything that the rulebook declares, over the given runs together."""
    rows = tuple(e.id for t in book.tables for e in t.entries.values())
    return _coverage(book, tuple(r.id for r in book.rules), rows, list(runs), why_not)


def of_scope(model: Model, exploration: Exploration, why_not: str) -> Coverage:
    """Coverage of what exists in one scope: rules with an instance, rows of events that these fire. An excuse is about
    the campaign, so here it cannot be stale."""
    present = {i.rule.id for i in model.instances}
    reachable = {c for i in model.instances for s in i.steps for c in s.cells if c >= 0}
    rules = tuple(r.id for r in model.rulebook.rules if r.id in present)
    rows = tuple(model.cells[c] for c in sorted(reachable))
    found = _coverage(model.rulebook, rules, rows, [(model, exploration)], why_not)
    return evolve(found, rules=found.rules.without_stale(), rows=found.rows.without_stale())


def _coverage(
    book: Rulebook, rules: tuple[str, ...], rows: tuple[str, ...], runs: list[tuple[Model, Exploration]], why_not: str
) -> Coverage:
    fired = frozenset[str]().union(*(fired_rules(m, e) for m, e in runs))
    cells = frozenset[str]().union(*(e.cells for _, e in runs))
    return Coverage(
        Part("rule", fired, rules, {r.id: r.unreachable for r in book.rules if r.unreachable}),
        Part("row", cells, rows, dict(book.unfired)),
        judged=not why_not,
        why=why_not,
    )
