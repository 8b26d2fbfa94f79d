"""The order of calls in debug builds, against the tables of `machines/abi.py`: every state with every event.

The tables say what is possible; the shim must refuse the rest, in words, and let the possible through. A state is
reached by the shortest way that the table itself offers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from other_sdk import Bench, OtherSdk, bench, made

from machines.abi import DEVICE, INPUT, OUTPUT, TABLES
from machines.errors import code_named
from machines.table import Table
from runtime.calrt import Library

CALL_ORDER = code_named("ShimCallOrder").number

Do = Callable[[Bench], int]


def ready_input(b: Bench) -> Any:
    other = made(b.device.input(b.calbin, 0))
    assert (other.map_buf("tokens", b.memory), other.set_csr("cur", 1)) == (0, 0)
    return other


def ready_output(b: Bench) -> Any:
    other = made(b.device.output(b.calbin, 0))
    assert other.map_buf("logits", b.memory) == 0
    return other


# Each event of each table as a call. An infer needs a partner that is ready; `retire` and `orphan` are what follows
# from another handle's call.
DEVICE_EVENTS: dict[str, Do] = {
    "configure": lambda b: b.device.configure(b.calbin),
    "enable_parallel": lambda b: b.device.enable_parallel_mode(True),
    "infer": lambda b: b.device.infer(b.calbin, 0, ready_input(b), ready_output(b)),
    "reset_ccu": lambda b: b.device.reset_ccu(),
    "reset_configuration": lambda b: b.device.reset_configuration(),
    "reset": lambda b: b.device.reset(),
    "close": lambda b: b.device.release(),
}
INPUT_EVENTS: dict[str, Do] = {
    "map_buf": lambda b: b.input.map_buf("tokens", b.memory),
    "slice_tensor": lambda b: b.input.slice_tensor("tokens", 0, 1),
    "set_csr": lambda b: b.input.set_csr("cur", 1),
    "bind_sequence": lambda b: b.input.bind_sequence(1),
    "infer": lambda b: b.device.infer(b.calbin, 0, b.input, b.output),
    "retire": lambda b: b.output.wait()[0],
    "orphan": lambda b: b.device.reset_ccu(),
    "undo_slice": lambda b: b.input.undo_slice("tokens"),
    "destroy": lambda b: b.input.release(),
}
OUTPUT_EVENTS: dict[str, Do] = {
    "map_buf": lambda b: b.output.map_buf("logits", b.memory),
    "slice_tensor": lambda b: b.output.slice_tensor("logits", 0, 1),
    "infer": lambda b: b.device.infer(b.calbin, 0, ready_input(b), b.output),
    "wait": lambda b: b.output.wait()[0],
    "orphan": lambda b: b.device.reset_ccu(),
    "get_status": lambda b: b.output.get_status()[0],
    "tensor_size": lambda b: b.output.tensor_size("logits")[0],
    "undo_slice": lambda b: b.output.undo_slice("logits"),
    "destroy": lambda b: b.output.release(),
}
EVENTS: dict[str, dict[str, Do]] = {DEVICE.name: DEVICE_EVENTS, INPUT.name: INPUT_EVENTS, OUTPUT.name: OUTPUT_EVENTS}
BIRTH = {DEVICE.name: "open", INPUT.name: "create", OUTPUT.name: "create"}  # by making the bench
FOLLOWING = {"retire", "orphan"}


def ways(table: Table) -> dict[str, list[str]]:
    """The shortest list of events from birth to each state that has a handle."""
    born = table.entry(table.initial, BIRTH[table.name])
    assert born is not None
    found: dict[str, list[str]] = {born.target.name: []}
    states = deque([born.target])
    while states:
        state = states.popleft()
        for event in table.events:
            entry = table.entry(state, event)
            if entry and entry.target != table.initial and entry.target.name not in found:
                found[entry.target.name] = [*found[state.name], event]
                states.append(entry.target)
    return found


CASES = [
    (table, state, event)
    for table in TABLES
    for state in table.states
    if state != table.initial
    for event in table.events
    if event != BIRTH[table.name]
]


def test_every_state_is_reached_and_every_event_is_a_call() -> None:
    """Negative control of the cases: a table that grows is tested whole."""
    for table in TABLES:
        assert {s.name for s in table.states} - {table.initial.name} == set(ways(table))
        assert set(table.events) - {BIRTH[table.name]} == set(EVENTS[table.name])


@contextmanager
def in_state(library: Library, sdk: OtherSdk, table: Table, state: str) -> Iterator[Bench]:
    with bench(library) as b:
        if table is DEVICE:
            assert b.device.reset() == 0  # the bench has configured it
        if table is INPUT:
            assert b.output.map_buf("logits", b.memory) == 0  # its partner is ready
        for event in ways(table)[state]:
            assert EVENTS[table.name][event](b) == 0, f"{event}: {library.last_error()}"
        yield b
        for handle in b.handles().values():
            handle._released = True  # some may not be released in the state they are in; the process ends soon


@pytest.mark.parametrize(("table", "state", "event"), CASES, ids=lambda x: getattr(x, "name", x))
def test_the_table_is_enforced(debug_over_other: Library, sdk: OtherSdk, table: Table, state: Any, event: str) -> None:
    entry = table.entry(state, event)
    with in_state(debug_over_other, sdk, table, state.name) as b:
        if event in FOLLOWING and entry is None:
            return  # nothing to call: it only happens to what is in flight
        code = EVENTS[table.name][event](b)
        text = debug_over_other.last_error()
        if entry is not None:
            assert code == 0, text
            return
        assert code == CALL_ORDER
        kind = table.name.removeprefix("abi_")
        assert f"{kind} handle {getattr(b, kind).number & 0xFFFFFFFF} is {state.name}: {event} is not allowed" in text
        allowed = [e for e in table.events if table.entry(state, e)]
        assert text.endswith(f"allowed are {', '.join(allowed)}")


@pytest.mark.parametrize(("table", "state", "event"), CASES, ids=lambda x: getattr(x, "name", x))
def test_the_state_afterwards_is_the_tables(
    debug_over_other: Library, sdk: OtherSdk, table: Table, state: Any, event: str
) -> None:
    """After the event, and after a refusal, exactly the events of the table's next state are possible: one that is
    impossible there is tried, if there is one, for its text names the state."""
    entry = table.entry(state, event)
    after = state if entry is None else entry.target
    if after == table.initial:
        return  # released
    impossible = next((e for e in table.events if not table.entry(after, e) and e in EVENTS[table.name]), None)
    if impossible is None or impossible in FOLLOWING or (event in FOLLOWING and entry is None):
        return
    with in_state(debug_over_other, sdk, table, state.name) as b:
        EVENTS[table.name][event](b)
        assert EVENTS[table.name][impossible](b) == CALL_ORDER
        assert f" is {after.name}: {impossible} is not allowed" in debug_over_other.last_error()


def test_a_call_that_fails_moves_nothing(debug_over_other: Library, sdk: OtherSdk) -> None:
    with in_state(debug_over_other, sdk, INPUT, "Programmed") as b:
        sdk.script("infer", number=17)
        assert INPUT_EVENTS["infer"](b) == 17
        assert b.input.slice_tensor("tokens", 0, 1) == CALL_ORDER
        assert " is Programmed: " in debug_over_other.last_error()
        sdk.clear()
        assert INPUT_EVENTS["infer"](b) == 0
        for code in (13, 18):
            sdk.script("CalrtOutputBuf::Wait", number=code)
            assert b.output.wait()[0] == code
            assert b.input.set_csr("cur", 1) == CALL_ORDER
            assert " is InFlight: " in debug_over_other.last_error()
        sdk.script("VirtualDevice::Reset", number=25)
        assert b.device.reset() == 25
        assert b.input.undo_slice("tokens") == CALL_ORDER, "a reset that failed orphans nothing"


def test_a_refused_call_does_not_reach_calrt(debug_over_other: Library, sdk: OtherSdk) -> None:
    with in_state(debug_over_other, sdk, OUTPUT, "Empty") as b:
        sdk.arguments("CalrtOutputBuf::Wait")
        assert b.output.wait()[0] == CALL_ORDER
        assert sdk.arguments("CalrtOutputBuf::Wait") is None


def test_a_reset_orphans_this_devices_jobs_only(debug_over_other: Library, sdk: OtherSdk) -> None:
    with (
        in_state(debug_over_other, sdk, INPUT, "InFlight") as mine,
        in_state(debug_over_other, sdk, INPUT, "InFlight") as other,
    ):
        assert mine.device.reset_ccu() == 0
        assert mine.input.undo_slice("tokens") == CALL_ORDER, "it is dead (A9)"
        assert " is Orphaned: " in debug_over_other.last_error()
        assert other.input.undo_slice("tokens") == CALL_ORDER
        assert " is InFlight: " in debug_over_other.last_error()
        assert mine.output.wait()[0] == 0, "a late completion is allowed and changes nothing"
        assert mine.output.map_buf("logits", mine.memory) == CALL_ORDER
        assert " is Orphaned: " in debug_over_other.last_error()


def test_a_release_build_refuses_nothing(over_other: Library, sdk: OtherSdk) -> None:
    """Negative control: what is refused above is refused by the order alone."""
    with bench(over_other) as b:
        assert b.output.wait()[0] == 0
        assert b.output.get_status()[0] == 0
        assert b.device.infer(b.calbin, 0, b.input, b.output) == 0
        assert b.input.map_buf("tokens", b.memory) == 0
