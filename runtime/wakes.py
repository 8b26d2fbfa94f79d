"""What a step may change for others: which rules it may enable, or disable.

Theory. A rule can only become enabled when something that its guard reads is written. What rules read and write is
known when they are compiled, so for each rule the others that it concerns are worked out once. Of these are left out
whose guard cannot hold in the place where the step's own element is afterwards, or in the phase in which all is
(`runtime.places`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache

from attrs import frozen

from runtime.compiled import CompiledRule, Key

__all__ = ["Concern", "Concerns"]


@frozen(eq=False)
class Concern:
    """A rule that a step of another may enable (or, for a timer, disable).

    alone: only about the step's own element. restarts: the step begins a call, and the rule is about calls.
    """

    rule: CompiledRule
    alone: bool
    restarts: bool

    def possible(self, place: int | None, phase: int | None) -> bool:
        """Whether it may hold in this phase; about the step's own element, if it is only about that."""
        here = not self.alone or self.rule.places is None or place is None or place in self.rule.places
        return here and (self.rule.phases is None or phase in self.rule.phases)


Found = tuple[tuple[Concern, ...], tuple[Concern, ...]]


class Concerns:
    """Of a collection of rules, which may grow: then `grown` must be called."""

    def __init__(self, rules: Collection[CompiledRule]) -> None:
        self._rules = rules
        self._known: dict[tuple[CompiledRule, int | None, int | None], Found] = {}

    def grown(self) -> None:
        self._known.clear()

    def at(self, rule: CompiledRule, place: int | None, phase: int | None) -> Found:
        """What a step of `rule` concerns, when its element is in this place and all in this phase afterwards: what may
        hold now; and what cannot any more."""
        key = (rule, place, phase)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(rule, place, phase)
        return found

    def _find(self, rule: CompiledRule, place: int | None, phase: int | None) -> Found:
        concerned = tuple(_concerned(rule, self._rules))
        possible = tuple(c for c in concerned if c.possible(place, phase))
        return possible, tuple(c for c in concerned if c not in possible and (c.alone or rule.changes_phase))


def _same(written: Key, read: Key, same_sort: bool) -> bool:
    """Whether they may be one variable: one of some element may be anybody's of that name."""
    (writer, name), (reader, other) = written, read
    own = writer == reader == "own"
    return name == other and (writer == "shared") == (reader == "shared") and (same_sort or not own)


def _concerned(rule: CompiledRule, others: Collection[CompiledRule]) -> Iterator[Concern]:
    """The rules among `others` whose guard reads what `rule` writes."""
    return (concern for other in others if (concern := _concern(rule, other)))


@lru_cache(maxsize=1 << 15)
def _concern(rule: CompiledRule, other: CompiledRule) -> Concern | None:
    """None: the step of `rule` writes nothing that the guard of `other` reads."""
    begins = rule.rule.begins
    touched = {read for read in other.reads if any(_same(w, read, rule.sort == other.sort) for w in rule.writes)}
    if not touched:
        return None
    own = all(whose == "own" for whose, _ in touched)
    beyond = any(whose == "any" and name in {n for _, n in touched} for whose, name in rule.writes)
    return Concern(
        other,
        alone=own and not beyond and rule.sort == other.sort and rule.sort != "",
        restarts=begins is not None and begins.call.args[0].name in {name for _, name in touched},
    )
