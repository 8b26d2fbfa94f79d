"""What a step may change for others: which rules it may enable, or disable.

Theory. A rule can only become enabled when something that its guard reads is written. What rules read and write is
known when they are compiled, so for each rule the others that it concerns are worked out once. Where the step's own
element is in a known place afterwards (`places`), those whose guard cannot hold there are left out as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from attrs import frozen

from runtime.compiled import CompiledRule

__all__ = ["Concern", "Concerns"]


@frozen(eq=False)
class Concern:
    """A rule that a step of another may enable (or, for a timer, disable).

    alone: only about the step's own element. restarts: the step begins a call, and the rule is about calls.
    """

    rule: CompiledRule
    alone: bool
    restarts: bool


class Concerns:
    """Of a collection of rules, which may grow: then `grown` must be called."""

    def __init__(self, rules: Collection[CompiledRule]) -> None:
        self._rules = rules
        self._known: dict[tuple[CompiledRule, int | None], tuple[tuple[Concern, ...], tuple[CompiledRule, ...]]] = {}

    def grown(self) -> None:
        self._known.clear()

    def at(self, rule: CompiledRule, place: int | None) -> tuple[tuple[Concern, ...], tuple[CompiledRule, ...]]:
        """What a step of `rule` concerns, when its element is in this place afterwards: what may hold now; and what
        cannot, about that element."""
        key = (rule, place)
        if key not in self._known:
            concerned = tuple(_concerned(rule, self._rules))
            over = tuple(c.rule for c in concerned if c.alone and not _may_be_in(c.rule, place))
            self._known[key] = tuple(c for c in concerned if c.rule not in over), over
        return self._known[key]


def _may_be_in(rule: CompiledRule, place: int | None) -> bool:
    return rule.places is None or place is None or place in rule.places


def _concerned(rule: CompiledRule, others: Collection[CompiledRule]) -> Iterator[Concern]:
    """The rules among `others` whose guard reads what `rule` writes."""
    written = {name for _, name in rule.writes}
    begins = rule.rule.begins
    for other in others:
        touched = {(whose, name) for whose, name in other.reads if name in written}
        if not touched:
            continue
        own = all(whose == "own" for whose, _ in touched)
        beyond = any(whose == "any" and name in {n for _, n in touched} for whose, name in rule.writes)
        yield Concern(
            other,
            alone=own and not beyond and rule.sort == other.sort and rule.sort != "",
            restarts=begins is not None and begins.call.args[0].name in {name for _, name in touched},
        )
