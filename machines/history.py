"""A course of steps, as a journal tells it: one after the other, each judged where it stands.

Theory. What a line of a journal says of a step is more than its rule: which number it has, when it was, in which
generation, and what a call brought back. Each of these is held against what follows from the lines before. Whoever
reads a journal, while it is written or afterwards, judges its steps by this and by nothing else.
"""

from __future__ import annotations

from attrs import define, evolve, field

from machines.books import Books, Key
from machines.law import Law, Lawful, Refusal
from machines.rulebook import Rule

__all__ = ["Course", "begins_generation"]

AGED = "old"  # what a rule that begins a generation says of the jobs of the one before


def begins_generation(rule: Rule) -> bool:
    return any(target.args[0].name == AGED for part in rule.each for target, _ in part.then)


@define(eq=False)
class Course:
    """Where the steps have led. number: of the next step. at_us: when the last one was, None where that is not known.
    generation: the present one, None where that is not known."""

    law: Law
    books: Books
    number: int = 0
    at_us: int | None = None
    generation: int | None = field(default=None)

    def copy(self) -> Course:
        return evolve(self, books=self.books.copy())

    def step(
        self, rule: str, key: Key | None, number: int | None, at_us: int | None, generation: int | None,
        observed: str | None,
    ) -> Refusal | None:  # fmt: skip
        """Take the step, or say why it is not allowed; then nothing has changed. Of what is None nothing is known."""
        lawful = self.law.rules.get(rule)
        if lawful is None:
            return Refusal("rule", "the rulebook has no such rule")
        wrong = self._beside(lawful, key, number, at_us, generation, observed)
        wrong = wrong or self.law.fire(self.books, lawful, key)
        if wrong is None:
            self.went(lawful, at_us, generation)
        return wrong

    def _beside(
        self, lawful: Lawful, key: Key | None, number: int | None, at_us: int | None, generation: int | None,
        observed: str | None,
    ) -> Refusal | None:  # fmt: skip
        """What is said besides the rule."""
        if number is not None and number != self.number:
            missing = number - self.number
            said = f"{missing} steps are missing" if missing > 0 else "it stands in another place"
            return Refusal("number", f"its number is {number}, and that of the next step is {self.number}: {said}")
        if at_us is not None and self.at_us is not None and at_us < self.at_us:
            return Refusal("time", f"it was at {at_us} us, {self.at_us - at_us} us before the step before it")
        if (key is None) != (not lawful.sort):
            return Refusal("element", f"it is about {key}, and the rule about {lawful.sort or 'no element'}")
        if observed is not None and not lawful.takes(observed):
            takes = f"{', '.join(lawful.rule.outcome[1])}" if lawful.rule.outcome else "no return"
            return Refusal("observed", f"it observed {observed!r}, and the rule takes {takes}")
        due = self._due(lawful)
        if generation is not None and due is not None and generation != due:
            return Refusal("generation", f"it says generation {generation}, and by the steps it is {due}")
        return None

    def _due(self, lawful: Lawful) -> int | None:
        return None if self.generation is None else self.generation + begins_generation(lawful.rule)

    def went(self, lawful: Lawful, at_us: int | None, generation: int | None) -> None:
        """The step was taken in the books."""
        self.number += 1
        self.at_us = self.at_us if at_us is None else at_us
        due = self._due(lawful)
        self.generation = generation if due is None else due
