"""The calls of the ABI as records of a journal: the simulator's trace, read as it grows.

Theory. The trace is a ring in the device; whoever reads often enough misses nothing. A reader sees calls that have not
returned. All that is new is read first, and only then are those asked once more: so a call that is written as not
returned has returned after every call that is written with it has begun, and the order of beginnings and ends can be
told from their stamps alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runtime.calrt import Library
from runtime.simulator import Call, NotSimulated, Simulator

__all__ = ["TAIL", "CallLog", "last_calls"]

TAIL = 2000  # calls in an incident's file


class CallLog:
    """The calls from number `start` on."""

    def __init__(self, simulator: Simulator, start: int) -> None:
        self._simulator, self.start, self.next = simulator, start, start
        self._open: set[int] = set()  # written as not returned

    def drain(self) -> Iterator[dict[str, Any]]:
        """What is new: calls that returned since, and calls that began."""
        found = self._simulator.trace(self.next)
        for number in sorted(self._open):
            call = self._again(number)
            if call is None or call.end_ns >= 0:
                self._open.discard(number)
            if call is not None and call.end_ns >= 0:
                yield _returned(call)
        if found and found[0].number > self.next:
            yield {"lost": found[0].number - self.next, "next": found[0].number}
        for call in found:
            now = call if call.end_ns >= 0 else self._again(call.number) or call
            if now.end_ns < 0:
                self._open.add(now.number)
            self.next = now.number + 1
            yield _record(now)

    def _again(self, number: int) -> Call | None:
        """None: it was dropped."""
        return next((c for c in self._simulator.trace(number, 1) if c.number == number), None)


def last_calls(library: Library, device: int, most: int = TAIL) -> list[dict[str, Any]] | None:
    """The last calls; None where CalRT keeps no record of them: it is not the simulator."""
    try:
        simulator = Simulator.beside(library, device)
    except NotSimulated:
        return None
    found = list(CallLog(simulator, max(0, simulator.calls_total() - most)).drain())
    return found[1:] if found and "lost" in found[0] else found  # fewer are kept


def _record(call: Call) -> dict[str, Any]:
    return {
        "call": call.call, "id": call.number, "thread": call.thread, "handle": call.handle, "other": call.other,
        "a": call.a, "b": call.b, "text": call.text, "result": call.result, "begin_us": call.begin_us,
        "end_us": call.end_us, "begin_ns": call.begin_ns, "end_ns": call.end_ns,
    }  # fmt: skip


def _returned(call: Call) -> dict[str, Any]:
    return {
        "returned": call.number, "handle": call.handle, "a": call.a, "result": call.result, "end_us": call.end_us,
        "end_ns": call.end_ns,
    }  # fmt: skip
