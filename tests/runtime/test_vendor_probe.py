"""The vendor kit finds the true setting of every switch of the simulator (§14), knowing only the C ABI."""

from __future__ import annotations

import itertools
import json
import random
import signal
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
CALEXEC = [sys.executable, "-m", "runtime.cli"]
KIT = ["vendor-probe", "--device", str(NUMBER)]
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
    """Exit code, stdout, stderr."""
    done = subprocess.run([*CALEXEC, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_command_writes_an_evidence_file(tmp_path: Path, library: Library) -> None:
    out = tmp_path / "evidence.json"
    code, printed, _ = calexec(*KIT, "-s", "reset_clears_kv=0", "-o", str(out))
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
        (["-o", "."], Exit.NOT_WRITTEN, "--out ."),
        (["-s", "clock=1"], Exit.USAGE, "runs by itself"),
        (["--device", "64"], Exit.DEVICE, "64"),
    ],
)
def test_a_users_mistake_is_one_line(library: Library, arguments: list[str], code: Exit, words: str) -> None:
    got, printed, errors = calexec(*KIT, *arguments)
    assert (got, printed) == (code, "")
    assert words in errors
    assert "Traceback" not in errors
    assert len(errors.strip().splitlines()) == 1


@pytest.mark.usefixtures("without_a_child")
@pytest.mark.parametrize("holds", [1, 0])
def test_a_device_that_is_too_fast_to_be_watched_is_not_judged(library: Library, holds: int) -> None:
    """Whatever was written after the exception is over before anybody looks: that is no proof that nothing was."""
    at_once = {"prefill_us": 0, "decode_us": 0, "d2h_us": 0, "exception_stops_dma": holds}
    assert probed(library, at_once).facts["exception_stops_dma"].holds in ((None,) if holds else (None, False))


def test_ctrl_c_ends_it_while_the_device_does_not_answer() -> None:
    command = [
        sys.executable,
        "-m",
        "runtime.cli",
        "vendor-probe",
        "--device",
        str(NUMBER),
        "-s",
        "prefill_us=30000000",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(3)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=20)
    assert running.returncode == Exit.INTERRUPTED
    assert "Traceback" not in errors


@pytest.mark.parametrize("defect", ["version", "digest", "calbin", "submodel"])
def test_every_command_says_what_the_doctor_says(library: Library, tmp_path: Path, defect: str) -> None:
    """One exit code for one defect, whichever command meets it (docs/manifest.md)."""
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    calbin = tmp_path / manifest["calbin"]
    calbin.write_bytes(sample("tiny").read_bytes())
    match defect:
        case "version":
            manifest["calrt_version"] = "0.7.7"
        case "digest":
            manifest["calbin_sha256"] = "0" * 64
        case "calbin":
            calbin.unlink()
        case "submodel":
            manifest["submodels"][0]["exact_name"] += "x"
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    commands = (["doctor", "--manifest"], ["vendor-probe", "--manifest"], ["run-device", "--limit", "1", "--model"])
    ends = [calexec(*words, str(path)) for words in commands]
    codes, _, errors = zip(*ends, strict=True)
    assert len(set(codes)) == len(set(errors)) == 1
    assert codes[0] not in (Exit.OK, Exit.BUG)
