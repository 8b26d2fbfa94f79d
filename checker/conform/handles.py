"""The handles of the ABI, moved through their tables (machines/abi.py) by the calls of a trace.

Theory. A call is judged when it began, and moves its handle when it returned: in between others may have begun. The
stamps tell the order, so ends wait until a call that began later is seen. Of a trace that begins in the middle the
handles are there already, in whatever state: each is then a set of possible states, which calls make smaller; empty, it
is a call that the order does not allow.
"""

from __future__ import annotations

import heapq

from attrs import define, field

from checker.conform.words import Call, succeeded
from machines.abi import DEVICE, INPUT, OUTPUT
from machines.table import Table

__all__ = ["Handles"]

TABLES = {table.name: table for table in (DEVICE, INPUT, OUTPUT)}
EVENTS: dict[str, tuple[Table, str]] = {
    "open": (DEVICE, "open"), "configure": (DEVICE, "configure"), "enable_parallel": (DEVICE, "enable_parallel"),
    "reset_ccu": (DEVICE, "reset_ccu"), "reset_configuration": (DEVICE, "reset_configuration"),
    "reset": (DEVICE, "reset"), "close": (DEVICE, "close"),
    "create_input": (INPUT, "create"), "bind_sequence": (INPUT, "bind_sequence"), "set_csr": (INPUT, "set_csr"),
    "slice_tensor": (INPUT, "slice_tensor"), "undo_slice": (INPUT, "undo_slice"),
    "create_output": (OUTPUT, "create"), "wait": (OUTPUT, "wait"), "get_status": (OUTPUT, "get_status"),
    "tensor_size": (OUTPUT, "tensor_size"),
}  # fmt: skip
EITHER = {"map_buf": "map_buf", "destroy": "destroy"}  # of an input or of an output
RESETS = frozenset({"reset_ccu", "reset_configuration", "reset"})
NAMING = frozenset({"infer", "slice_tensor", "undo_slice", "tensor_size"})  # a model, or a tensor that is mapped
OF_KV = frozenset({"apply", "can_allocate", "tokens_per_unit", "units_total", "destroy_kv"})
MADE_BY = frozenset({"create_kv", "create_input", "create_output"})  # the device
BEGINNINGS = frozenset({"open", "create_input", "create_output"})

Possible = set[tuple[str, str]]
"""Pairs of a table and one of its states."""


@define(eq=False)
class Handles:
    """complete: the trace begins with the device's opening."""

    complete: bool
    states: dict[int, Possible] = field(factory=dict)
    flights: dict[int, int] = field(factory=dict)  # by output: the input of its job
    device: int = 0
    ends: list[tuple[int, int, Call]] = field(factory=list)
    names: dict[int, set[str]] = field(factory=dict)  # by handle that was seen made: its model and mapped tensors
    managers: set[int] = field(factory=set)  # KvManagers

    def began(self, call: Call) -> str:
        """What is wrong with it, or ""."""
        self._returned_before(call.begin_ns)
        if wrong := self._strange(call):
            return wrong
        for handle, event in self._moves(call):
            possible = self._possible(handle, call.call)
            left = {(t, s) for t, s in possible if _after(t, s, event) is not None}
            if not left:
                are = " or ".join(sorted(f"{t} {s}" for t, s in possible)) or "not there"
                return f"{event} of handle {handle} is not possible: it is {are} (machines/abi.py)"
            self.states[handle] = left
        if call.end_ns >= 0:
            self.returned(call)
        return ""

    def _strange(self, call: Call) -> str:
        """A name or a manager that nobody has made."""
        names = [self.names.get(handle) for handle in (call.handle, *([call.other] if call.call == "infer" else []))]
        if call.call in NAMING and any(known is not None and call.text not in known for known in names):
            return f"{call.text!r} is no name of handle {call.handle}"
        if self.device and call.call in MADE_BY and call.other != self.device:
            return f"it is made of {call.other}, and the device is {self.device}"
        if self.complete and call.call in OF_KV and call.handle not in self.managers:
            return f"{call.handle} is no KvManager"
        return ""

    def returned(self, call: Call) -> None:
        heapq.heappush(self.ends, (call.end_ns, call.id, call))

    def _returned_before(self, ns: int) -> None:
        while self.ends and self.ends[0][0] <= ns:
            call = heapq.heappop(self.ends)[2]
            if succeeded(call):
                self._move(call)

    def _move(self, call: Call) -> None:
        for handle, event in self._moves(call):
            self._moved(handle, event, call.call)
        if call.call in BEGINNINGS:
            self.states[call.handle] = {(EVENTS[call.call][0].name, _after_creation(call.call))}
        if call.call in ("create_input", "create_output"):
            self.names[call.handle] = {call.text}
        if call.call == "map_buf" and call.handle in self.names:
            self.names[call.handle].add(call.text)
        if call.call == "create_kv":
            self.managers.add(call.handle)
        if call.call == "open":
            self.device = call.handle
        if call.call == "infer":
            self.flights[call.other] = call.handle
        if call.call == "wait" and call.handle in self.flights:
            self._moved(self.flights.pop(call.handle), "retire", call.call)
        if call.call in RESETS:
            for handle in tuple(self.states):
                self._moved(handle, "orphan", "")
            self.flights.clear()
        if call.call in ("destroy", "close"):
            self.states.pop(call.handle, None)
            self.names.pop(call.handle, None)
        self.managers -= {call.handle} if call.call == "destroy_kv" else set()

    def _moved(self, handle: int, event: str, call: str) -> None:
        """Where the event is possible: an orphan is one only where something is in flight."""
        found = {(t, after) for t, s in self._possible(handle, call) if (after := _after(t, s, event)) is not None}
        if event == "orphan" and found:
            found |= {(t, s) for t, s in self.states[handle] if _after(t, s, event) is None}
        if found:
            self.states[handle] = found

    def _moves(self, call: Call) -> list[tuple[int, str]]:
        if call.call == "infer":
            return [(call.handle, "infer"), (call.other, "infer"), *([(self.device, "infer")] if self.device else [])]
        if call.call in BEGINNINGS:
            return []
        if call.call in EITHER:
            return [(call.handle, EITHER[call.call])]
        return [(call.handle, EVENTS[call.call][1])] if call.call in EVENTS else []

    def _possible(self, handle: int, call: str) -> Possible:
        if handle in self.states:
            return self.states[handle]
        if self.complete or not call:
            return set()
        table = EVENTS[call][0] if call in EVENTS else None
        tables = [table] if table else [INPUT, OUTPUT]
        return {(t.name, s.name) for t in tables for s in t.states if s not in t.pseudo}


def _after(table: str, state: str, event: str) -> str | None:
    entry = TABLES[table].entry(TABLES[table].states[state], event)
    return None if entry is None else entry.target.name


def _after_creation(call: str) -> str:
    table, event = EVENTS[call]
    return _after(table.name, table.initial.name, event) or ""
