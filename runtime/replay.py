"""Holds every step of a running executor against the rulebook a second time, and its variables at the end.

Theory. The journal is written inside the monitor, one line for each step, in the order of the steps. So a journal that
fires each step once more, over records of its own and under rules that it compiled itself, sees whatever the executor
did that the rulebook does not allow: a guard that was passed over, a row that there is not, a rule that is not the
rulebook's. And when the records differ in the end, somebody changed a variable past the rules. One wrong step makes
all that follows worthless, so the first one is told, and no more are judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from machines.protocol import RULEBOOK
from machines.protocol.host import CLOSED, ENDED, READY, SETTLED
from machines.rulebook import Rule
from runtime.compiled import IllegalTransition, Program, Rejected
from runtime.executor import DeviceExecutor
from runtime.journal import Journal

__all__ = ["Replay"]

HOST = (ENDED, SETTLED, CLOSED, READY)
FORGET = "records.forget"  # after which a job's record is used no more


class Replay(Journal):
    """A journal in the place of the executor's, which goes on with it.

    steps: how many were judged. wrong: the first one that was not allowed."""

    def __init__(self, journal: Journal, program: Program, shared: Any) -> None:
        """Inside the monitor. shared: the executor's record, which is copied."""
        self.__dict__.update(journal.__dict__)
        self._rules, self._program = program.rules, program
        self.steps, self.wrong = 0, ""
        self._s = program.with_values(program.values_of(shared))
        self._known = {(sort.name, e.key): e for sort in RULEBOOK.sorts for e in self._elements(sort.name)}
        for job in self._elements("job"):
            job.seq_of = self._known["seq", job.key[1]]

    @staticmethod
    def of(executor: DeviceExecutor, watching: Iterable[Rule] = ()) -> Replay:
        """From now on, every step of this executor. watching: rules besides those of machines.protocol.host that change
        nothing, on which somebody waits."""
        program = Program(RULEBOOK, executor.config.parameters())
        program.rules |= {rule.id: program.compiled(rule) for rule in (*HOST, *watching)}

        def begin(shared: Any) -> Replay:
            replay = Replay(executor.engine.journal, program, shared)
            executor.engine.journal = replay
            return replay

        found: Replay = executor.engine.read(begin)
        return found

    def add(self, at_us: int, rule: str, element: Any, observed: str) -> None:
        super().add(at_us, rule, element, observed)
        if not self.wrong:
            self.steps += 1
            self.wrong = self._again(rule, element)

    # -- once more -----------------------------------------------------------------------------------------------------
    def _again(self, name: str, key: Any) -> str:
        """Take the step here too; what is wrong with it."""
        compiled = self._rules.get(name)
        who = f"step {self.steps}, {name}" + (f" of {key}" if key is not None else "")
        if compiled is None:
            return f"{who}: the rulebook has no such rule"
        element = self._element(compiled.sort, key) if compiled.sort else None
        try:
            if not compiled.fire(self._s, element):
                return f"{who}: its guard does not hold: {compiled.rule.full_guard}"
        except (IllegalTransition, Rejected) as error:
            return f"{who}: {error}"
        if name == FORGET:
            del self._s.job_elements[self._known.pop((compiled.sort, key))]
        return ""

    def _element(self, sort: str, key: Any) -> Any:
        """Our own of what the journal calls so. A job's sequence is there before the job."""
        if (sort, key) not in self._known:
            element = self._new(sort, key)
            if sort == "job":
                element.seq_of = self._element("seq", key[1])
        return self._known[sort, key]

    def _new(self, sort: str, key: Any) -> Any:
        element = self._known[sort, key] = self._program.element(sort)
        element.key = key
        self._elements(sort)[element] = None
        return element

    def _elements(self, sort: str) -> dict[Any, None]:
        found: dict[Any, None] = getattr(self._s, f"{sort}_elements")
        return found

    # -- in the end ----------------------------------------------------------------------------------------------------
    def findings(self, executor: DeviceExecutor) -> list[str]:
        """What the executor did against the rulebook; empty where it did nothing."""
        if self.wrong:
            return [self.wrong]
        found: list[str] = executor.engine.read(lambda shared: list(self._differences(shared)))
        return found

    def _differences(self, shared: Any) -> Iterator[str]:
        theirs, mine = self._program.values_of(shared), self._program.values_of(self._s)
        for sort in ("", *(sort.name for sort in RULEBOOK.sorts)):
            known = {e["element"]: e for e in mine[sort]} if sort else {"": mine}
            for found in theirs[sort] if sort else (theirs,):
                key = found.get("element", "")
                for name, has in found.items():
                    if not isinstance(has, list) and key in known and has != known[key][name]:
                        who = f"{sort} {key}: " if sort else ""
                        yield f"{who}{name} is {has}; by the steps that were taken it should be {known[key][name]}"
