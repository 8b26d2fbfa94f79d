"""Every table agrees with the `transitions` library, an oracle that we did not write, in every state for every event:

goto: same target; ignore: an internal transition, the state is unchanged and nothing is raised; reject and impossible:
MachineError, and the state is unchanged. Events are triggered through the machine, never as methods of a model.
"""

import pytest
import transitions
from attrs import define, evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import ewd840, two_phase_commit
from machines.expr import State
from machines.protocol import RULEBOOK
from machines.table import Ignore, Reject, Row, Table

TABLES = {f"{b.name}.{t.name}": t for b in (RULEBOOK, two_phase_commit.RULEBOOK, ewd840.RULEBOOK) for t in b.tables}


@define(slots=True)
class Token:
    """A model that cannot be polluted: it has room for a state and for nothing else."""

    state: str


def disagreements(table: Table, machine: transitions.Machine) -> list[str]:
    """Where the machine does something else than the table says, one line per cell."""
    return [
        f"{state.name}.{event}: the table says {wanted}, transitions does {got}"
        for state in table.states
        for event in table.events
        if (wanted := by_table(table, state, event)) != (got := by_transitions(machine, state, event))
    ]


def by_table(table: Table, state: State, event: str) -> str:
    match table.kind(state, event):
        case "goto":
            return f"goto {table.entry(state, event).target.name}"
        case "ignore":
            return f"internal, stays {state.name}"
        case _:
            return f"error, stays {state.name}"


def by_transitions(machine: transitions.Machine, state: State, event: str) -> str:
    token = Token(state.name)
    try:
        taken = machine.events[event].trigger(token)
    except transitions.MachineError:
        return f"error, stays {token.state}"
    assert taken is True
    (transition,) = machine.events[event].transitions[state.name]
    return f"internal, stays {token.state}" if transition.dest is None else f"goto {token.state}"


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_table_agrees_with_transitions(table):
    machine = table.machine()
    assert disagreements(table, machine) == []
    assert list(machine.states) == [s.name for s in table.states]
    assert machine.initial == table.initial.name
    assert set(machine.events) == set(table.events), "auto transitions, or an event is missing"
    assert machine.models == []


def test_protocol_has_every_machine_of_the_design():
    assert {"job", "kv_txn", "slot", "sequence", "answer", "device", "admission", "shutdown"} <= {
        t.name for t in RULEBOOK.tables
    }


# -- random tables ------------------------------------------------------------------------------------------------
KINDS = ("goto", "ignore", "reject", "impossible")


@st.composite
def tables(draw) -> Table:
    """Any well-formed table of up to 5 states and 4 free events: a tree of rows makes each state reachable, every other
    cell is anything."""
    states = State("Random", [f"S{n}" for n in range(draw(st.integers(1, 5)))])
    members = list(states)
    tree = {(members[draw(st.integers(0, n - 1))], f"go{n}"): members[n] for n in range(1, len(members))}
    rows = [Row(source, event, target) for (source, event), target in tree.items()]
    events = [f"e{n}" for n in range(draw(st.integers(1, 4)))] + [event for _, event in tree]
    for event in events:
        for source in members:
            if (source, event) not in tree:
                rows += cell(draw(st.sampled_from(KINDS)), source, event, draw(st.sampled_from(members)))
    return Table("random", states, members[0], rows, final=members)


def cell(kind: str, source: State, event: str, target: State) -> list[Row | Ignore | Reject]:
    match kind:
        case "goto":
            return [Row(source, event, target)]
        case "ignore":
            return [Ignore(source, event, why="drawn")]
        case "reject":
            return [Reject(source, event, status="Drawn", why="drawn")]
    return []


@settings(max_examples=150, deadline=None)
@given(tables())
def test_random_table_agrees_with_transitions(table):
    assert disagreements(table, table.machine()) == []


# -- negative control -----------------------------------------------------------------------------------------------
def differently(table: Table, entry, kind: str, target: State) -> Table:
    """The table with one cell changed; it is allowed to have traps and unreachable states."""
    changed = evolve(table)
    entries = {k: v for k, v in table.entries.items() if v is not entry}
    if kind != "impossible":
        entries[entry.source, entry.event] = evolve(entry, kind=kind, target=target)
    object.__setattr__(changed, "entries", entries)
    return changed


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_any_changed_cell_is_seen(table):
    for entry in table.entries.values():
        others = [s for s in table.states if s is not entry.target]
        changes = {
            "goto": [(kind, entry.source) for kind in ("ignore", "impossible")] + [("goto", s) for s in others],
            "ignore": [("impossible", entry.source)] + [("goto", s) for s in table.states],
            "reject": [("ignore", entry.source)] + [("goto", s) for s in table.states],
        }
        for kind, target in changes[entry.kind]:
            machine = differently(table, entry, kind, target).machine()
            seen = disagreements(table, machine)
            assert len(seen) == 1, f"{entry.id} as {kind} to {target}: {seen}"
            assert seen[0].startswith(f"{entry.source.name}.{entry.event}:")


def test_auto_transitions_would_be_seen():
    table = two_phase_commit.TRANSACTION
    machine = transitions.Machine(**{**table.machine_arguments(), "auto_transitions": True})
    assert set(machine.events) != set(table.events)


def test_token_cannot_be_polluted():
    with pytest.raises(AttributeError):
        Token("Init").trigger = None
