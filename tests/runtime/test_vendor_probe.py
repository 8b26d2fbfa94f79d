"""The vendor kit finds the true setting of every switch of the simulator (§14), knowing only the C ABI."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from machines.protocol.params import EXIT_STOPS_DMA, FACTS
from runtime.calbin import sample
from runtime.calrt import Library
from runtime.exits import Exit
from runtime.vendor_probe import command
from runtime.vendor_probe.command import LONGER_LATENCY, SIMULATED_LATENCY, Evidence, probe, rig_of
from runtime.vendor_probe.experiments import OBSERVATIONS, process_exit_stops_dma, unprobed

NUMBER = 9
MANIFEST = sample("tiny").with_suffix(".json")
NAMES = [f.name for f in FACTS]
IN_PROCESS = [n for n in NAMES if n != EXIT_STOPS_DMA.name]


def moot(settings: dict[str, int]) -> set[str]:
    """What cannot be seen under these settings, from what the facts say (machines/protocol/params.py)."""
    survives = not settings.get("reset_stops_dma", 1)
    return {"no_late_completion"} if survives else {"leftover_harmless"}


def probed(library: Library, settings: dict[str, int]) -> Evidence:
    return probe(library, MANIFEST, NUMBER, {**SIMULATED_LATENCY, **settings})


def check(evidence: Evidence, settings: dict[str, int], facts: list[str]) -> None:
    expected = {n: bool(settings.get(n, 1)) for n in facts}
    for name in moot(settings) & set(facts):
        assert evidence.facts[name].moot
        expected.pop(name)
    assert {n: evidence.facts[n].holds for n in expected} == expected, evidence.facts


def test_every_fact_has_an_experiment() -> None:
    assert unprobed() == []


@pytest.fixture
def without_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiment with a process of its own takes a second; it has a test of its own."""
    monkeypatch.setattr(command, "process_exit_stops_dma", lambda *_: command.Finding(None, "left out"))


@pytest.mark.usefixtures("without_a_child")
@pytest.mark.parametrize("flipped", ["", *IN_PROCESS])
def test_each_bad_setting_is_found(library: Library, flipped: str) -> None:
    settings = {flipped: 0} if flipped else {}
    if flipped == "leftover_harmless":
        settings["reset_stops_dma"] = 0
    check(probed(library, settings), settings, IN_PROCESS)


def every_setting() -> list[dict[str, int]]:
    return [
        {name: value for name, value in zip(IN_PROCESS, values, strict=True) if not value}
        for values in itertools.product((1, 0), repeat=len(IN_PROCESS))
    ]


@pytest.mark.usefixtures("without_a_child")
@pytest.mark.parametrize("settings", random.Random(3).sample(every_setting(), 12), ids=lambda s: "+".join(s) or "good")
def test_settings_in_combination(library: Library, settings: dict[str, int]) -> None:
    check(probed(library, settings), settings, IN_PROCESS)


@pytest.mark.nightly
@pytest.mark.usefixtures("without_a_child")
def test_every_setting(library: Library) -> None:
    for settings in every_setting():
        check(probed(library, settings), settings, IN_PROCESS)


@pytest.mark.parametrize("holds", [1, 0])
def test_leaving_the_process(library: Library, holds: int) -> None:
    settings = {**LONGER_LATENCY, EXIT_STOPS_DMA.name: holds}
    arguments = [str(library.path), str(MANIFEST), str(NUMBER), json.dumps(settings)]
    assert process_exit_stops_dma(rig_of(arguments), arguments).holds == bool(holds)


def calexec(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "runtime.cli", "vendor-probe", "--device", str(NUMBER), *arguments],
                          capture_output=True, text=True, check=False)  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_command_writes_an_evidence_file(tmp_path: Path, library: Library) -> None:
    out = tmp_path / "evidence.json"
    code, printed, _ = calexec("-s", "reset_clears_kv=0", "-o", str(out))
    assert code == 0
    assert "simulated device" in printed
    written = json.loads(out.read_text(encoding="utf-8"))
    assert written["simulated"] is True
    assert list(written["facts"]) == NAMES
    assert written["facts"]["reset_clears_kv"]["holds"] is False
    assert written["facts"]["leftover_harmless"]["moot"] is True
    assert set(written["observations"]) == set(OBSERVATIONS)
    assert written["observations"]["parallel_jobs_max"] == "2 at once, 2 of them ended well"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-s", "reset_stops_dma=x"], Exit.USAGE, "whole number"),
        (["-s", "no_such=1"], Exit.USAGE, "no_such"),
        (["--manifest", "missing.json"], Exit.MANIFEST, "missing.json"),
        (["--library", "missing.so"], Exit.NO_LIBRARY, "missing.so"),
        (["-o", "no/such/folder/file.json"], Exit.NOT_WRITTEN, "no/such/folder"),
        (["--device", "64"], Exit.USAGE, "64"),
    ],
)
def test_a_users_mistake_is_one_line(library: Library, arguments: list[str], code: Exit, words: str) -> None:
    got, printed, errors = calexec(*arguments)
    assert (got, printed) == (code, "")
    assert words in errors
    assert "Traceback" not in errors
    assert len(errors.strip().splitlines()) == 1
