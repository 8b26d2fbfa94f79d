"""The books of a rulebook whose elements come and go: every variable, of any number of elements.

Theory. The checker explores N elements that are used again and again; what really happens has elements that come and
go. Here an element is there as soon as it is named. It goes again when it is as it was in the beginning and
nothing links to it: then nobody could tell it from a new one. So a run of any length needs no more memory than what is
alive in it. Of the world nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from machines.expr import Expr, const
from machines.ground import fold
from machines.rulebook import Rulebook

__all__ = ["NOBODY", "Bookkeeping", "Books", "Key", "Record", "constant", "key_of"]

Key = tuple[Any, ...] | int | str
"""What a journal calls an element, with tuples for lists. Of a linked element (a job) the last number is the key of the
element that it is linked to."""

SHOULD = "by the steps that were taken it should be"


class Record(list[int]):
    """The variables of one element, or the shared ones. Two are equal only if they are the same one."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]


NOBODY = Record()


class Books:
    """The state. elements: per sort the records by key; links: the linked element's key, by sort and key."""

    __slots__ = ("elements", "named", "shared")

    def __init__(
        self, shared: Record, elements: dict[str, dict[Key, Record]], named: dict[tuple[str, Key], int]
    ) -> None:
        self.shared, self.elements, self.named = shared, elements, named

    def copy(self) -> Books:
        elements = {sort: {k: Record(r) for k, r in of.items()} for sort, of in self.elements.items()}
        return Books(Record(self.shared), elements, dict(self.named))

    def frozen(self) -> Any:
        """The same for equal states."""
        return (tuple(self.shared), *(frozenset((k, tuple(r)) for k, r in of.items()) for of in self.elements.values()))


class Bookkeeping:
    """Keeps books of a rulebook under parameters, which need not lie in the checker's ranges."""

    def __init__(self, book: Rulebook, values: Mapping[str, int]) -> None:
        self.book = book
        self.values = {p.name: values.get(p.name, p.default) for p in book.params}
        own = [v for v in book.variables if not v.world]
        self.variables = {"": [v for v in own if v.sort is None]}
        self.variables |= {s.name: [v for v in own if v.sort is s] for s in book.sorts}
        self._first = {sort: [constant(v.initial, self.values) for v in of] for sort, of in self.variables.items()}

    def initial(self) -> Books:
        return Books(self._new(""), {sort.name: {} for sort in self.book.sorts}, {})

    def _new(self, sort: str) -> Record:
        return Record(self._first[sort])

    def books(self, state: Mapping[str, Any]) -> Books:
        """A state as a journal has it: variables by name, and per sort a list of {"element": key, variables}. Raises
        ValueError for what is no state of this rulebook."""
        books = self.initial()
        names = {v.name for v in self.variables[""]} | {s.name for s in self.book.sorts}
        if set(state) != names:
            wrong = sorted(set(state) ^ names)
            raise ValueError(f"a state has the variables of the rulebook; {', '.join(wrong)} is missing or not one")
        books.shared[:] = self._values("", state, "")
        for sort in reversed(self.book.sorts):  # what is linked to comes first
            for given in state[sort.name]:
                if not isinstance(given, dict) or "element" not in given:
                    raise ValueError(f"{sort.name}: {given!r} is no element")
                key = key_of(given["element"])
                self.element(books, sort.name, key)[:] = self._values(sort.name, given, f"{sort.name} {key}: ")
        return books

    def _values(self, sort: str, given: Mapping[str, Any], who: str) -> list[int]:
        found = []
        for v in self.variables[sort]:
            value, high = given.get(v.name), constant(v.domain.hi, self.values)
            if not isinstance(value, int) or not 0 <= value <= high:
                raise ValueError(f"{who}{v.name} is {value!r}; allowed are 0 to {high}")
            found.append(int(value))
        return found

    def state(self, books: Books) -> dict[str, Any]:
        """The inverse of `books`."""
        found: dict[str, Any] = dict(zip((v.name for v in self.variables[""]), books.shared, strict=True))
        for sort, elements in books.elements.items():
            names = [v.name for v in self.variables[sort]]
            found[sort] = [{"element": k, **dict(zip(names, r, strict=True))} for k, r in elements.items()]
        return found

    def element(self, books: Books, sort: str, key: Key) -> Record:
        """The element's record; made when it is first named, as is what it is linked to."""
        record = books.elements[sort].get(key)
        if record is None:
            record = books.elements[sort][key] = self._new(sort)
            if linked := self.link(sort, key):
                self.element(books, *linked)
                books.named[linked] = books.named.get(linked, 0) + 1
        return record

    def link(self, sort: str, key: Key) -> tuple[str, Key] | None:
        """Sort and key of what an element is linked to."""
        for m in self.book.maps:
            if m.source.name == sort and isinstance(key, tuple):
                return m.target.name, key[-1]
        return None

    def leave(self, books: Books, sort: str, key: Key) -> None:
        """Forget an element that is as in the beginning, unless it is named by another."""
        record = books.elements[sort].get(key)
        if record is None or list(record) != self._first[sort] or books.named.get((sort, key)):
            return
        del books.elements[sort][key]
        if linked := self.link(sort, key):
            books.named[linked] -= 1
            if not books.named[linked]:
                del books.named[linked]
            self.leave(books, *linked)

    def differences(self, books: Books, state: Mapping[str, Any]) -> Iterator[str]:
        """Where a state is not that of the books. An element that only one of them has must be as in the beginning."""
        said = self.books(state)
        for sort, variables in self.variables.items():
            mine, theirs = ({"": b.shared} if not sort else b.elements[sort] for b in (books, said))
            for key in dict.fromkeys((*mine, *theirs)):
                have, should = theirs.get(key) or self._new(sort), mine.get(key) or self._new(sort)
                for v, has, ours in zip(variables, have, should, strict=True):
                    if has != ours:
                        who = f"{sort} {key}: " if sort else ""
                        yield f"{who}{v.name} is {v.show(has)}; {SHOULD} {v.show(ours)}"


def key_of(element: Any) -> Any:
    """A JSON element as a key."""
    return tuple(element) if isinstance(element, list | tuple) else element


def constant(x: Expr, values: Mapping[str, int]) -> int:
    """An expression over parameters alone."""
    match x.op:
        case "const":
            return x.value
        case "param":
            return values[x.args[0].name]
        case _:
            return fold(x.op, [const(constant(a, values)) for a in x.args]).value
