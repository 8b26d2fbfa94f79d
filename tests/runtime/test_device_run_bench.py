"""The benchmark runs, and refuses to compare what is not the same. No time is asserted."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from attrs import evolve

from runtime import bench
from runtime.bench import NotTheSame, conversions, decodes, same_calls
from runtime.calrt import Library
from runtime.cli import run
from runtime.device_run import DEVICE, LEGACY_DEVICE
from runtime.exits import Exit
from runtime.legacy import LegacyLibrary
from runtime.simulator import Call, Simulator


@pytest.fixture(autouse=True)
def _sims(library: Library) -> Iterator[None]:
    sims = [Simulator.beside(library, n) for n in (DEVICE, LEGACY_DEVICE)]
    for s in sims:
        s.power_cycle()
    yield
    assert [v for s in sims for v in s.violations()] == []


def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--blocks", "2", "--runs", "1", "--json"]) is Exit.OK
    rows = json.loads(capsys.readouterr().out)
    assert [(r["what"], r["ours"], r["base"]) for r in rows] == [
        ("logits, tile 1", "one pass", "plain loop"),
        ("logits, tile 1", "one pass", "legacy"),
        ("logits, tile 16", "one pass", "plain loop"),
        ("logits, tile 16", "one pass", "legacy"),
        ("decode, tile 1", "straight", "legacy"),
        ("prefill 1, tile 16", "straight", "legacy"),
    ]
    for r in rows:
        assert r["low"] <= r["ratio"] <= r["high"]
        assert r["blocks"] == 2
        assert r["ours_us"] > 0


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--blocks", "2", "--runs", "1"]) is Exit.OK
    out = capsys.readouterr().out
    assert "decode, tile 1" in out
    assert any(verdict in out for verdict in ("faster", "slower", "undecided"))


def test_both_sides_make_the_same_calls_in_every_decode(library: Library) -> None:
    """Shown before anything is timed; here that it is shown at all: the calls are there."""
    seen: list[list[str]] = []
    original = bench.same_calls

    def spy(ours: list[Call], base: list[Call]) -> None:
        seen.append([c.call for c in ours])
        original(ours, base)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "same_calls", spy)
        list(decodes(library, blocks=2, runs=1))
    assert len(seen) == 2
    for calls in seen:
        assert [c for c in calls if c in ("apply", "infer", "wait", "get_status")] == [
            "apply",
            "infer",
            "wait",
            "get_status",
        ]


def call(name: str, a: int = 0, text: str = "", result: int = 0) -> Call:
    return Call(0, 1, 0, 0, 5, 6, a, 0, result, name, text)


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


def test_different_bits_are_not_compared(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a conversion that reads one element beside the row."""
    honest = LegacyLibrary.conversion
    monkeypatch.setattr(
        LegacyLibrary,
        "conversion",
        lambda self, name, source, base, count, target: honest(self, name, source, base - (base > 0), count, target),
    )
    with pytest.raises(NotTheSame, match="tile 16: ours and plain_loop give different bits"):
        list(conversions(library, blocks=2, runs=1))
