"""A client removes a sequence (`seq_rm`, §3): the one call of CalRT that a client asks for itself.

Theory. The rules say whether it may be removed now, and whether that takes a call or the device holds nothing of it. A
call is made by a thread of its own, because it may hang; then its client waits until the rulebook has made a drain of
that and then Failed, and no longer (F36).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from machines.rulebook import Effect
from runtime.actors import Call, Outcomes
from runtime.compiled import Rejected
from runtime.crew import thread
from runtime.engine import Engine
from runtime.prepare import RequestRefused, check_sequence
from runtime.records import Records
from runtime.status import Status, StatusKind

__all__ = ["Removals"]


class Removals:
    """Thread-safe. calls, died: as those of Crew. longest_ms: of a client's wait."""

    def __init__(
        self, engine: Engine, records: Records, calls: Mapping[str, Callable[[Any], str]], outcomes: Outcomes,
        longest_ms: int, died: Callable[[str, str, Exception], None],
    ) -> None:  # fmt: skip
        self._engine, self._records, self._calls, self._outcomes = engine, records, calls, outcomes
        self._longest_ms, self._died = longest_ms, died
        rules = engine.program.rules
        self._removes = rules["client.remove"], rules["client.discard"]

    def remove(self, seq_id: int) -> Status:
        """Its KV is free when this is OK; so it is when nobody knows the sequence."""
        removal = self.removal(seq_id)
        try:
            call = next(removal)
            while True:
                call = removal.send(self._made_aside(call.effect, call.element))
        except StopIteration as ended:
            status: Status = ended.value
            return status

    def removal(self, seq_id: int) -> Generator[Call, str, Status]:
        """The same, for whoever makes the call and reports it; sent is what was observed, "" if it has not returned."""
        try:
            seq_id = check_sequence(seq_id)
        except RequestRefused as wrong:
            return Status(kind=StatusKind.INVALID_ARGUMENT, stage="seq_rm", text=str(wrong))
        if (sequence := self._records.sequence(seq_id)) is None:
            return Status(kind=StatusKind.OK, seq_id=seq_id)
        try:
            rule = self._engine.fire(self._removes, sequence)
        except Rejected as rejected:
            return refused(seq_id, StatusKind.UNAVAILABLE, rejected.status)
        if rule is None:
            return refused(seq_id, StatusKind.UNAVAILABLE, "the device is not serving")
        if rule.rule.begins is not None and (yield Call(rule.rule.begins, sequence)) != "ok":
            return refused(seq_id, StatusKind.INTERNAL, "what the device holds is not known")
        self._records.forget_sequence(seq_id, sequence)
        return Status(kind=StatusKind.OK, seq_id=seq_id)

    def _made_aside(self, effect: Effect, sequence: Any) -> str:
        """What was observed; "" if it has not returned."""
        said: list[str] = []

        def make() -> None:
            try:
                observed = self._calls[effect.name](sequence)
                self._engine.fire(self._outcomes.of(effect, observed), sequence, observed)
                said.append(observed)
            except Exception as error:
                self._died(effect.name, effect.name, error)

        caller = thread(effect.name, make)
        caller.start()
        caller.join(self._longest_ms / 1000)
        return said[0] if said else ""


def refused(seq_id: int, kind: StatusKind, text: str) -> Status:
    """It is as it was, or is not known; the text says which."""
    return Status(kind=kind, stage="seq_rm", text=text, seq_id=seq_id)
