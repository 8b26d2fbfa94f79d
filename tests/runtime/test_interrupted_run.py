"""Ctrl-C in `calexec run`, `storm`, `soak` and `supervise`: what had ended is told before the end, and that once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from executing import unused

from runtime.calrt import Library
from runtime.cli import run
from runtime.exits import Exit

COMMANDS = {
    "run": ["run", "--model", "tiny", "--limit", "3", "--tokens", "4"],
    "storm": ["storm", "--seed", "1", "--events", "30"],
    "soak": ["soak", "--jobs", "80", "--tokens", "2", "--clients", "1"],
}


def pressed(*args: Any) -> Any:
    raise KeyboardInterrupt


def interrupted(library: Library, capsys: pytest.CaptureFixture[str], *args: str) -> list[list[str]]:
    """The words of each line."""
    assert run([*args, "--device", str(unused(library).index)]) is Exit.INTERRUPTED
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == "calexec: interrupted"
    return [line.split() for line in captured.out.splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_what_had_ended_is_told(
    library: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Interrupted when all clients have ended: then it is all that there was."""
    monkeypatch.setattr("runtime.run._aftermath", pressed)
    lines = interrupted(library, capsys, *COMMANDS[name])
    assert lines[0] == ["interrupted", "what", "had", "ended", "by", "then"]
    told = {words[0]: int(words[1].replace(",", "")) for words in lines if len(words) == 2}
    assert told["tokens"] == told["OK"] <= told["jobs"]
    assert told["tokens"] == {"run": 12, "soak": 80}.get(name, told["tokens"]) > 0
    assert name != "run" or told["completed"] == 3


@pytest.mark.parametrize("name", COMMANDS)
def test_before_anything_has_ended(
    library: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("runtime.run.start", pressed)
    lines = interrupted(library, capsys, *COMMANDS[name])
    assert lines == [["interrupted", "before", "anything", "had", "ended"]]


def test_as_json_there_is_no_result(
    library: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.run._aftermath", pressed)
    assert interrupted(library, capsys, *COMMANDS["run"], "--json") == []


def supervised(child: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """`calexec supervise` of a child in Python, interrupted when the child is there."""
    there = tmp_path / "there"
    code = f"""
import sys
from pathlib import Path
from runtime import supervise
from runtime.cli import run
supervise.sys = type("sys", (), {{"executable": sys.executable}})
popen = supervise.subprocess.Popen
class Child(popen):
    def __init__(self, line, **more):
        super().__init__([sys.executable, "-c", {child!r}, {str(there)!r}], **more)
supervise.subprocess.Popen = Child
sys.exit(int(run(["supervise", "--", "doctor"])))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    latest_s = time.monotonic() + 30
    while not there.exists():
        assert time.monotonic() < latest_s
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess([], process.returncode, out, err)


CHILD = """
import signal, sys, time
from pathlib import Path
def stop(*_):
    {says}
signal.signal(signal.SIGTERM, stop)
Path(sys.argv[1]).touch()
time.sleep(60)
"""


@pytest.mark.parametrize(
    "says", ["print('calexec: interrupted', file=sys.stderr); sys.exit(130)", "sys.exit(0)"], ids=["it", "nobody"]
)
def test_supervise_says_it_once(tmp_path: Path, says: str) -> None:
    """Whether its child has said so or not."""
    done = supervised(CHILD.format(says=says), tmp_path)
    assert (done.returncode, done.stderr.lstrip()) == (Exit.INTERRUPTED, "calexec: interrupted\n")
