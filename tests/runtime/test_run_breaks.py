"""`calexec run --break NAME`: each seeded bug makes the command red, by the check that is meant for it."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest
from executing import unused

from runtime import breaks
from runtime.calrt import Library
from runtime.cli import run
from runtime.exits import Exit
from runtime.simulator import Simulator

BUGS = breaks.bugs()
LONG = {"late-answer", "no-answer"}  # it takes their deadlines
GREEN_ALWAYS = {"kv-length", "no-status"}  # without faults, and with some; the others nightly
# How it ends, and a finding that tells.
SEEN: dict[str, tuple[Exit, str]] = {
    "kv": (
        Exit.UNEXPLAINED,
        r"no fault was injected: .*: past_len: past_len is 0; the sequence has \d+ committed tokens",
    ),
    "kv-length": (Exit.DIFFERENT, r"violation: past_len_mismatch: the CSRs say a past of (\d+), sequence \d+ has \d+"),
    "swap": (Exit.DIFFERENT, r"differences: prompt \d+, token \d+: \d+, oracle \d+"),
    "stale": (Exit.UNEXPLAINED, r"ledger: kv_free: the books say 12, there are 11"),
    "late": (
        Exit.DIFFERENT,
        r"against the rulebook: step \d+, submitter.infer of \(\d+, \d+\): its guard does not hold: ",
    ),
    "late-answer": (Exit.UNEXPLAINED, r"unanswered: job 10: 1.5 s were its deadline, and 1.5 s more have passed"),
    "no-answer": (Exit.UNEXPLAINED, r"unanswered: job \d+: 1 s were its deadline"),
    "double-answer": (Exit.DIFFERENT, r"changed_answers: job (\d+): first CANCELLED: job \1, .*, then OK: job \1"),
    "leak": (Exit.UNEXPLAINED, r"ledger: free: the books say 3, there are 2"),
    "leak-old": (Exit.UNEXPLAINED, r"leases: 1 of them never given back"),
    "no-status": (
        Exit.UNEXPLAINED,
        r"none of the faults explains it \(infer: ccu_exception\): .*the device wrote 0 bytes",
    ),
    "early-free": (Exit.DIFFERENT, r"violation: (remapped|call_order|input_changed)"),
    "no-return": (Exit.DIFFERENT, r"violation: call_order: abi_output: wait is impossible"),
}


@pytest.fixture
def sim(library: Library) -> Simulator:
    return unused(library)


def broken(sim: Simulator, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[Exit, dict[str, Any]]:
    exit_ = run(["run", "--device", str(sim.index), "--json", *args])
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out)
    return exit_, found


def tiered(names: list[str], long: Container[str] = LONG) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.nightly] if name in long else []) for name in names]


@pytest.mark.parametrize("name", tiered([bug.name for bug in BUGS]))
def test_a_seeded_bug_is_seen(sim: Simulator, capsys: pytest.CaptureFixture[str], name: str) -> None:
    exit_, found = broken(sim, capsys, "--break", name)
    wanted, finding = SEEN[name]
    assert exit_ is wanted, found
    assert found["break"] == name
    assert found["break_seen"], found
    assert any(re.search(finding, text) for text in found["findings"]), found["findings"]


def once_each() -> list[Any]:
    """The first bug of those with the same settings; the others' controls would be the same run again."""
    known: list[Any] = []
    names = []
    for bug in BUGS:
        run_as = (bug.settings, bug.planned, bug.late_s)
        if run_as not in known:
            known.append(run_as)
            names.append(bug.name)
    return tiered(names, {*names} - GREEN_ALWAYS)


@pytest.mark.parametrize("name", once_each())
def test_its_settings_alone_are_green(sim: Simulator, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Negative control."""
    exit_, found = broken(sim, capsys, "--break", name, "--control")
    assert exit_ is Exit.OK, found
    assert not found["break_seen"]


def test_every_bug_that_was_asked_for_is_there() -> None:
    wanted = {"kv", "swap", "stale", "late", "double-answer", "leak", "no-status", "early-free"}
    assert wanted <= {bug.name for bug in BUGS}
    assert [bug.name for bug in BUGS] == list(SEEN)


def test_the_settings_are_told_and_the_command_line_counts_more(
    sim: Simulator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "--device", str(sim.index), "--break", "swap", "--limit", "2"]) is Exit.DIFFERENT
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "with the bug swap: a job's result goes to the next one that is done"
    assert out[1] == "settings: model tiny, count 8, clients 4, faults 0.0, cancel 0.0"
    assert ["requests", "2"] in [line.split() for line in out]
    assert out[-1] == "the bug swap was seen as: differences"


def test_a_bug_is_there_for_one_run_only(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--model", "tiny", "--limit", "2", "--tokens", "3")
    assert broken(unused(library), capsys, "--break", "leak", *args)[0] is not Exit.OK
    assert broken(unused(library), capsys, *args)[0] is Exit.OK


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--break", "nix"], "no seeded bug is called 'nix'; there are kv, "),
        (["--control"], "--control is for --break NAME"),
        (["--break", "kv", "--seeds", "1"], "--seeds does not go with --break"),
    ],
)
def test_what_cannot_be_asked(capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    assert run(["run", *args]) is Exit.USAGE
    assert message in capsys.readouterr().err


def test_without_the_tests_there_are_no_bugs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaks, "FILE", tmp_path / "seeded_bugs.py")
    for args in (["--break", "kv"], ["--list-breaks"]):
        assert run(["run", *args]) is Exit.USAGE
        assert "seeded bugs are test code" in capsys.readouterr().err


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--list-breaks"]) is Exit.OK
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SEEN)
