"""The log: a line for each failure, with what §6.1 wants kept; levels; and never more lines than the bucket holds."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from executing import READY_S, executing, unused

from machines.errors import CODES, SHIM_CODES, classify
from runtime import logs
from runtime.calrt import Library
from runtime.cli import run
from runtime.executor import Refused
from runtime.exits import Exit
from runtime.logs import BURST, LINES_PER_S, LOGGER, Events, JsonLines
from runtime.status import Status

PROMPT = list("Grüße".encode())
Lines = list[dict[str, Any]]


@contextmanager
def logged(level: int = logging.DEBUG) -> Iterator[Lines]:
    """What a host gets that gives its handler the formatter."""
    stream, lines = io.StringIO(), Lines()
    handler, logger = logging.StreamHandler(stream), logging.getLogger(LOGGER)
    handler.setFormatter(JsonLines())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        lines += [json.loads(line) for line in stream.getvalue().splitlines()]


def of(lines: Lines, event: str) -> Lines:
    return [line for line in lines if line["event"] == event]


def ids(status: Status) -> dict[str, Any]:
    return {
        "job": status.job_id, "request": status.request_id, "sequence": status.seq_id, "generation": status.generation,
    }  # fmt: skip


# -- what is written ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("infer", 17), ("wait", 99),
        *(pytest.param(call, code, marks=pytest.mark.nightly) for call in ("infer", "wait") for code in (13, 14, 18)),
    ],
)  # fmt: skip
def test_a_failed_job_is_one_line_with_everything(library: Library, call: str, code: int) -> None:
    """§6.1: job, request, sequence, generation, CalRT's raw code and its name, and the stage."""
    with logged() as lines, executing(library, recoveries_max=9) as b:
        b.run(7, PROMPT)
        b.sim.fault(call, "return", code, 1 if call == "wait" else 0)
        status = b.run(8, PROMPT).status
    (line,) = of(lines, "job failed")
    assert {name: line[name] for name in ids(status)} == ids(status)
    assert (line["job"], line["request"], line["sequence"], line["generation"]) == (2, 2, 8, 1)
    assert (line["code"], line["code_name"]) == (code, classify(code).name)
    assert line["stage"] == {"infer": "infer", "wait": "Wait"}[call]
    assert line["status"] == classify(code).grpc.replace("UNIMPLEMENTED", "NOT_SUPPORTED")
    assert line["message"] == str(status)
    assert line["level"] == "warning"
    assert line["thread"].startswith("calexec ")


def test_a_job_that_got_nowhere_names_the_generation_too(library: Library) -> None:
    with logged() as lines, executing(library) as b:
        b.run(1, [5], past=3)
    (line,) = of(lines, "job failed")
    assert (line["stage"], line["generation"]) == ("admission.refuse", 1)


def test_a_failure_without_a_code_has_none(library: Library) -> None:
    with logged() as lines, executing(library) as b:
        b.sim.fault("infer", "ccu_exception")
        b.run(2, PROMPT)
    (line,) = of(lines, "job failed")
    assert line["stage"] == "GetStatus"
    assert not {"code", "code_name"} & line.keys()


def test_the_life_of_the_device_is_told(library: Library) -> None:
    with logged() as lines, executing(library) as b:
        b.sim.fault("infer", "ccu_exception")
        b.run(1, PROMPT)
        assert b.executor.wait_ready(READY_S)
    states = [line["state"] for line in of(lines, "lifecycle")]
    assert states == ["Warming", "Ready", "Draining", "Recovering", "Configuring", "Warming", "Ready"]
    assert [line["generation"] for line in of(lines, "lifecycle")][-1] == 2
    (reset,) = of(lines, "reset")
    assert (reset["stage"], reset["code"], reset["code_name"]) == ("reset_ccu", 0, "CalrtSuccess")
    assert [line["generation"] for line in of(lines, "generation")] == [2]


def test_a_refusal_is_told_without_a_job(library: Library) -> None:
    with logged() as lines, executing(library) as b, pytest.raises(Refused):
        b.enqueue(3, [])
    (line,) = of(lines, "refused")
    assert (line["status"], line["stage"], line["sequence"]) == ("INVALID_ARGUMENT", "enqueue", 3)
    assert "job" not in line


def test_a_dead_actor_is_told_with_its_traceback(library: Library) -> None:
    def bug(job: object) -> str:
        raise ZeroDivisionError("a mistake")

    with logged() as lines, executing(library, close_ms=200) as b:
        b.executor._table["infer"] = bug  # type: ignore[index]
        b.run(1, PROMPT)
    (line,) = of(lines, "actor died")
    assert (line["actor"], line["doing"], line["level"]) == ("submitter", "infer", "critical")
    assert "ZeroDivisionError: a mistake" in line["exception"]


# -- levels, and who sets them -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("level", "events"),
    [
        ("debug", {"golden", "lifecycle", "refused", "job failed"}),
        ("info", {"golden", "lifecycle", "refused", "job failed"}),
        ("warning", {"job failed"}), ("error", set()),
    ],
)  # fmt: skip
def test_the_configured_level_counts(library: Library, level: str, events: set[str]) -> None:
    with logged() as lines, executing(library, log_level=level) as b:
        b.sim.fault("infer", "return", 17, 0)
        b.run(1, PROMPT)
        with pytest.raises(Refused):
            b.enqueue(3, [])
    assert {line["event"] for line in lines} == events


def test_the_hosts_level_counts_besides(library: Library) -> None:
    with logged(logging.ERROR) as lines, executing(library, log_level="debug") as b:
        b.sim.fault("infer", "return", 17, 0)
        b.run(1, PROMPT)
    assert lines == []


def test_importing_sets_nothing_up() -> None:
    """No handler and no level: they are the host's."""
    code = (
        "import logging, runtime.executor as e; logger = logging.getLogger('calexec');"
        "print(logger.handlers, logger.level, logging.getLogger().handlers, logger.propagate)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[] 0 [] True\n"


def test_a_record_of_somebody_else_is_a_line_too() -> None:
    record = logging.LogRecord("other", logging.INFO, "f.py", 1, "says %s\n%s", ("this", "that"), None)
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "says this\nthat"


# -- never too many ----------------------------------------------------------------------------------------------------
class Clock:
    us = 0

    def __call__(self) -> int:
        return self.us


def test_lines_of_a_kind_are_bounded_and_what_is_left_out_is_told() -> None:
    """F31."""
    clock = Clock()
    events = Events("debug", clock)
    with logged() as lines:
        for _ in range(10 * BURST):
            events.warning("job failed", "again")
        events.warning("reset", "another kind has its own")
        clock.us += 1_000_000
        for _ in range(10 * BURST):
            events.warning("job failed", "again")
        clock.us += 3600 * 1_000_000
        for _ in range(10 * BURST):
            events.warning("job failed", "again")
        events.close()
    failed = of(lines, "job failed")
    assert len(failed) == BURST + LINES_PER_S + BURST + 1
    assert len(of(lines, "reset")) == 1
    assert sum(line.get("suppressed", 0) for line in failed) == 30 * BURST - (len(failed) - 1), "none is lost count of"


def test_a_clock_that_goes_back_gives_no_lines() -> None:
    clock = Clock()
    clock.us = 10**9
    events = Events("debug", clock)
    with logged() as lines:
        for _ in range(2 * BURST):
            events.error("x", "again")
            clock.us -= 1_000_000
    assert len(of(lines, "x")) == BURST


def test_f31_a_storm_of_failures_is_no_storm_of_lines(library: Library) -> None:
    """Many more jobs fail than lines are written; each is counted all the same."""
    jobs = 4 * BURST
    with logged() as lines, executing(library, strikes_max=60_000, backoff_ms=1) as b:
        for nth in range(1, jobs + 1):
            b.sim.fault("infer", "return", 17, 0, nth)
        failed = sum(not b.run(1, PROMPT).status.ok for _ in range(jobs))
        assert failed == jobs
        b.executor.close()
        took_s = 60  # far more than it takes
        assert 'calexec_jobs_ended_total{cause="UNAVAILABLE",code="DeviceBusy",state="Failed"} 400.0' in (
            b.executor.metrics.text()
        )
    said = of(lines, "job failed")
    assert BURST <= len(said) < BURST + took_s * LINES_PER_S
    assert len(said) < jobs
    told = sum(line.get("suppressed", 0) for line in said)
    assert told + sum("job" in line for line in said) == jobs


def test_control_without_a_bound_it_is_a_storm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs._Bucket, "takes", lambda self, at_us: True)
    events = Events("debug", Clock())
    with logged() as lines:
        for _ in range(10 * BURST):
            events.warning("job failed", "again")
    assert len(of(lines, "job failed")) == 10 * BURST


# -- the command -------------------------------------------------------------------------------------------------------
def test_calexec_run_writes_the_lines(library: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim, path = unused(library), tmp_path / "run.log"
    exit_ = run([
        "run", "--model", "tiny", "--device", str(sim.index), "--limit", "6", "--tokens", "6", "--clients", "2",
        "--faults", "0.1", "--seed", "3", "--json", "--log", str(path),
    ])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert exit_ is Exit.OK, found["findings"]
    lines: Lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    told = of(lines, "job failed")
    assert len(told) == sum(n for what, n in found["jobs"].items() if not what.startswith("OK"))
    assert {line["code_name"] for line in told if "code" in line} <= {c.name for c in (*CODES, *SHIM_CODES)}
    assert of(lines, "lifecycle")
    assert logging.getLogger(LOGGER).level == logging.NOTSET, "and it is put back"


def test_control_a_job_that_succeeds_is_no_line(library: Library) -> None:
    with logged() as lines, executing(library) as b:
        b.tokens(1, PROMPT, 2)
    assert of(lines, "job failed") == []


def test_a_log_that_cannot_be_written_is_one_line(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    """And not a traceback for each of its lines; the run goes on to its end."""
    sim = unused(library)
    args = ["run", "--model", "tiny", "--device", str(sim.index), "--limit", "1", "--tokens", "2", "--json"]
    assert run([*args, "--log", "/dev/full"]) is Exit.NOT_WRITTEN
    said = capsys.readouterr()
    assert said.err == "calexec: cannot write /dev/full: No space left on device\n"
    assert sim.truth("buffers_alive") == 0


def test_a_handler_that_raises_costs_no_job(library: Library) -> None:
    """It is the host's, and the lines are written by the actors."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())
            raise RuntimeError("a mistake of the host's")

    seen: list[str] = []
    logger, broken = logging.getLogger(LOGGER), Broken()
    logger.addHandler(broken)
    try:
        with executing(library) as b:
            assert not b.run(1, [5], past=3).status.ok
            assert b.tokens(1, PROMPT, 2) == b.oracle.tokens(PROMPT, 2)
            assert b.executor.health().ready
    finally:
        logger.removeHandler(broken)
    assert any("admission.refuse" in line for line in seen), "it did raise"


def test_an_observer_that_dies_with_its_actor_keeps_nobody_waiting(library: Library) -> None:
    """F47, where what is told of a death is what is broken."""

    def bug(*_: object) -> str:
        raise ZeroDivisionError("a mistake")

    with executing(library, close_ms=200) as b, pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda _: None)
        patch.setattr(b.executor.observer, "died", bug)
        patch.setitem(b.executor._table, "infer", bug)  # type: ignore[arg-type]
        assert b.run(1, PROMPT).status.stage == "submitter died"
        for thread in b.executor.crew.threads:
            if thread.name == "calexec submitter":
                thread.join(READY_S)
        assert not b.executor.health().live
