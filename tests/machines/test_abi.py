"""The call-order tables: the way of a job through its handles, what must be refused, and the generated header."""

from __future__ import annotations

import re

import pytest

from machines.abi import DEVICE, INPUT, OUTPUT, TABLES
from machines.protocol.params import FACTS
from machines.table import Table
from runtime.tables import HEADER, c_header


def walk(table: Table, *events: str) -> str:
    """The state after `events`; "impossible: ..." where one is."""
    state = table.initial
    for event in events:
        entry = table.entry(state, event)
        if entry is None:
            return f"impossible: {event} in {state.name}"
        state = entry.target
    return state.name


PREPARED = ("create", "map_buf", "map_buf", "slice_tensor", "slice_tensor", "bind_sequence", "set_csr", "set_csr")


def test_the_way_of_a_job() -> None:
    """§6.3 to §6.5, twice through the same handles: nothing is created a second time (S07)."""
    job = ("infer", "retire", "undo_slice", "undo_slice")
    again = ("slice_tensor", "slice_tensor", "set_csr", "set_csr")
    assert walk(INPUT, *PREPARED, *job, *again, *job, "destroy") == "Absent"
    taken = ("infer", "wait", "get_status", "tensor_size")
    assert walk(OUTPUT, "create", "map_buf", *taken, *taken, "destroy") == "Absent"
    assert walk(DEVICE, "open", "configure", "infer", "reset", "configure", "infer", "close") == "Closed"


@pytest.mark.parametrize(
    ("table", "events", "why"),
    [
        (INPUT, ("create", "map_buf", "infer"), "no CSR was set (FI02)"),
        (INPUT, (*PREPARED, "infer", "map_buf"), "the device reads it (§5.1-4)"),
        (INPUT, (*PREPARED, "infer", "undo_slice"), "the device reads it"),
        (INPUT, (*PREPARED, "infer", "destroy"), "the device reads it (§5.1-7)"),
        (INPUT, (*PREPARED, "infer", "infer"), "one job at a time has it (§5.1-3)"),
        (INPUT, (*PREPARED, "infer", "retire", "infer"), "its CSRs belong to the job before"),
        (OUTPUT, ("create", "infer"), "nothing is mapped"),
        (OUTPUT, ("create", "map_buf", "wait"), "nothing was submitted (S04)"),
        (OUTPUT, ("create", "map_buf", "infer", "wait", "undo_slice"), "the status was not read (§6.5)"),
        (OUTPUT, ("create", "map_buf", "infer", "wait", "infer"), "the status was not read (§6.5)"),
        (OUTPUT, ("create", "map_buf", "infer", "destroy"), "the device writes it"),
        (OUTPUT, ("create", "map_buf", "infer", "wait", "get_status", "wait"), "it was waited for already"),
        (DEVICE, ("open", "infer"), "it is not configured (FI01)"),
        (DEVICE, ("open", "configure", "configure"), "it is configured"),
        (DEVICE, ("open", "configure", "reset", "infer"), "a reset takes the configuration away"),
    ],
)  # fmt: skip
def test_what_is_impossible(table: Table, events: tuple[str, ...], why: str) -> None:
    *before, last = events
    assert not walk(table, *before).startswith("impossible"), "the way there is possible"
    assert walk(table, *events).startswith(f"impossible: {last}"), why


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_no_handle_in_flight_can_be_destroyed_or_changed(table: Table) -> None:
    flying = [s for s in table.states if s.name == "InFlight"]
    for state in flying:
        allowed = {e for e in table.events if table.entry(state, e)}
        assert allowed <= {"retire", "orphan", "wait", "get_status"}


def test_the_generated_header_is_current() -> None:
    assert HEADER.read_text(encoding="utf-8") == c_header(), "run `python -m runtime.tables`"


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_the_generated_table_is_the_table(table: Table) -> None:
    """Read back by a few lines that know nothing of how it was printed."""
    text = HEADER.read_text(encoding="utf-8")
    body = re.search(rf"{table.name}_next\[\d+\]\[\d+\] = {{(.*?)\n}};", text, re.S)
    assert body
    rows = [[int(n) for n in re.findall(r"-?\d+", row)] for row in re.findall(r"{([^}]*)}", body[1])]
    for state, row in zip(table.states, rows, strict=True):
        for event, target in zip(table.events, row, strict=True):
            entry = table.entry(state, event)
            assert target == (entry.target.value if entry else -1), f"{state.name} {event}"


def test_every_vendor_fact_is_in_the_header() -> None:
    text = HEADER.read_text(encoding="utf-8")
    assert re.findall(r'X\((\w+), "', text) == [f.name for f in FACTS]
