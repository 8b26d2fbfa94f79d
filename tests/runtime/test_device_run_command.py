"""`calexec run-device`: what it prints, and that it is red when anything is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.calbin import sample
from runtime.calrt import LIBRARY_VARIABLE, Library
from runtime.cli import run
from runtime.device_run import DEVICE, LEGACY_DEVICE, Difference, Report
from runtime.exits import Exit
from runtime.manifest import load_manifest
from runtime.simulator import Simulator
from runtime.straight import DeviceFailed, Straight


@pytest.fixture
def sims(library: Library) -> Iterator[tuple[Simulator, Simulator]]:
    """The command's two devices, as new before and after."""
    both = Simulator.beside(library, DEVICE), Simulator.beside(library, LEGACY_DEVICE)
    for s in both:
        s.power_cycle()
    yield both
    for s in both:
        s.power_cycle()


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[Exit, dict[str, Any]]:
    exit_ = run(["run-device", "--model", "tiny", "--json", *args])
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out)
    return exit_, found


def test_the_report(sims: tuple[Simulator, Simulator], capsys: pytest.CaptureFixture[str]) -> None:
    exit_, found = as_json(capsys, "--limit", "5", "--tokens", "7")
    assert exit_ is Exit.OK
    assert {**found, "seconds": 0, "tokens_per_s": 0} == {
        "model": "tiny", "calrt_version": "0.7.6", "simulated": True, "prompts": 5, "tokens": 35, "seconds": 0,
        "differences": {"oracle": 0, "legacy": 0}, "violations": 0, "first": [], "tokens_per_s": 0, "good": True,
    }  # fmt: skip
    assert found["tokens_per_s"] == pytest.approx(35 / found["seconds"])
    assert [s.truth("jobs_completed") for s in sims] == [35, 35]


@pytest.mark.parametrize(("compare", "jobs"), [("oracle", [3, 0]), ("legacy", [3, 3]), ("", [3, 0])])
def test_only_the_references_that_were_asked_for(
    sims: tuple[Simulator, Simulator], capsys: pytest.CaptureFixture[str], compare: str, jobs: list[int]
) -> None:
    exit_, found = as_json(capsys, "--limit", "1", "--tokens", "3", "--compare", compare)
    assert exit_ is Exit.OK
    assert list(found["differences"]) == [compare] * bool(compare)
    assert [s.truth("jobs_completed") for s in sims] == jobs


def test_the_table(sims: tuple[Simulator, Simulator], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run-device", "--model", "tiny", "--limit", "2", "--tokens", "3"]) is Exit.OK
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["tiny", "on", "a", "simulated", "device,", "CalRT", "0.7.6"]
    assert [line for line in lines[1:] if line[0] != "tokens/s"] == [
        ["prompts", "2"], ["tokens", "6"], ["differences", "to", "oracle", "0"], ["differences", "to", "legacy", "0"],
        ["violations", "0"],
    ]  # fmt: skip


def broken(library: Library, simulator: Simulator, index: int) -> None:
    """A CCU exception leaves the device broken (§12 FI08), and the reset after it did nothing: it computes wrongly."""
    simulator.set(reset_is_honest=0)
    simulator.fault("infer", "ccu_exception")
    manifest = load_manifest(sample("tiny").with_suffix(".json"))
    with Straight(library, manifest, index) as model, pytest.raises(DeviceFailed, match="DONE_CCU_EXCEPTION"):
        model.prefill(0, [1])
    assert simulator.truth("broken") == 1


def test_a_device_that_computes_wrongly_is_red(
    library: Library, sims: tuple[Simulator, Simulator], capsys: pytest.CaptureFixture[str]
) -> None:
    """Negative control: the golden run sees a broken device."""
    broken(library, sims[0], DEVICE)
    sims[0].set(golden_sees_broken_device=1)
    exit_, found = as_json(capsys, "--limit", "3", "--tokens", "4")
    assert exit_ is Exit.DIFFERENT
    assert found["good"] is False
    assert found["differences"]["oracle"] == found["differences"]["legacy"] >= 9
    assert [d["line"] for d in found["first"]] == [1, 2, 3]


def test_a_baseline_that_computes_wrongly_is_red(
    library: Library, sims: tuple[Simulator, Simulator], capsys: pytest.CaptureFixture[str]
) -> None:
    """Negative control: the two references are told apart, and the first difference of each prompt is printed."""
    broken(library, sims[1], LEGACY_DEVICE)
    assert run(["run-device", "--model", "tiny", "--limit", "2", "--tokens", "4"]) is Exit.DIFFERENT
    out = capsys.readouterr().out
    assert "differences to oracle  0" in out
    assert "prompt 1, token 0: " in out
    assert ", legacy " in out
    assert ", oracle " not in out


@pytest.mark.parametrize(
    ("differences", "violations", "good"),
    [({}, 0, True), ({}, None, True), ({"oracle": 0, "legacy": 0}, 0, True), ({"oracle": 0, "legacy": 1}, 0, False),
     ({"oracle": 1}, 0, False), ({"oracle": 0}, 1, False)],
)  # fmt: skip
def test_what_is_good(differences: dict[str, int], violations: int | None, good: bool) -> None:
    assert Report("m", "0.7.6", True, 1, 1, 1.0, differences, violations).good is good


def test_a_difference_says_where() -> None:
    assert str(Difference("oracle", 3, 17, 5, 9)) == "prompt 3, token 17: 5, oracle 9"


def test_the_latency_is_set_for_the_run_and_put_back(
    sims: tuple[Simulator, Simulator], capsys: pytest.CaptureFixture[str]
) -> None:
    sims[0].set(decode_us=7)
    exit_, found = as_json(
        capsys, "--limit", "1", "--tokens", "11", "--latency-decode-us", "20000", "--compare", "legacy"
    )
    assert exit_ is Exit.OK
    assert found["seconds"] >= 10 * 0.02  # no decode can be faster; how much slower is not asserted
    assert [s.get("decode_us") for s in sims] == [7, 0]


@pytest.mark.parametrize(
    ("args", "exit_", "message"),
    [
        (["--model", "nix"], Exit.USAGE, "no sample model is called 'nix'; there are qwen3-tile16"),
        (["--compare", "oracle,nix"], Exit.USAGE, "'nix' is no reference; there are oracle, legacy"),
        (["--tokens", "0"], Exit.USAGE, "0 is not in the range"),
        (["--tokens", "257"], Exit.USAGE, "leaves no room for a prompt: max_seq is 256"),
        (["--tokens", "240"], Exit.USAGE, "a prompt has at most 17"),
        (["--prompts", "/nowhere"], Exit.USAGE, "/nowhere: cannot be read"),
    ],
)
def test_what_cannot_be_run(
    sims: tuple[Simulator, Simulator], capsys: pytest.CaptureFixture[str], args: list[str], exit_: Exit, message: str
) -> None:
    assert run(["run-device", "--model", "tiny", *args]) is exit_
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_a_failing_device_ends_in_one_line(
    sims: tuple[Simulator, Simulator], capsys: pytest.CaptureFixture[str]
) -> None:
    sims[0].fault("infer", "return", 18, nth=4)
    assert run(["run-device", "--model", "tiny", "--limit", "2"]) is Exit.DEVICE
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("calexec:")] == [
        "calexec: infer: 18 DeviceUnavailable (Device): the device does not answer"
    ]


def test_a_manifest_that_is_not_true_is_refused(
    sims: tuple[Simulator, Simulator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """FI01: one character of a name; nothing is configured."""
    text = sample("tiny").with_suffix(".json").read_text(encoding="utf-8")
    (tmp_path / "tiny.calbin").write_bytes(sample("tiny").read_bytes())
    (tmp_path / "mine.json").write_text(text.replace('_decode"', '_dec0de"', 1), encoding="utf-8")
    assert run(["run-device", "--model", str(tmp_path / "mine.json")]) is Exit.MODELS
    assert "_dec0de" in capsys.readouterr().err
    assert "configure" not in {c.call for c in sims[0].trace()}
    (tmp_path / "mine.json").write_text("{}", encoding="utf-8")
    assert run(["run-device", "--model", str(tmp_path / "mine.json")]) is Exit.MANIFEST


def test_as_a_module_and_without_the_library(tmp_path: Path) -> None:
    environment = {**os.environ, LIBRARY_VARIABLE: str(tmp_path / "none.so")}
    command = [sys.executable, "-m", "runtime.device_run", "--limit", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == Exit.NO_LIBRARY
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_a_latency_out_of_range_is_one_line(
    sims: tuple[Simulator, Simulator], capsys: pytest.CaptureFixture[str]
) -> None:
    exit_ = run(["run-device", "--model", "tiny", "--limit", "1", "--latency-decode-us", "60000001"])
    assert exit_ is Exit.USAGE
    assert capsys.readouterr().err.startswith("calexec: --latency-decode-us: ")
