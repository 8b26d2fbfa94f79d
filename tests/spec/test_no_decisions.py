"""Decisions are rules: outside of the engine nothing compares a state or changes a variable of the protocol."""

from __future__ import annotations

from pathlib import Path

import pytest
from decisions import NO_RECORDS, STATES, decisions

RUNTIME = Path(__file__).parents[2] / "runtime"
THE_ENGINE = {"engine.py", "compiled.py"}  # compiles and fires the rules
IMPORT = "from machines.job import JobState\n"


@pytest.mark.shows("§5.2.lifecycle", "§5.2.admission", "§5.2.pool", "§5.2.submit", "§5.2.completion")
def test_nothing_but_the_engine_decides() -> None:
    files = {f.relative_to(RUNTIME).as_posix(): f for f in RUNTIME.rglob("*.py")}
    assert files.keys() >= THE_ENGINE | {"executor.py", "calls.py", "actors.py", "buffers.py", "kv.py"}
    found = {name: decisions(f.read_text(encoding="utf-8")) for name, f in files.items() if name not in THE_ENGINE}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_every_machine_is_looked_for() -> None:
    assert {"JobState", "SlotState", "KvTxnState", "DeviceState", "AdmissionMode", "AnswerState"} <= STATES


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("if x == JobState.Queued: pass", "line 2 compares with JobState.Queued"),
        ("if x is not JobState.Queued: pass", "line 2 compares with JobState.Queued"),
        ("ok = x in (1, JobState.Queued.code)", "line 2 compares with JobState.Queued"),
        ("ok = {JobState['Queued']} >= x", "line 2 compares with JobState['Queued']"),
        ("ok = JobState(3) == x", "line 2 compares with JobState(3)"),
        ("match x:\n    case JobState.Queued: pass", "line 3 compares with JobState.Queued"),
        ("ok = x == machines.job.JobState.Queued", "line 2 compares with machines.job.JobState.Queued"),
        ("from machines.job import JobState as J\nok = x == J.Queued", "line 3 compares with J.Queued"),
        ("J = JobState\nok = x == J.Queued", "line 3 compares with J.Queued"),
        ("ok = job.state == 3", "line 2 compares job.state"),
        ("ok = context.record.state != 3", "line 2 compares context.record.state"),
        ("look(lambda s: s.free > 0)", "line 2 compares s.free"),
        ("job.state = 3", "line 2 changes job.state"),
        ("self._s.free += 1", "line 2 changes self._s.free"),
        ("whatever.slot, y = 1, 2", "line 2 changes whatever.slot"),
        ("for job.state in x: pass", "line 2 changes job.state"),
        ("del job.state", "line 2 changes job.state"),
        ("setattr(job, 'state', 3)", "line 2 changes job, 'state'"),
        ("setattr(job, name, 3)", "line 2 changes job, name"),
        ("object.__setattr__(job, 'state', 3)", "line 2 changes job, 'state'"),
    ],
)  # fmt: skip
def test_a_decision_is_seen(source: str, line: str) -> None:
    """Negative control."""
    assert decisions(IMPORT + source) == [line]


@pytest.mark.parametrize(
    "source",
    [
        "KINDS = {JobState.Queued: 1}",
        "text = list(JobState)[job.state].name",
        "self.kv = KvCoordinator()",
        "failure = job.tag.failure\njob.tag = context",
        "setattr(event, 'text', 1)",
        "setattr(self, name, 1)",
        "ok = code == 0 and pool.counts().free > 1",
    ],
)
def test_what_decides_nothing_is_left_alone(source: str) -> None:
    assert decisions(IMPORT + source) == []


def test_what_is_no_record_is_still_there() -> None:
    """An exception that nobody needs any more would hide a decision."""
    text = (RUNTIME / "executor.py").read_text(encoding="utf-8")
    assert [owner for owner in NO_RECORDS if f"{owner}." not in text] == []
