"""What a refused step could have been instead: which rules were enabled, and what kept the nearest others away.

Theory. A guard is a conjunction, and so is what its rows ask of the machines; the fewer of its parts fail, the nearer a
rule is. Each part that fails is shown with the values that it read: that is where the line, or the line before it, must
be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from checker.conform.form import wrong_element
from machines.books import NOBODY, Key, key_of
from machines.expr import Expr, Var
from machines.history import Course
from machines.law import Law, Lawful

__all__ = ["Near", "Part", "nearest", "variables"]

SHOWN = 6  # rules


@frozen
class Part:
    """A part of a guard that does not hold, with what it read."""

    text: str
    values: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.text}   where {', '.join(f'{k} is {v}' for k, v in self.values.items())}"


@frozen
class Near:
    """A rule and what keeps it from firing; nothing: it is enabled."""

    rule: str
    failing: tuple[Part, ...]


def nearest(course: Course, record: Mapping[str, Any]) -> tuple[Part, ...] | None:
    """What kept the rule of the record away itself; None where it is no rule or was not kept away by its guard."""
    lawful = course.law.rules.get(record.get("rule") or "")
    key = key_of(record.get("element"))
    if lawful is None or wrong_element(lawful.sort, key):
        return None
    return tuple(_failing(course, lawful, key)) or None


def permitted(course: Course, record: Mapping[str, Any], shown: int = SHOWN) -> list[Near]:
    """The rules about the record's element, nearest first: all that are enabled, and then the nearest others."""
    key = key_of(record.get("element"))
    sort = next((s for s, of in course.books.elements.items() if key in of), "") if key is not None else ""
    if sort == "" and key is not None:
        sort = "job" if isinstance(key, tuple) else "seq"
    near = [
        Near(lawful.rule.id, tuple(_failing(course, lawful, key if sort else None)))
        for lawful in course.law.rules.values()
        if lawful.sort == sort and lawful.rule.fires
    ]
    near.sort(key=lambda n: len(n.failing))
    enabled = sum(not n.failing for n in near)
    return near[: max(enabled, shown)]


def _failing(course: Course, lawful: Lawful, key: Key | None) -> Iterator[Part]:
    """Parts of the guard that do not hold, then rows that there are not."""
    law, names = course.law, {index.args: "e" for index in lawful.rule.over}
    books = course.books.copy()
    if lawful.sort:
        law.element(books, lawful.sort, key)  # type: ignore[arg-type]
    owners = (*law.owners(books, lawful, key), NOBODY)
    for part in lawful.rule.full_guard.conjuncts():
        if not law.compiled(part, names)(*owners):
            yield Part(str(part), _values(law, part, names, owners))
    for (target, event), row in zip(lawful.rule.fires, lawful.rows, strict=True):
        state = owners[row.place[0]][row.place[1]]
        if row.targets[state] < 0:
            yield Part(f"{event!r} is possible for {row.table.name}", _values(law, target, names, owners))


def _values(law: Law, part: Expr, names: Mapping[Any, str], owners: tuple[Any, ...]) -> dict[str, str]:
    """Each variable and parameter that it reads."""
    found: dict[str, str] = {}
    for node in part.walk():
        if node.op == "ref":
            found[str(node)] = node.args[0].show(law.compiled(node, names)(*owners))
        elif node.op == "param":
            found[node.args[0].name] = node.args[0].show(law.values[node.args[0].name])
    return found


def variables(course: Course, record: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What the step is about: its element, what that is linked to, and the shared variables; states by their names."""
    law, key = course.law, key_of(record.get("element"))
    found: dict[str, dict[str, str]] = {}
    for sort, elements in course.books.elements.items():
        if key in elements:
            found[f"{sort} {_shown(key)}"] = _named(law.variables[sort], elements[key])
            if linked := law.link(sort, key):
                found[f"{linked[0]} {_shown(linked[1])}"] = _named(
                    law.variables[linked[0]], course.books.elements[linked[0]][linked[1]]
                )
            break
    found["shared"] = _named(law.variables[""], course.books.shared)
    return found


def _named(variables: list[Var], record: list[int]) -> dict[str, str]:
    return {v.name: v.show(value) for v, value in zip(variables, record, strict=True)}


def _shown(key: Key) -> str:
    return ",".join(map(str, key)) if isinstance(key, tuple) else str(key)
