"""Whose calls they are: what the calls so far have taught, and which of them an effect has made.

Theory. A reservation teaches which of CalRT's sequences is the job's, the binding which input, `infer` which output;
from then on nothing is a guess. Where a record begins in the middle, an effect is not judged before this is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from attrs import define, field

from checker.conform.words import PARTS, Call, mark
from machines.books import Books, Key

__all__ = ["Learnt", "Window"]

TEACHING = frozenset({"reserve", "prepare", "infer", "reset", "configure", "golden"})


@define(eq=False)
class Window:
    """An effect under way. at_us: when it was begun, None where that is not known: then it is not judged."""

    effect: str
    key: Key | None
    generation: int | None
    at_us: int | None
    step: int


@define(eq=False)
class Learnt:
    """kv: CalRT's number, by sequence. The others by job: its input and output, and the length of its sequence when it
    has run. device_jobs: the device's number of a job, by output."""

    kv: dict[Key, int] = field(factory=dict)
    inputs: dict[Key, int] = field(factory=dict)
    outputs: dict[Key, int] = field(factory=dict)
    lengths: dict[Key, int] = field(factory=dict)
    device_jobs: dict[int, int] = field(factory=dict)

    def forget(self) -> None:
        for known in (self.kv, self.inputs, self.outputs, self.lengths, self.device_jobs):
            known.clear()

    def keep(self, books: Books) -> None:
        """Forget what jobs and sequences have taught that are there no more."""
        jobs, sequences = (books.elements[sort] for sort in ("job", "seq"))
        for known in (self.inputs, self.outputs, self.lengths):
            for key in [key for key in known if key not in jobs]:
                del known[key]
        for key in [key for key in self.kv if key not in sequences]:
            del self.kv[key]

    def is_known(self, window: Window) -> bool:
        """Whether it is known whose calls it would be, or the effect itself teaches that."""
        if window.effect in TEACHING:
            return True
        known: dict[Key, int] = {"undo": self.inputs, "wait": self.outputs, "convert": self.outputs}.get(
            window.effect, self.kv
        )
        return (_sequence(window.key) if known is self.kv else window.key) in known

    def of(self, window: Window, calls: Iterable[Call], until_us: int) -> list[Call]:
        """The calls of an effect, and what they teach."""
        since_us = window.at_us if window.at_us is not None else 0
        mine = [
            c for c in calls
            if c.call in PARTS[window.effect] and c.begin_us >= since_us and c.end_ns >= 0 and c.end_us <= until_us
        ]  # fmt: skip
        return list(getattr(self, f"_{window.effect}", self._on_sequence)(window.key, mine))

    def _reserve(self, job: Any, calls: list[Call]) -> Iterator[Call]:
        """What asks, and the Apply after it on the same thread. A sequence that begins teaches its number: one that no
        other sequence has."""
        others = {number for key, number in self.kv.items() if key != job[-1]}
        for asked in (c for c in calls if c.call == "can_allocate"):
            after = [c for c in calls if c.thread == asked.thread and c.id > asked.id][:1]
            if after and after[0].call == "apply" and after[0].a not in others:
                self.kv[job[-1]], self.lengths[job] = after[0].a, after[0].b
                yield from (asked, after[0])
                return
            if not after or after[0].call == "can_allocate":
                yield asked
                return

    def _prepare(self, job: Any, calls: list[Call]) -> Iterator[Call]:
        bound = [c for c in calls if c.call == "bind_sequence" and c.a == self.kv.get(job[-1], c.a)][:1]
        if bound:
            self.inputs[job], self.kv[job[-1]] = bound[0].handle, bound[0].a
            yield from (c for c in calls if c is bound[0] or (c.handle == bound[0].handle and c.id > bound[0].id))

    def _infer(self, job: Any, calls: list[Call]) -> Iterator[Call]:
        for call in [c for c in calls if c.handle == self.inputs.get(job, c.handle)][:1]:
            self.inputs[job], self.outputs[job], self.device_jobs[call.other] = call.handle, call.other, call.a
            yield call

    def _wait(self, job: Any, calls: list[Call]) -> Iterator[Call]:
        if job in self.outputs:
            yield from (c for c in calls if c.handle == self.outputs[job])

    _convert = _wait

    def _undo(self, job: Any, calls: list[Call]) -> Iterator[Call]:
        if job in self.inputs:
            yield from (c for c in calls if c.handle == self.inputs[job])

    def _on_sequence(self, key: Any, calls: list[Call]) -> Iterator[Call]:
        """commit, unreserve and remove: one Apply."""
        number = self.kv.get(_sequence(key))
        yield from [c for c in calls if c.a == number][:1]

    def _reset(self, nothing: None, calls: list[Call]) -> list[Call]:
        return calls

    _configure = _reset

    def _golden(self, nothing: None, calls: list[Call]) -> list[Call]:
        """One thread makes all of them; it begins with a reservation."""
        thread = next((c.thread for c in calls if c.call == "can_allocate"), None)
        return [c for c in calls if c.thread == thread]

    # -- arguments -----------------------------------------------------------------------------------------------------
    def arguments(self, window: Window, calls: list[Call]) -> str:
        """Numbers that must be the same in several calls, or that the protocol says."""
        length = self.lengths.get(window.key) if window.key is not None else None
        last = calls[-1] if calls else None
        asked = [c.a for c in calls if c.call == "can_allocate" and c.a != 1]
        if asked:
            return f"{window.effect} asks for {asked[0]} units, not for 1 (§7)"
        match window.effect, last:
            case "commit", Call() if length is not None and last.b != length:
                return f"{last.b} tokens are committed, and {length} were reserved"
            case "unreserve", Call() if length is not None and last.b >= length:
                return f"it goes back to {last.b} tokens, and {length} were reserved"
            case "remove", Call() if last.b:
                return f"the sequence is to be freed, and Apply says {last.b} tokens"
            case "prepare", Call(call="set_csr") if length is not None and not mark(last) and len(calls) > 2:
                if calls[-2].call == "set_csr" and not 1 <= calls[-2].a <= last.a == length:
                    return f"the CSRs say {calls[-2].a} of {last.a} tokens, and {length} were reserved"
            case "wait", Call():
                job = self.device_jobs.get(calls[0].handle)
                if job is not None and calls[0].a not in (0, job):
                    return f"it waits for the device's job {calls[0].a}, and {job} was submitted"
        return ""


def _sequence(key: Any) -> Any:
    """Of a job, or of a sequence itself."""
    return key[-1] if isinstance(key, tuple) else key
