"""The ABI trace against the steps: each effect's calls lie between its beginning and its outcome, and say what it says.

Theory. A rule begins a call of the protocol, and another takes what it brought back; in between, by the host's clock,
lie the calls of the ABI that it stands for (checker/conform/words.py). Calls wait until an outcome takes those that are
its own (checker/conform/learnt.py); one that nothing can take any more stands without a rule. Besides, the handles must
take every call in its order (checker/conform/handles.py).

A record that begins later than the steps do is not judged for what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define, field

from checker.conform.form import shown
from checker.conform.handles import Handles
from checker.conform.learnt import Learnt, Window
from checker.conform.words import OUTSIDE, PARTS, USES, Call, classes, language_of, word
from machines.books import Books, Key
from machines.evidence import CALL
from machines.law import Law, Lawful
from machines.rulebook import Effect

__all__ = ["Abi"]

SHARED = ("", None)
KNOWN = frozenset().union(OUTSIDE, *PARTS.values())
SWEEP_EVERY = 256  # steps, from one look for calls that nothing can take any more to the next


@define(eq=False)
class Abi:
    """next: id of the next call. The rest is what the calls so far have taught."""

    next: int
    handles: Handles | None = None
    last_ns: int = 0
    from_us: int = 0  # before that, calls were not recorded
    calls: dict[int, Call] = field(factory=dict)  # that nothing has taken
    windows: dict[tuple[str, Key | None], Window] = field(factory=dict)
    learnt: Learnt = field(factory=Learnt)
    matched: int = 0
    outside: int = 0
    steps: int = 0
    partial: bool = False  # it began in the middle: whose calls they are may have to be learnt first
    unclaimed_us: int = 0  # until then calls may be those of effects that are not judged

    # -- calls ---------------------------------------------------------------------------------------------------------
    def call(self, record: dict[str, Any]) -> str:
        """What is wrong with it, or ""."""
        call = Call(*(record[name] for name in Call._fields))
        if call.id != self.next:
            return f"its number is {call.id}, and that of the next call is {self.next}"
        if call.call not in KNOWN:
            return f"{shown(call.call)} is no call of the ABI; there are {', '.join(sorted(KNOWN))}"
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
            self.partial = self.partial or call.call != "open"
        if call.call in OUTSIDE and call.end_ns >= 0:
            self.outside += 1
        else:
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
        self.next, self.handles, self.partial = record["next"], None, True
        self.calls.clear()
        self._forget()

    def _forget(self) -> None:
        for window in self.windows.values():
            window.at_us = None
        self.learnt.forget()

    # -- steps ---------------------------------------------------------------------------------------------------------
    def begin(self, law: Law, books: Books, at_us: int | None, generation: int | None) -> None:
        """Steps begin, or go on after a gap: calls that are under way by the books were begun before."""
        self.windows.clear()
        self.partial = self.partial or at_us is not None
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
        return wrong

    def tidy(self, books: Books, at_us: int | None) -> str:
        """Now and then, after a step: what is of no more use goes; a call that stands without a rule, or ""."""
        if self.steps % SWEEP_EVERY:
            return ""
        self.learnt.keep(books)
        return self._sweep(at_us)

    def _ended(self, window: Window, at_us: int | None, generation: int | None, said: set[str]) -> str:
        until_us = at_us if at_us is not None else self.last_ns
        if window.at_us is None or window.at_us < self.from_us or (self.partial and not self.learnt.is_known(window)):
            self.unclaimed_us = max(self.unclaimed_us, until_us)
            return ""
        mine = self.learnt.of(window, self.calls.values(), until_us)
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
        return self.learnt.arguments(window, mine)

    def _sweep(self, at_us: int | None) -> str:
        """A call that ended before the oldest effect under way began, and before this step, can be nobody's."""
        begun = [w.at_us for w in self.windows.values()]
        if at_us is None or None in begun:
            return ""
        oldest_us = min([at_us, *(b for b in begun if b is not None)])
        return self._strays(lambda call: call.end_ns >= 0 and call.end_us < oldest_us)

    def _strays(self, over: Callable[[Call], bool]) -> str:
        for call in list(self.calls.values()):
            old = call.begin_us <= self.unclaimed_us and over(call)
            if call.end_ns >= 0 and (call.call in OUTSIDE or old):
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


def _arguments(record: dict[str, Any]) -> str:
    for name, users in USES.items():
        if record[name] and record["call"] not in users:
            return f"{name} is {shown(record[name])}, and {record['call']} has no such argument"
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
