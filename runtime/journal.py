"""The journal: every step that the rulebook's engine took, in its order, as far back as a ring of them reaches.

Theory. A step is numbered and written down inside the monitor, so the journal's order is the order of the steps and
none is missing. An entry names what the rule was about by numbers (a job's, and that of its sequence), never by the
object: a ring of objects would keep the memory of a thousand ended jobs alive.

Whoever wants to judge a journal plays it back against the rulebook. For that he needs a state to begin with. The
initial one will do while nothing has been overwritten; so that there is one later too, the engine's whole state is kept
now and then (`checkpoint`), often enough that the ring always reaches back to one.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from runtime.files import write_private

__all__ = ["RING_ENTRIES", "Entry", "Journal"]

RING_ENTRIES = 1 << 14
FORMAT = 1


@frozen
class Entry:
    """One step. number: counts all steps, from 0. element: the numbers of what the rule was about (of a job: its own
    and its sequence's), or None. generation: the present one after the step. observed: what a call brought back, or "".
    """

    number: int
    at_us: int
    rule: str
    element: Any
    generation: int
    observed: str


@frozen
class Checkpoint:
    """The engine's state after step `number`."""

    number: int
    state: Mapping[str, Any]


class Journal:
    """The last `entries` steps; older ones are overwritten. Written inside the monitor, read by anybody.

    new_generation: ids of the rules that begin one. about: what a reader must know, such as the rulebook's parameters.
    """

    def __init__(
        self, entries: int = RING_ENTRIES, new_generation: Collection[str] = (), about: Mapping[str, Any] | None = None
    ) -> None:
        self._ring: list[tuple[int, int, str, Any, int, str] | None] = [None] * entries
        self._new_generation = frozenset(new_generation)
        self._about = dict(about or {})
        self._checkpoints: deque[Checkpoint] = deque(maxlen=3)
        self._next_checkpoint = self._apart
        self.total = 0
        self.generation = 1

    @property
    def _apart(self) -> int:
        """Steps from one checkpoint to the next: of three, the oldest may be overwritten, the next is not."""
        return max(1, len(self._ring) // 3)

    # -- inside the monitor --------------------------------------------------------------------------------------------
    def add(self, at_us: int, rule: str, element: Any, observed: str) -> None:
        if rule in self._new_generation:
            self.generation += 1
        self._ring[self.total % len(self._ring)] = (self.total, at_us, rule, element, self.generation, observed)
        self.total += 1

    @property
    def wants_checkpoint(self) -> bool:
        return self.total >= self._next_checkpoint

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """state: as it is after the step that was added last."""
        self._checkpoints.append(Checkpoint(self.total - 1, state))
        self._next_checkpoint = self.total + self._apart

    # -- by anybody ----------------------------------------------------------------------------------------------------
    def entries(self) -> list[Entry]:
        """Oldest first."""
        kept = [e for e in list(self._ring) if e is not None]
        return [Entry(*e) for e in sorted(kept, key=lambda e: e[0])]

    def backwards(self) -> Iterator[Entry]:
        """From the latest on, as far as they are kept."""
        for number in range(self.total - 1, -1, -1):
            entry = self._ring[number % len(self._ring)]
            if entry is None or entry[0] != number:
                return
            yield Entry(*entry)

    def records(self) -> Iterator[dict[str, Any]]:
        """As plain data: first what the reader must know, then the steps from a known state on.

        `state` None: they begin with the initial state. Otherwise it is the state before the first of them."""
        checkpoints = list(self._checkpoints)  # before the ring, which may only reach less far back meanwhile
        entries = self.entries()
        state, begins = None, 0
        if entries and entries[0].number:
            start = next(c for c in checkpoints if c.number + 1 >= entries[0].number)
            state, begins = start.state, start.number + 1
        yield {"journal": FORMAT, **self._about, "begins": begins, "state": state}
        for e in entries[begins - entries[0].number if entries else 0 :]:
            yield asdict(e)

    def write(self, path: Path) -> None:
        """The records as lines of JSON, in a file of its owner alone, all of it or nothing. Raises OSError."""
        write_private(path, "".join(f"{json.dumps(record)}\n" for record in self.records()).encode())
