"""The benchmark runs, and refuses to compare what is not the same. No time is asserted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from runtime import bench_boundary
from runtime.bench_boundary import conversions, decodes
from runtime.bench_calls import NotTheSame, same_calls
from runtime.bench_setting import QUICK, Setting
from runtime.calbin import sample
from runtime.calrt import Library
from runtime.cli import run
from runtime.exits import Exit
from runtime.legacy import LegacyLibrary
from runtime.manifest import load_manifest
from runtime.simulator import Call, Simulator

DEVICES = (0, 1, 2)


@pytest.fixture(autouse=True)
def _sims(library: Library) -> Iterator[None]:
    sims = [Simulator.beside(library, n) for n in DEVICES]
    for s in sims:
        s.power_cycle()
    yield
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


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.shows("PR6.performance", "§13.3-2")
def test_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    assert run(["bench", "--quick", "--lines", "logits,straight,tpot,floor", "--json", str(file)]) is Exit.OK
    found: dict[str, Any] = json.loads(file.read_text())
    assert [(r["group"], r["what"], *r["names"]) for r in found["lines"]] == [
        ("logits", "logits, tile 1", "one pass", "plain loop"),
        ("logits", "logits, tile 1", "one pass", "legacy"),
        ("logits", "logits, tile 16", "one pass", "plain loop"),
        ("logits", "logits, tile 16", "one pass", "legacy"),
        ("straight", "decode, tile 1", "straight", "legacy"),
        ("straight", "prefill 1, tile 16", "straight", "legacy"),
        ("tpot", "TPOT P50, 5 ms", "executor", "legacy"),
        ("tpot", "TPOT P99, 5 ms", "executor", "legacy"),
        ("tpot", "TPOT P50, 20 ms", "executor", "legacy"),
        ("tpot", "TPOT P99, 20 ms", "executor", "legacy"),
        ("floor", "C hand-off", "", ""),
        ("floor", "logits pass", "", ""),
        ("floor", "3 hand-offs + logits pass", "", ""),
        ("floor", "added over straight / floor", "executor", "straight"),
        ("floor", "added over legacy / floor", "executor", "legacy"),
    ]
    for r in found["lines"]:
        assert r["low"] <= r["value"] <= r["high"]
        assert r["blocks"] == 2
    assert [p["title"] for p in found["profiles"]] == ["A token at 0 ms"]
