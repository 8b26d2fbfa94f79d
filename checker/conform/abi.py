"""The ABI trace against the steps: each effect's calls lie between its beginning and its outcome, and say what it says.

Theory. A rule begins a call of the protocol, and another takes what it brought back; in between, by the host's clock,
lie the calls of the ABI that it stands for (checker/conform/words.py). Whose they are follows from what they are about:
a reservation teaches which of CalRT's sequences is the job's, the binding which input, `infer` which output, and from
then on nothing is a guess. Calls wait until an outcome takes them; one that nothing can take any more stands without a
rule. Besides, the handles must take every call in its order (checker/conform/handles.py).

A record that begins later than the steps do, or a beginning whose time is not known, is not judged for what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import define, field

from checker.conform.handles import Handles
from checker.conform.words import OUTSIDE, PARTS, USES, Call, classes, language_of, mark, word
from machines.books import Books, Key
from machines.evidence import CALL
from machines.law import Law, Lawful
from machines.rulebook import Effect

__all__ = ["Abi", "Window"]

SHARED = ("", None)
KNOWN = frozenset().union(OUTSIDE, *PARTS.values())
SWEEP_EVERY = 256  # steps, from one look for calls that nothing can take any more to the next


@define(eq=False)
class Window:
    """An effect under way. at_us: when it was begun, None where that is not known: then it is not judged."""

    effect: str
    key: Key | None
    generation: int | None
    at_us: int | None
    step: int


@define(eq=False)
class Abi:
    """next: id of the next call. The rest is what the calls so far have taught."""

    next: int
    handles: Handles | None = None
    last_ns: int = 0
    from_us: int = 0  # before that, calls were not recorded
    calls: dict[int, Call] = field(factory=dict)  # that nothing has taken
    windows: dict[tuple[str, Key | None], Window] = field(factory=dict)
    kv: dict[Key, int] = field(factory=dict)  # by sequence
    inputs: dict[Key, int] = field(factory=dict)  # by job
    outputs: dict[Key, int] = field(factory=dict)
    lengths: dict[Key, int] = field(factory=dict)  # by job, of its sequence when it has run
    device_jobs: dict[int, int] = field(factory=dict)  # by output
    matched: int = 0
    outside: int = 0
    steps: int = 0
    lost: int = 0

    # -- calls ---------------------------------------------------------------------------------------------------------
    def call(self, record: dict[str, Any]) -> str:
        """What is wrong with it, or ""."""
        call = Call(*(record[name] for name in Call._fields))
        if call.id != self.next:
            return f"its number is {call.id}, and that of the next call is {self.next}"
        if call.call not in KNOWN:
            return f"{call.call!r} is no call of the ABI; there are {', '.join(sorted(KNOWN))}"
        if wrong := _arguments(record):
            return wrong
        if call.begin_ns < self.last_ns:
            return "it began before the call before it"
        if wrong := _times(call.begin_ns, call.end_ns, record["begin_us"], record["end_us"]):
            return wrong
        self.next, self.last_ns = call.id + 1, call.begin_ns
        if self.handles is None:
            self.handles = Handles(complete=call.call == "open")
            self.from_us = 0 if call.call == "open" else call.begin_us
        self.calls[call.id] = call
        return self.handles.began(call)

    def returned(self, record: dict[str, Any]) -> str:
        call = self.calls.get(record["returned"])
        if call is None or call.end_ns >= 0 or self.handles is None:
            return f"no call {record['returned']} is under way"
        if record["end_ns"] < call.begin_ns:
            return "it returned before it began"
        changed = {name: record[name] for name in ("handle", "a", "result", "end_ns")}
        self.calls[call.id] = call._replace(**changed)
        self.handles.returned(self.calls[call.id])
        return ""

    def skip(self, record: dict[str, Any]) -> None:
        """Calls were lost: what is under way is not judged, and handles may be in any state."""
        self.lost += record["lost"]
        self.next, self.handles = record["next"], None
        self.calls.clear()
        self._forget()

    def _forget(self) -> None:
        for window in self.windows.values():
            window.at_us = None
        for known in (self.kv, self.inputs, self.outputs, self.lengths, self.device_jobs):
            known.clear()

    # -- steps ---------------------------------------------------------------------------------------------------------
    def begin(self, law: Law, books: Books, at_us: int | None, generation: int | None) -> None:
        """Steps begin, or go on after a gap: calls that are under way by the books were begun before."""
        self.windows.clear()
        self._forget()
        for effect in law.book.effects:
            var, code = effect.call.args[0], effect.value.code
            sort = effect.over.name if effect.over else ""
            place = law.variables[sort].index(var)
            records = books.elements[sort].items() if sort else [(None, books.shared)]
            for key, record in records:
                if record[place] == code:
                    self.windows[sort, key] = Window(effect.name, key, generation, None, -1)
        if at_us is not None:
            self.calls = {i: c for i, c in self.calls.items() if c.begin_us >= at_us}

    def step(
        self, lawful: Lawful, key: Key | None, number: int, at_us: int | None, generation: int | None,
        observed: str | None,
    ) -> str:  # fmt: skip
        """What is wrong with the calls of what it ended, or ""."""
        rule, wrong = lawful.rule, ""
        if rule.outcome:
            window = self.windows.pop(_place(rule.outcome[0], key), None)
            if window is not None:
                said = {observed} if observed is not None else set(rule.outcome[1])
                wrong = self._ended(window, at_us, generation, said)
        if rule.begins:
            place = _place(rule.begins, key)
            self.windows[place] = Window(rule.begins.name, key, generation, at_us, number)
        self.steps += 1
        if not wrong and self.steps % SWEEP_EVERY == 0:
            wrong = self._sweep(at_us)
        return wrong

    def left(self, lawful: Lawful, key: Key | None) -> None:
        """The job's record is of no more use."""
        for known in (self.inputs, self.outputs, self.lengths):
            known.pop(key, None)  # type: ignore[arg-type]

    def _ended(self, window: Window, at_us: int | None, generation: int | None, said: set[str]) -> str:
        until_us = at_us if at_us is not None else self.last_ns
        mine = self._of(window, until_us)
        for call in mine:
            del self.calls[call.id]
        self.matched += len(mine)
        who = f"{window.effect} of {window.key}" if window.key is not None else window.effect
        if window.at_us is None or window.at_us < self.from_us:
            return ""
        text = word(mine) or "none"
        if len({call.thread for call in mine}) > 1:
            return f"the calls of {who} were made by several threads: {text}"
        if not language_of(window.effect, word(mine)):
            return f"the calls of {who} are {text}, which is not their order (begun in step {window.step})"
        may = classes(window.effect, mine, window.generation != generation)
        if not said & may:
            return f"the calls of {who} are {text}: {', '.join(sorted(may))} may be observed, not {', '.join(said)}"
        return self._arguments(window, mine)

    def _sweep(self, at_us: int | None) -> str:
        """A call that ended before the oldest effect under way began, and before this step, can be nobody's."""
        begun = [w.at_us for w in self.windows.values()]
        if at_us is None or None in begun:
            return ""
        oldest_us = min([at_us, *(b for b in begun if b is not None)])
        return self._strays(lambda call: call.end_ns >= 0 and call.end_us < oldest_us)

    def _strays(self, over: Callable[[Call], bool]) -> str:
        for call in list(self.calls.values()):
            if call.call in OUTSIDE and call.end_ns >= 0:
                self.outside += 1
                del self.calls[call.id]
            elif call.call not in OUTSIDE and over(call):
                return f"call {call.id}, {call.call}, stands without a rule: nothing that was under way makes it then"
        return ""

    def end(self, record: dict[str, Any]) -> str:
        """Calls that are left must belong to what is still under way, or have come later."""
        if record["calls"] is not None and record["calls"] != self.next:
            return f"there were calls up to number {record['calls']}, and the last one here is {self.next - 1}"

        def belongs(call: Call) -> bool:
            return any(
                call.call in PARTS[w.effect] and (w.at_us is None or w.at_us <= call.begin_us)
                for w in self.windows.values()
            )

        return self._strays(lambda call: call.begin_us < record["at_us"] and not belongs(call))

    # -- whose calls ---------------------------------------------------------------------------------------------------
    def _of(self, window: Window, until_us: int) -> list[Call]:
        """The calls of an effect, and what they teach."""
        since_us = window.at_us if window.at_us is not None else 0
        mine = [
            c for c in self.calls.values()
            if c.call in PARTS[window.effect] and c.begin_us >= since_us and c.end_ns >= 0 and c.end_us <= until_us
        ]  # fmt: skip
        return list(getattr(self, f"_{window.effect}", self._on_sequence)(window.key, mine))

    def _reserve(self, job: Any, calls: list[Call]) -> Iterator[Call]:
        """Whose first call teaches the sequence: of those that no other sequence has."""
        others = {number for key, number in self.kv.items() if key != job[-1]}
        applied = [c for c in calls if c.call == "apply" and c.a not in others][:1]
        asked = [c for c in calls if c.call == "can_allocate" and (not applied or c.thread == applied[0].thread)][:1]
        if applied:
            self.kv[job[-1]], self.lengths[job] = applied[0].a, applied[0].b
        yield from (*asked, *applied)

    def _prepare(self, job: Any, calls: list[Call]) -> Iterator[Call]:
        bound = [c for c in calls if c.call == "bind_sequence" and c.a == self.kv.get(job[-1], c.a)][:1]
        if bound:
            self.inputs[job] = bound[0].handle
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
        sequence = key[-1] if isinstance(key, tuple) else key
        if sequence in self.kv:
            yield from [c for c in calls if c.a == self.kv[sequence]][:1]

    def _reset(self, nothing: None, calls: list[Call]) -> list[Call]:
        return calls

    _configure = _reset

    def _golden(self, nothing: None, calls: list[Call]) -> list[Call]:
        """One thread makes all of them; it begins with a reservation."""
        thread = next((c.thread for c in calls if c.call == "can_allocate"), None)
        return [c for c in calls if c.thread == thread]

    # -- arguments -----------------------------------------------------------------------------------------------------
    def _arguments(self, window: Window, calls: list[Call]) -> str:
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


def _arguments(record: dict[str, Any]) -> str:
    for name, users in USES.items():
        if record[name] and record["call"] not in users:
            return f"{name} is {record[name]!r}, and {record['call']} has no such argument"
    return ""


def _times(begin_ns: int, end_ns: int, begin_us: int, end_us: int) -> str:
    if (end_ns < 0) != (end_us < 0) or (end_ns < 0 and (end_ns, end_us) != (-1, -1)):
        return "one of its clocks says that it returned, and the other that it did not"
    if 0 <= end_ns < begin_ns or 0 <= end_us < begin_us:
        return "it returned before it began"
    return ""


def _place(effect: Effect, key: Key | None) -> tuple[str, Key | None]:
    return (effect.over.name, key) if effect.over else SHARED


assert set(Call._fields) <= set(CALL)
