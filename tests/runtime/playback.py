"""Playing a written journal back: for tests of what was written."""

from __future__ import annotations

from typing import Any

from machines.protocol import RULEBOOK
from machines.protocol.host import CLOSED, ENDED, READY, SETTLED
from runtime.compiled import Program

Lines = list[dict[str, Any]]


class Playback:
    """What a reader of the file does who has nothing but the file and the rulebook. Raises AssertionError at the first
    step that cannot be."""

    def __init__(self, lines: Lines) -> None:
        header, self.steps = lines[0], lines[1:]
        self.program = Program(RULEBOOK, header["parameters"])
        self.rules = self.program.rules | {r.id: self.program.compiled(r) for r in (ENDED, SETTLED, CLOSED, READY)}
        self.s, self.known = self.program.shared(), {}
        self.number, self.generation = header["begins"], None
        if header["state"] is not None:
            self._set(header["state"])
        for step in self.steps:
            self._again(**step)

    def _set(self, state: dict[str, Any]) -> None:
        sorts = [sort.name for sort in RULEBOOK.sorts]
        for name, value in state.items():
            if name not in sorts:
                setattr(self.s, name, value)
        for sort in reversed(sorts):  # sequences first: jobs name them
            for variables in state[sort]:
                element = self._element(sort, variables.pop("element"))
                for name, value in variables.items():
                    setattr(element, name, value)

    def _again(
        self, number: int, at_us: int, rule: str, element: Any, generation: int, observed: str
    ) -> None:  # fmt: skip
        assert number == self.number, f"step {self.number} is missing"
        self.number += 1
        compiled = self.rules[rule]
        if compiled.rule.outcome:
            assert observed in compiled.rule.outcome[1], f"{rule} does not take {observed!r}"
        else:
            assert observed == "", f"{rule} takes no return"
        about = self._element(compiled.sort, element) if compiled.sort else None
        assert compiled.fire(self.s, about), f"step {number}: the guard of {rule} does not hold"
        if rule == "records.forget":
            del self.s.job_elements[self.known.pop(("job", tuple(element)))]

    def _element(self, sort: str, key: Any) -> Any:
        name = (sort, tuple(key) if isinstance(key, list) else key)
        if name not in self.known:
            element = self.known[name] = self.program.element(sort)
            element.key = key
            if sort == "job":
                element.seq_of = self._element("seq", key[1])
            getattr(self.s, f"{sort}_elements")[element] = None
        return self.known[name]
