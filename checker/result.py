"""What an exploration found: the same record from every engine."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from attrs import frozen

from checker.model import Model, StateTuple

DEADLOCK, RANGE, ILLEGAL, RECEPTIVE = "deadlock", "range", "illegal", "receptive"


class Verdict(enum.Enum):
    """A verdict and its exit code. A property that was not evaluated is never green."""

    PROVED = 0
    REFUTED = 2
    UNDETERMINED = 3

    @property
    def exit_code(self) -> int:
        return int(self.value)


@frozen
class Limits:
    """Bounds of one exploration; hitting one ends in UNDETERMINED. None: no bound of that kind."""

    states: int | None = None
    seconds: float | None = None
    memory_mb: int | None = None


@frozen
class Progress:
    """What a running exploration reports, a few times a second."""

    level: int
    states: int
    frontier: int
    transitions: int
    seconds: float
    memory_mb: float


ProgressCallback = Callable[[Progress], None]


@frozen
class TraceStep:
    """One numbered step of a counterexample: which instance fired ("" at the initial state) and the state after it."""

    instance: str
    rule: str
    state: StateTuple


@frozen
class Finding:
    """The shortest violation of one property. trace[0] is the initial state; loop: index of the state to which a
    liveness counterexample returns for ever (None for safety)."""

    prop: str
    detail: str
    trace: tuple[TraceStep, ...]
    loop: int | None = None

    @property
    def length(self) -> int:
        """Number of steps."""
        return len(self.trace) - 1

    def steps(self, model: Model) -> list[str]:
        """The counterexample as numbered steps with what changed."""
        lines = []
        for n, (before, after) in enumerate(zip(self.trace, self.trace[1:], strict=False), 1):
            if self.loop is not None and n == self.loop + 1:
                lines.append("    --- from here for ever:")
            lines.append(f"{n:3}  {after.instance:30} {model.show(after.state, before.state)}")
        if self.loop is not None and self.loop >= len(self.trace) - 1:
            lines.append("    --- and nothing more happens, for ever")
        return lines

    @property
    def rules(self) -> list[str]:
        """The instance names, in order: what tests pin."""
        return [s.instance for s in self.trace[1:]]


@frozen
class Exploration:
    """states, transitions, depth: of the reachable graph. fired: per instance, in model order. cells: ids of the table
    cells that were used. reached: ids of sometimes-properties that were seen. findings: by property id.
    complete: False when a bound was hit (`stopped` says which)."""

    engine: str
    states: int
    transitions: int
    depth: int
    fired: tuple[int, ...]
    cells: frozenset[str]
    reached: frozenset[str]
    findings: Mapping[str, Finding]
    complete: bool
    stopped: str
    seconds: float
    memory_mb: float = 0.0
    compile_seconds: float = 0.0
