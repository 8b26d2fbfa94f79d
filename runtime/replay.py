"""Holds every step of a running executor against the rulebook a second time, and its variables at the end.

Theory. The journal is written inside the monitor, one line for each step, in the order of the steps. So a journal that
judges each step as it comes (machines/history.py, by which a file is judged too), over books of its own, sees whatever
the executor did that the rulebook does not allow: a guard that was passed over, a row that there is not, a rule that is
not the rulebook's. And when the books differ in the end, somebody changed a variable past the rules. One wrong step
makes all that follows worthless, so the first one is told, and no more are judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from machines.history import Course
from machines.law import Law
from machines.protocol import RULEBOOK
from machines.protocol.host import WAITS
from machines.rulebook import Rule
from runtime.executor import DeviceExecutor
from runtime.journal import Journal

__all__ = ["Replay"]


class Replay(Journal):
    """A journal in the place of the executor's, which goes on with it.

    steps: how many were judged. wrong: the first one that was not allowed."""

    def __init__(self, journal: Journal, law: Law, state: Mapping[str, Any]) -> None:
        """Inside the monitor. state: the executor's."""
        self.__dict__.update(journal.__dict__)
        self.steps, self.wrong = 0, ""
        self._course = Course(law, law.books(state), self.total, None, self.generation)

    @staticmethod
    def of(executor: DeviceExecutor, watching: Iterable[Rule] = ()) -> Replay:
        """From now on, every step of this executor. watching: rules besides those of machines.protocol.host that change
        nothing, on which somebody waits."""
        law = Law(RULEBOOK, executor.config.parameters(), (*WAITS, *watching))

        def begin(shared: Any) -> Replay:
            replay = Replay(executor.engine.journal, law, executor.program.values_of(shared))
            executor.engine.journal = replay
            return replay

        found: Replay = executor.engine.read(begin)
        return found

    def add(self, at_us: int, rule: str, element: Any, observed: str) -> None:
        super().add(at_us, rule, element, observed)
        if self.wrong:
            return
        self.steps += 1
        refusal = self._course.step(rule, element, self.total - 1, at_us, self.generation, observed)
        if refusal:
            about = f" of {element}" if element is not None else ""
            self.wrong = f"step {self.steps}, {rule}{about}: {refusal}"

    def findings(self, executor: DeviceExecutor) -> list[str]:
        """What the executor did against the rulebook; empty where it did nothing."""
        if self.wrong:
            return [self.wrong]
        state = executor.engine.read(executor.program.values_of)
        try:
            return list(self._course.law.differences(self._course.books, state))
        except ValueError as error:  # a variable is out of its range
            return [str(error)]
