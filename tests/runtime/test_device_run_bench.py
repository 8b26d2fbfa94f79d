"""The benchmark runs, and refuses to compare what is not the same. No time is asserted."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from runtime import bench, bench_boundary, bench_executor, bench_sides
from runtime.bench_boundary import conversions, decodes
from runtime.bench_calls import NotTheSame, same_calls, same_jobs
from runtime.bench_executor import paired_blocks, tpot
from runtime.bench_setting import QUICK, Setting
from runtime.bench_sides import Client
from runtime.calbin import sample
from runtime.calrt import Library
from runtime.cli import run
from runtime.exits import Exit, Failure
from runtime.kv import KvCoordinator
from runtime.legacy import LegacyFailed, LegacyLibrary
from runtime.manifest import load_manifest
from runtime.simulator import Call, Simulator, Violation

DEVICES = (0, 1, 2)


@pytest.fixture(autouse=True)
def _sims(library: Library) -> Iterator[None]:
    sims = [Simulator.beside(library, n) for n in DEVICES]
    for s in sims:
        s.power_cycle()
    yield
    gc.unfreeze()
    assert [v for s in sims for v in s.violations()] == []


@pytest.fixture
def setting(library: Library) -> Setting:
    return Setting(library, load_manifest(sample("qwen3-tile16").with_suffix(".json")), QUICK, (0,))


def test_both_sides_make_the_same_calls_in_every_decode(setting: Setting) -> None:
    """Shown before anything is timed; here that it is shown at all: the calls are there."""
    seen: list[list[str]] = []

    def spy(ours: list[Call], base: list[Call]) -> None:
        seen.append([c.call for c in ours])
        same_calls(ours, base)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_boundary, "same_calls", spy)
        list(decodes(setting))
    assert len(seen) == 2
    for calls in seen:
        assert [c for c in calls if c in ("apply", "infer", "wait", "get_status")] == [
            "apply",
            "infer",
            "wait",
            "get_status",
        ]


def call(name: str, a: int = 0, text: str = "", result: int = 0) -> Call:
    return Call(0, 1, 0, 0, 5, 6, a, 0, result, name, text, 0, 0)


BASE = [call("create_input"), call("apply", 7, result=1), call("map_buf"), call("infer"), call("wait")]


def test_what_the_baseline_exists_to_show_is_left_out() -> None:
    same_calls(
        [call("apply", 7, result=1), call("infer"), call("wait")], [*BASE, call("apply", 7, result=1), call("destroy")]
    )


@pytest.mark.parametrize(
    "ours",
    [
        [call("apply", 8, result=1), call("infer"), call("wait")],
        [call("apply", 7, result=1), call("infer")],
        [call("apply", 7, result=1), call("wait"), call("infer")],
        [call("apply", 7, result=1), call("infer", result=17), call("wait")],
        [call("infer"), call("wait")],
        [evolve(c, text="other") for c in BASE],
    ],
)
def test_different_calls_are_not_compared(ours: list[Call]) -> None:
    """Negative control."""
    with pytest.raises(NotTheSame, match="different CalRT calls"):
        same_calls(ours, BASE)


def test_different_bits_are_not_compared(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a conversion that reads one element beside the row."""
    honest = LegacyLibrary.conversion
    monkeypatch.setattr(
        LegacyLibrary,
        "conversion",
        lambda self, name, source, base, count, target: honest(self, name, source, base - (base > 0), count, target),
    )
    with pytest.raises(NotTheSame, match="tile 16: ours and plain_loop give different bits"):
        list(conversions(setting))


# -- the executor ------------------------------------------------------------------------------------------------------


def test_every_block_of_the_executor_is_compared(setting: Setting) -> None:
    """All calls of all its tokens; here that they are there, and that both sides go first in turns."""
    compared: list[int] = []

    def spy(ours: Iterable[Call], base: Iterable[Call], **commits: bool) -> None:
        compared.append(sum(c.call == "infer" for c in ours))
        same_jobs(ours, base, **commits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_sides, "same_jobs", spy)
        list(tpot(setting))
    assert compared == [1 + setting.size.tokens] * setting.size.blocks  # with the prompt


def test_who_begins_alternates(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_executor, "same_block", lambda ours, base: None)
    order: list[str] = []

    def block(side: Any) -> Any:
        order.append(side)
        return np.array([{"a": 1, "b": 2, "c": 3}[side]])

    size = evolve(setting.size, blocks=3)
    sides: Any = ["a", "b", "c"]
    found = list(paired_blocks(sides, evolve(setting, size=size), block, 1.0))
    assert "".join(order) == "abccbaabc"
    assert [[int(times[0]) for times in blocks] for blocks in found] == [[1, 2, 3]] * 3


def test_a_call_too_many_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Negative control: an executor that applies each length twice. No ratio is printed."""
    honest = KvCoordinator.commit

    def twice(self: KvCoordinator, sequence: int, target: int) -> Any:
        return honest(self, sequence, target) or honest(self, sequence, target)

    monkeypatch.setattr(KvCoordinator, "commit", twice)
    assert run(["bench", "--quick", "--lines", "tpot", "--latencies-ms", "0"]) is Exit.DIFFERENT
    said = capsys.readouterr()
    assert "different CalRT calls in job" in said.err
    assert said.out == ""


def test_another_input_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Negative control: the same calls with another token, which only the logits can tell."""
    honest = Client.decode
    monkeypatch.setattr(Client, "decode", lambda self, sequence, token: honest(self, sequence, token + 1))
    assert run(["bench", "--quick", "--lines", "floor"]) is Exit.DIFFERENT
    assert "executor and straight gave different logits" in capsys.readouterr().err


def test_a_violation_is_no_ratio(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Negative control."""
    seen = (Violation(0, 0, 1, "input_changed", "of job 1"),)
    monkeypatch.setattr(bench_sides.Side, "violations", lambda self: seen if self.name == "executor" else ())
    assert run(["bench", "--quick", "--lines", "tpot", "--latencies-ms", "0"]) is Exit.DIFFERENT
    assert "the device of executor saw 1 violations: input_changed: of job 1" in capsys.readouterr().err


def test_hand_offs_between_threads(library: Library) -> None:
    legacy = LegacyLibrary(library)
    for count in (1, 2, 301):
        each = legacy.handoffs_ns(count)
        assert len(each) == count
        assert np.all(each > 0)
    with pytest.raises(LegacyFailed):
        legacy.handoffs_ns(0)


# -- the command -------------------------------------------------------------------------------------------------------

EXPECTED = {
    "logits": ["logits, tile 1 / plain loop", "logits, tile 1 / legacy", "logits, tile 16 / plain loop",
               "logits, tile 16 / legacy"],
    "straight": ["straight: decode, tile 1 / legacy", "straight: prefill 1, tile 16 / legacy"],
    "tpot": ["TPOT P50, 0 ms / legacy", "TPOT P99, 0 ms / legacy"],
    "ttft": ["TTFT 16 P50, 0 ms / legacy", "TTFT 16 P99, 0 ms / legacy", "TTFT 1,024 P50, 0 ms / legacy",
             "TTFT 1,024 P99, 0 ms / legacy"],
    "floor": ["C hand-off", "logits pass", "3 hand-offs + logits pass", "added over straight / floor",
              "added over legacy / floor", "CPU of a token / straight", "CPU of a token / legacy"],
    "gap": ["idle gap P50 / 3 hand-offs", "idle gap P50 / 3 cold hand-offs", "idle gap P99 / 3 hand-offs",
            "idle gap P99 / 3 cold hand-offs", "utilisation, 4 clients", "a job's period / the device's 5 ms",
            "wait max / median, 4 clients", "total max / median, 4 clients", "tokens min / max, 4 clients"],
    "waiters": ["8 waiters: CPU", "8 waiters: woken by a freed unit", "8 waiters: wake-ups of actors for it"],
    "idle": ["idle executor: CPU"],
}  # fmt: skip


@pytest.mark.shows("PR6.performance", "§13.3-2")
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to_json, page = tmp_path / "bench.json", tmp_path / "bench.md"
    files = ["--json", str(to_json), "--markdown", str(page)]
    assert run(["bench", "--quick", "--latencies-ms", "0", *files]) is Exit.OK
    found: dict[str, Any] = json.loads(to_json.read_text())
    lines: dict[str, list[str]] = {}
    for r in found["lines"]:
        lines.setdefault(r["group"], []).append(r["what"])
        assert r["low"] <= r["value"] <= r["high"]
        assert r["blocks"] == 2
    assert lines == EXPECTED
    woken = next(r for r in found["lines"] if r["what"] == "8 waiters: woken by a freed unit")
    assert (woken["low"], woken["high"]) == (1, 1)  # a count, and no time
    out = capsys.readouterr().out
    for what in (what for names in EXPECTED.values() for what in names):
        assert what in out
        assert f"| {what} |" in page.read_text()
    profile, between = found["profiles"]
    assert (profile["title"], between["title"]) == ("A token at 0 ms", "Between two jobs on the device")
    assert between["legs"][-1]["what"] == "-> the next one is on the device"
    assert {"infer", "wait"} <= {part["what"] for part in profile["calls"]}
    layers = {part["what"]: part["times"] for part in profile["layers"]}
    assert layers["Lane.infer"] == layers["Lane.read"] == 1
    assert layers["Engine.on_step"] >= layers["steps of the rulebook"] > 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--lines", "tpot,speed"], "'speed' is no part of the benchmark; there are logits, straight, tpot"),
        (["--latencies-ms", "5,x"], "'5,x'; expected whole milliseconds, 0 to 1000"),
        (["--latencies-ms", "1001"], "'1001'; expected whole milliseconds"),
        (["--plot", "x.txt"], "'x.txt'; expected a name that ends in .png or .svg or .pdf"),
        (["--json", "no/such/place.json"], "expected a file in a directory that is there"),
        (["--blocks", "1"], "1 is not in the range x>=2"),
    ],
)
def test_what_is_wrong_with_an_option(options: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--quick", *options]) is Exit.USAGE
    said = capsys.readouterr().err
    assert text in " ".join(said.split())
    assert "Traceback" not in said


def test_the_help_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--help"]) is Exit.OK
    out = capsys.readouterr().out
    for name in EXPECTED:
        assert f"\n    {name} " in out
    assert "calexec bench --quick" in out


def test_only_what_needs_no_panel_runs_on_a_vendors_device() -> None:
    with pytest.raises(Failure, match=r"tpot, gap: the simulator is needed.*without it: logits and straight"):
        bench.refuse_without_simulator(("logits", "tpot", "gap"))
    bench.refuse_without_simulator(("logits", "straight"))
