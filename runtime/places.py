"""Who may be in which place: the engine's elements, found by the one variable that says most about them.

Theory. An actor that serves anybody looks for an element about which one of its rules is enabled. With a thousand jobs
it must not ask each. Most guards name the states in which they may hold, so elements are kept by that variable (a job's
`state`), in the order in which they came there, and a rule is asked only of those in its places. Which variable that is
is worked out from the rulebook: the first of the sort that has a table, if no rule changes another element's. Of the
shared variables, too, the first that has a table (the `device`) says of most rules that they cannot be enabled now: it
is the phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from machines.expr import Expr, const
from machines.ground import fold

__all__ = ["Elements", "possible_at"]


def possible_at(guard: Expr, slot: str, codes: Iterable[int]) -> frozenset[int]:
    """The values of variable `slot` (as it is named in the localised guard) with which the guard may hold."""
    return frozenset(code for code in codes if _may_hold(_with(guard, slot, const(code))))


def _may_hold(x: Expr) -> bool:
    return not x.is_const or bool(x.value)


def _with(x: Expr, slot: str, value: Expr) -> Expr:
    match x.op:
        case "slot":
            return value if x.args[0] == slot else x
        case "const":
            return x
        case _:
            return fold(x.op, [_with(a, slot, value) for a in x.args])


class Elements:
    """Inside the monitor. all: of each sort, in the order of their coming; these dicts are the shared record's own.

    variables: of each sort the variable that is its place, or "" where it has none. phase: the shared one, or ""."""

    def __init__(self, shared: Any, variables: Mapping[str, str], phase: str) -> None:
        self.all: dict[str, dict[Any, None]] = {sort: getattr(shared, f"{sort}_elements") for sort in variables}
        self._shared = shared
        self._phase: Callable[[Any], int | None] = attrgetter(phase) if phase else lambda shared: None
        self._variables = variables
        self._at: dict[str, dict[int, dict[Any, None]]] = {sort: {} for sort in variables}

    def add(self, sort: str, element: Any) -> None:
        self.all[sort][element] = None
        if self._variables[sort]:
            element.place = getattr(element, self._variables[sort])
            self._at[sort].setdefault(element.place, {})[element] = None

    def remove(self, sort: str, element: Any) -> None:
        """Raises KeyError for one that is not there."""
        del self.all[sort][element]
        if self._variables[sort]:
            del self._at[sort][element.place][element]

    def place(self, sort: str, element: Any) -> int | None:
        """Where it is now, after a step about it."""
        if not sort or not (variable := self._variables[sort]):
            return None
        place: int = getattr(element, variable)
        if place != element.place:
            at = self._at[sort]
            del at[element.place][element]
            at.setdefault(place, {})[element] = None
            element.place = place
        return place

    def phase(self) -> int | None:
        """In which all is now."""
        now: int | None = self._phase(self._shared)
        return now

    def possible(self, sort: str, places: frozenset[int] | None) -> Iterator[Any]:
        """Those in these places (None: anywhere)."""
        if places is None:
            yield from self.all[sort]
            return
        at = self._at[sort]
        for place in places:
            if place in at:
                yield from at[place]
