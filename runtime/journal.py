"""The journal: every step that the rulebook's engine took, in its order, as far back as a ring of them reaches.

Theory. A step is numbered and written down inside the monitor, so the journal's order is the order of the steps and
none is missing. An entry names what the rule was about by numbers (a job's, and that of its sequence), never by the
object: a ring of objects would keep the memory of a thousand ended jobs alive.

Whoever wants to judge a journal fires its steps once more (machines/history.py). For that he needs a state to begin
with. The initial one will do while nothing has been overwritten; so that there is one later too, the engine's whole
state is kept now and then (`checkpoint`), often enough that the ring always reaches back to one. And he needs to know
where it ends, so the last record has the state then. The form of the records is machines/evidence.py's.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from machines.evidence import FORMAT, chained
from runtime.files import write_private

__all__ = ["RING_ENTRIES", "Checkpoint", "Entry", "Journal"]

RING_ENTRIES = 1 << 14

Kept = tuple[int, int, str, Any, int, str]
Look = Callable[[int, Mapping[str, Any]], Any]
Calls = Callable[[], list[dict[str, Any]] | None]


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
    generation: int
    state: Mapping[str, Any]


@frozen
class _Cut:
    """All of it in one moment. end: the last record; None where the monitor was not to be had."""

    entries: list[Entry]
    checkpoints: list[Checkpoint]
    end: Mapping[str, Any] | None


class Journal:
    """The last `entries` steps; older ones are overwritten. Written inside the monitor, read by anybody.

    new_generation: ids of the rules that begin one. about: what a reader must know: the rulebook's parameters.
    at_rest: does what it is given inside the monitor, with the time (us) and the engine's state; raises TimeoutError
    when the monitor is not to be had. Without it records have no end.
    """

    def __init__(
        self, entries: int = RING_ENTRIES, new_generation: Collection[str] = (), about: Mapping[str, Any] | None = None
    ) -> None:
        self._ring: list[Kept | None] = [None] * entries
        self._new_generation = frozenset(new_generation)
        self._about = dict(about or {})
        self._checkpoints: deque[Checkpoint] = deque(maxlen=3)
        self._next_checkpoint = self._apart
        self.at_rest: Callable[[Look], Any] | None = None
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
        self._checkpoints.append(Checkpoint(self.total - 1, self.generation, state))
        self._next_checkpoint = self.total + self._apart

    # -- by anybody ----------------------------------------------------------------------------------------------------
    def entries(self) -> list[Entry]:
        """Oldest first."""
        kept = [e for e in list(self._ring) if e is not None]
        return [Entry(*e) for e in sorted(kept, key=lambda e: e[0])]

    def backwards(self) -> Iterator[Entry]:
        """From the latest on, as far as they are kept."""
        for number in range(self.total - 1, -1, -1):
            entry = self.kept(number)
            if entry is None:
                return
            yield entry

    def kept(self, number: int) -> Entry | None:
        """The step with this number; None when it has been overwritten."""
        entry = self._ring[number % len(self._ring)]
        return Entry(*entry) if entry is not None and entry[0] == number else None

    def checkpoints(self) -> list[Checkpoint]:
        """Oldest first."""
        return list(self._checkpoints)

    # -- records -------------------------------------------------------------------------------------------------------
    def records(self, calls: Calls = lambda: None) -> Iterator[dict[str, Any]]:
        """As plain data: what the reader must know, the calls, the steps from a known state on, the end.

        calls: the records of the ABI's last calls, asked for when the end is known; None: there are none."""
        cut = self._cut()
        begins = cut.entries[0].number if cut.entries else 0
        start = Checkpoint(-1, 1, {})
        if begins:
            start = next(c for c in cut.checkpoints if c.number + 1 >= begins)
        made = calls()
        ids = [call["id"] for call in made or () if "id" in call]
        steps = (asdict(e) for e in cut.entries if e.number > start.number)
        head = self.head(start, None if made is None else min(ids, default=0))
        end = [] if cut.end is None else [{**cut.end, "calls": None if made is None else max(ids, default=-1) + 1}]
        yield from chained([head, *(made or ()), *steps, *end])

    def head(self, start: Checkpoint, first_call: int | None) -> dict[str, Any]:
        """The first record: steps begin after `start`; state None means the initial one."""
        return {
            "journal": FORMAT, **self._about, "begins": start.number + 1, "generation": start.generation,
            "state": start.state or None, "calls": first_call,
        }  # fmt: skip

    def end(self, at_us: int, state: Mapping[str, Any]) -> dict[str, Any]:
        """The last record; inside the monitor."""
        return {"end": self.total, "at_us": at_us, "generation": self.generation, "state": state, "calls": None}

    def _cut(self) -> _Cut:
        def look(at_us: int, state: Mapping[str, Any]) -> _Cut:
            return _Cut(self.entries(), self.checkpoints(), self.end(at_us, state))

        try:
            if self.at_rest is not None:
                cut: _Cut = self.at_rest(look)
                return cut
        except TimeoutError:
            pass  # whoever holds it may hold it for ever: better without an end than not at all
        checkpoints = self.checkpoints()  # before the ring, which may only reach less far back meanwhile
        return _Cut(self.entries(), checkpoints, None)

    def write(self, path: Path) -> None:
        """The records as lines of JSON, in a file of its owner alone, all of it or nothing. Raises OSError."""
        write_private(path, "".join(f"{json.dumps(record)}\n" for record in self.records()).encode())
