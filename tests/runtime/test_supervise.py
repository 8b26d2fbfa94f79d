"""A parent that starts `calexec run` again where the device Failed: the remaining prompts finish right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.calbin import sample
from runtime.cli import run
from runtime.exits import Exit
from runtime.oracle import Oracle
from runtime.prompts import read_prompts
from runtime.supervise import STEADY_S, Pauses

COUNT, LIMIT = 6, 12
RUN = ["run", "--model", "tiny", "--policy", "exit", "--limit", str(LIMIT), "--tokens", str(COUNT)]
FAULTS = ["--clients", "1", "--faults", "0.01", "--seed", "8"]
LATEST_S = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "done.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def finished(path: Path) -> dict[int, list[int]]:
    return {entry["line"]: entry["tokens"] for entry in lines(path) if "line" in entry}


def starts(path: Path) -> int:
    return max(entry.get("start", 0) for entry in lines(path))


def oracle() -> dict[int, list[int]]:
    says = Oracle.of_calbin(sample("tiny"))
    return {p.line: says.tokens(p.tokens, COUNT) for p in read_prompts()[:LIMIT]}


@pytest.mark.shows("§13.2-3.supervisor")
def test_the_remaining_prompts_finish_right(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Policy exit: each fault of the device costs a process."""
    args = ["supervise", "--backoff-ms", "1", "--", *RUN, *FAULTS, "--json", "--resume", str(path)]
    assert run(args) is Exit.OK
    captured = capfd.readouterr()
    assert starts(path) > 1, "otherwise this shows nothing"
    assert finished(path) == oracle()
    reports = captured.out.split("}\n{")
    assert len(reports) == starts(path)
    assert '"exit": "OK"' in reports[-1]
    assert all('"exit": "FAILED"' in said for said in reports[:-1])
    assert captured.err.count("the device Failed") == starts(path) - 1


def test_a_parent_that_does_not_start_again_leaves_prompts(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Negative control."""
    args = ["supervise", "--restarts", "0", "--", *RUN, *FAULTS, "--json", "--resume", str(path)]
    assert run(args) is Exit.FAILED
    assert "0 restarts were not enough: the device Failed" in capfd.readouterr().err
    assert 0 < len(finished(path)) < LIMIT
    assert finished(path).items() <= oracle().items()


def test_what_was_finished_is_compared_again(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Negative control: a token of the file is another one."""
    args = [*RUN, "--json", "--resume", str(path)]
    assert run(args) is Exit.OK
    path.write_text(path.read_text().replace('"tokens": [', '"tokens": [1, ', 1))
    capfd.readouterr()
    assert run(args) is Exit.DIFFERENT
    found = json.loads(capfd.readouterr().out)
    assert found["differences"] == 1
    assert "finished earlier" in found["findings"][0]
    assert found["tokens"] == 0, "nothing was left to do"


@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_who_stops_the_parent_stops_the_child_in_order(path: Path, sent: signal.Signals) -> None:
    slow = ["--latency-decode-us", "20000", "--latency-prefill-us", "20000", "--resume", str(path)]
    command = [sys.executable, "-m", "runtime", "supervise", "--", *RUN, *slow]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    latest_s = time.monotonic() + LATEST_S
    while not finished(path) and time.monotonic() < latest_s:
        time.sleep(0.02)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    parent.send_signal(sent)
    _, complained = parent.communicate(timeout=LATEST_S)
    assert parent.returncode == Exit.INTERRUPTED, complained
    assert complained.split() == ["calexec:", "interrupted"], "once, by the child"
    assert len(children) == 1
    assert not Path(f"/proc/{children[0]}").exists()
    done = finished(path)
    assert 0 < len(done) < LIMIT
    assert done.items() <= oracle().items()


@pytest.mark.nightly
def test_a_child_that_was_killed_is_started_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "done.jsonl"
    slow = ["--latency-decode-us", "20000", "--latency-prefill-us", "20000", "--resume", str(path)]
    command = [sys.executable, "-m", "runtime", "supervise", "--backoff-ms", "1", "--", *RUN[:6], "4", *RUN[7:], *slow]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    latest_s = time.monotonic() + LATEST_S
    while not finished(path) and time.monotonic() < latest_s:
        time.sleep(0.02)
    assert finished(path), "not one prompt in time"
    (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    _, complained = parent.communicate(timeout=LATEST_S)
    assert parent.returncode == Exit.OK, complained
    assert "it was killed by SIGKILL" in complained
    assert starts(path) == 2
    assert finished(path) == {line: tokens for line, tokens in oracle().items() if line <= 4}


@pytest.mark.parametrize(
    ("args", "exit_", "message"),
    [
        ([], Exit.USAGE, "what is to be run?"),
        (["--", "run", "--policy", "exit"], Exit.USAGE, "run without --resume FILE would begin from the start"),
        (["--restarts", "-1", "--", "doctor"], Exit.USAGE, "-1 is not in the range"),
        (["--", "nix"], Exit.USAGE, "No such command 'nix'"),
    ],
)
def test_what_is_not_started_again(
    capfd: pytest.CaptureFixture[str], args: list[str], exit_: Exit, message: str
) -> None:
    assert run(["supervise", *args]) is exit_
    assert message in capfd.readouterr().err


def test_pauses_double_up_to_the_longest_and_begin_anew() -> None:
    pauses, at = Pauses(0.1, 1.0), None
    seen = []
    for lived_s in (0, 1, 2, 3, 4, 5, STEADY_S, 0):
        at = pauses.after(at, lived_s)
        seen.append(at)
    assert seen == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.1, 0.2]
    assert Pauses(5.0, 1.0).after(None, 0) == 1.0
