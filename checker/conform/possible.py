"""All steps that a line with fields missing may stand for, and where each leads.

Theory. A field that is not there may have been anything that the rulebook allows. So from each state in which the run
may be, each rule that fits what the line does say is tried about each element that fits; what is allowed leads to a
state in which the run may be next. Equal states are one. An element that is new has no name; it keeps a made-up one
until a line names an element that is not known: then it may be that one, or be another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import frozen

from machines.books import Books, Key, Record, key_of
from machines.history import Course
from machines.law import Law, Lawful, Refusal

__all__ = ["Said", "Taken", "TooMany", "possible"]

UNNAMED = "?"


class TooMany(Exception):
    """There are more possible states than were allowed."""


@frozen
class Said:
    """What a line says of its step; None: nothing. key None: of an element nothing, or there is none."""

    rule: str | None
    key: Key | None
    number: int | None
    at_us: int | None
    generation: int | None
    observed: str | None

    @staticmethod
    def by(record: dict[str, Any]) -> Said:
        return Said(
            record.get("rule"), key_of(record.get("element")), record.get("number"), record.get("at_us"),
            record.get("generation"), record.get("observed"),
        )  # fmt: skip

    @property
    def whole(self) -> bool:
        """Whether it names one step."""
        return self.rule is not None


@frozen
class Taken:
    """A step that may have been taken, and where it led."""

    course: Course
    lawful: Lawful
    key: Key | None


Steps = set[tuple[str, Key | None]]


def possible(courses: list[Course], said: Said, limit: int) -> tuple[list[Taken], Steps, Refusal | None]:
    """The different states that it may have led to, each with a step; all steps, as rules and elements; where there is
    none, why not the first one that was tried. Raises TooMany."""
    found: dict[Any, Taken] = {}
    steps: Steps = set()
    refusal: Refusal | None = None
    for course in courses:
        for lawful in _rules(course.law, said):
            for start, key in _elements(course, lawful, said):
                if said.rule is None and not course.law.enabled(start.books, lawful, key):
                    continue
                after = start.copy()
                wrong = after.step(lawful.rule.id, key, said.number, said.at_us, said.generation, said.observed)
                refusal = refusal or wrong
                if wrong is None:
                    steps.add((lawful.rule.id, key))
                    found.setdefault((after.books.frozen(), after.generation), Taken(after, lawful, key))
                if len(found) > limit:
                    raise TooMany
    if not found and said.rule is not None and said.rule not in courses[0].law.rules:
        refusal = Refusal("rule", "the rulebook has no such rule")
    return list(found.values()), steps, refusal


def _rules(law: Law, said: Said) -> Iterator[Lawful]:
    for lawful in law.rules.values():
        if said.rule in (None, lawful.rule.id) and (said.observed is None or lawful.takes(said.observed)):
            yield lawful


def _elements(course: Course, lawful: Lawful, said: Said) -> Iterator[tuple[Course, Key | None]]:
    """Each element that it may be about, with the course in which that is its name."""
    if not lawful.sort:
        if said.key is None:
            yield course, None
    elif said.key is None:
        yield from ((course, key) for key in (*course.books.elements[lawful.sort], *_new(course, lawful.sort)))
    elif isinstance(said.key, tuple) == (course.law.link(lawful.sort, (0, 0)) is not None):
        yield from _named(course, lawful.sort, said.key)


def _new(course: Course, sort: str) -> Iterator[Key]:
    """An element that nobody has named; of a job there is one for each sequence, known or new."""
    books = course.books
    number = 1 + sum(len(of) for of in books.elements.values())
    while any((UNNAMED, number) == key[:2] for of in books.elements.values() for key in of if isinstance(key, tuple)):
        number += 1
    linked = course.law.link(sort, (0, 0))
    if linked is None:
        yield (UNNAMED, number)
        return
    for key in (*books.elements[linked[0]], (UNNAMED, number + 1)):
        yield (UNNAMED, number, key)


def _named(course: Course, sort: str, key: Any) -> Iterator[tuple[Course, Key]]:
    """A name that is not known may be that of an element that had none."""
    books = course.books
    if key in books.elements[sort]:
        yield course, key
        return
    linked = course.law.link(sort, key)
    courses = [course]
    if linked and linked[1] not in books.elements[linked[0]]:
        unnamed = [k for k in books.elements[linked[0]] if _is_unnamed(k)]
        courses += [_renamed(course, linked[0], k, linked[1]) for k in unnamed]
    for start in courses:
        yield start, key
        for other in list(start.books.elements[sort]):
            if _is_unnamed(other) and (not linked or other[-1] == linked[1]):  # type: ignore[index]
                yield _renamed(start, sort, other, key), key


def _is_unnamed(key: Key) -> bool:
    return isinstance(key, tuple) and key[0] == UNNAMED


def _renamed(course: Course, sort: str, old: Key, new: Key) -> Course:
    """The course in which an element has another name, also where others are linked to it."""
    links = {s: course.law.link(s, (0, 0)) for s in course.books.elements}

    def name(of: str, key: Any) -> Any:
        if of == sort:
            return new if key == old else key
        link = links[of]
        return (*key[:-1], new) if link and link[0] == sort and key[-1] == old else key

    books = course.books
    elements = {of: {name(of, k): Record(r) for k, r in them.items()} for of, them in books.elements.items()}
    named = {(of, name(of, k)): count for (of, k), count in books.named.items()}
    after = course.copy()
    after.books = Books(Record(books.shared), elements, named)
    return after
