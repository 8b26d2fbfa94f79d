"""`calexec storm`: the executor outlives what hosts and device do to it, and a storm sees it when it does not."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from executing import unused

from machines.protocol import RULEBOOK
from runtime import breaks
from runtime.calrt import Library
from runtime.cli import run
from runtime.exits import Exit
from runtime.seeds import worst_of
from runtime.storm import ENDS, EVENTS, ended_rightly
from runtime.symptoms import Fault

SEEN_IN_A_STORM = ("kv-length", "swap")


def seed_of(
    library: Library, capsys: pytest.CaptureFixture[str], seed: int, events: int = 150
) -> tuple[Exit, dict[str, Any]]:
    """One seed in this process."""
    device = str(unused(library).index)
    exit_ = run(["storm", "--seed", str(seed), "--events", str(events), "--device", device, "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out)
    assert found["exit"] == exit_.name
    return exit_, found


def check(found: dict[str, Any], seeds: int, events: int) -> None:
    """What must be so of many seeds together."""
    reports = found["seeds"].values()
    drawn = sum((Counter(r["events"]) for r in reports), Counter())
    assert len(reports) == seeds
    assert set(drawn) == set(EVENTS), "every kind of event was there"
    ready = [r for r in reports if not r["device_failed"]]
    assert len(ready) >= 0.95 * seeds
    assert all(sum(r["events"].values()) == events for r in ready)
    assert all(r["requests"] == {"completed": 1} and r["served_after"] for r in ready)
    assert all(r["ended_by"] for r in reports if r["device_failed"])
    for r in reports:
        assert (r["differences"], r["violations"], r["unexplained"], r["unanswered"], r["wrong_steps"]) == (0,) * 5
        assert r["jobs"]["OK"] > events / 10
    assert sum(r["resets"] for r in reports) > seeds


def test_some_seeds(capfd: pytest.CaptureFixture[str]) -> None:
    """Two that get no fault that ends them, and few resets that might meet one on each rung of the ladder."""
    exit_ = run(["storm", "--seeds", "18,35", "--events", "200", "--processes", "2", "--json"])
    found = json.loads(capfd.readouterr().out)
    assert exit_ is Exit.OK, found
    check(found, 2, 200)


@pytest.mark.shows("§13.2-3.injected")
@pytest.mark.nightly
def test_a_hundred_seeds_of_a_thousand_events(capfd: pytest.CaptureFixture[str]) -> None:
    exit_ = run(["storm", "--processes", "2", "--json"])
    found = json.loads(capfd.readouterr().out)
    assert exit_ is Exit.OK, [r["findings"] for r in found["seeds"].values() if r["exit"] != "OK"]
    check(found, 100, 1000)


@pytest.mark.parametrize("name", SEEN_IN_A_STORM)
def test_a_seeded_bug_is_seen(library: Library, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Negative control. Which check sees it first depends on the storm."""
    with breaks.bug_named(name).installed():
        exit_, found = seed_of(library, capsys, 1)
    assert exit_ in (Exit.DIFFERENT, Exit.UNEXPLAINED), found
    assert found["findings"]


def test_a_fault_that_nobody_recovers_from_is_the_right_end_and_is_named(
    library: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.storm.FATAL_ONE_IN", 1)
    monkeypatch.setattr("runtime.storm_command.LULL", 1.0)  # no other fault befalls a reset, which might end it as well
    exit_, found = seed_of(library, capsys, 1)
    assert exit_ is Exit.FAILED, found
    by = "submitter.infer.compatibility", "lifecycle.golden.incompatible"  # a drain may have begun when it was planned
    assert found["ended_by"] in {f"infer: return {code} ({rule})" for code in (8, 9, 23) for rule in by}
    assert found["findings"][-1] == f"ended by {found['ended_by']}"


def test_an_end_that_no_fault_explains_is_red(
    library: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the same end, and nobody injected it."""
    monkeypatch.setattr("runtime.storm.FATAL_ONE_IN", 1)
    monkeypatch.setattr("runtime.storm_command.ended_rightly", lambda failed_by, fatal, faults: "")
    exit_, found = seed_of(library, capsys, 1)
    assert exit_ is Exit.UNEXPLAINED
    assert found["findings"][-1] == "unexplained: the device Failed, and no injected fault leads there"


@pytest.mark.parametrize(
    ("failed_by", "fatal", "faults", "ended"),
    [
        (("submitter.infer.compatibility",), "infer: return 8", (), "infer: return 8 (submitter.infer.compatibility)"),
        (("submitter.infer.compatibility",), "", (Fault("infer", "nan"),), ""),
        (
            ("completion.wait.error", "lifecycle.golden.incompatible"), "infer: return 8", (),
            "infer: return 8 (lifecycle.golden.incompatible)",
        ),
        (("completion.wait.stale",), "infer: return 8", (), ""),
        (
            ("completion.wait.error", "lifecycle.golden.failed.last"), "",
            (Fault("wait", "throw"), Fault("infer", "inf")),
            "lifecycle.golden.failed.last after wait: throw, infer: inf",
        ),
        (("completion.wait.error", "lifecycle.golden.failed.last"), "", (), ""),
        (("clock.stuck.lifecycle",), "", (Fault("infer", "nan"),), ""),
        (("clock.stuck.lifecycle",), "", (Fault("infer", "hang"),), "clock.stuck.lifecycle after infer: hang"),
        (("completion.wait.error", "clock.grace.give_up"), "infer: return 8", (Fault("infer", "hang"),), ""),
        ((), "infer: return 8", (Fault("infer", "hang"),), ""),
        (
            ("completion.wait.error", "lifecycle.golden.artifact.last"), "", (Fault("set_csr", "return", 14),),
            "lifecycle.golden.artifact.last after set_csr: return 14",
        ),
        (("completion.wait.error", "lifecycle.golden.artifact.last"), "", (Fault("wait", "throw"),), ""),
    ],
)  # fmt: skip
def test_which_ends_are_right(failed_by: tuple[str, ...], fatal: str, faults: tuple[Fault, ...], ended: str) -> None:
    assert ended_rightly(failed_by, fatal, faults) == ended


def test_the_rules_that_may_end_it_are_there() -> None:
    assert all(RULEBOOK.rule(name) for name in ENDS)


@pytest.mark.parametrize(
    ("exits", "worst"),
    [
        ([Exit.OK] * 20, Exit.OK),
        ([Exit.OK] * 19 + [Exit.FAILED], Exit.OK),
        ([Exit.OK] * 18 + [Exit.FAILED] * 2, Exit.FAILED),
        ([Exit.OK] * 19 + [Exit.UNEXPLAINED], Exit.UNEXPLAINED),
        ([Exit.FAILED] * 1 + [Exit.BUG] + [Exit.OK] * 18, Exit.BUG),
        ([Exit.FAILED], Exit.FAILED),
    ],
)
def test_one_in_twenty_may_fail(exits: list[Exit], worst: Exit) -> None:
    assert worst_of(exits, 0.05) is worst


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--log", "x"], "--log is for --seed"),
        (["--seeds", "x"], "expected something like 7,1-20"),
        (["--seed", "1", "--model", "nix"], "no sample model is called 'nix'"),
    ],
)
def test_what_cannot_be_asked(capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    assert run(["storm", *args]) is Exit.USAGE
    assert message in capsys.readouterr().err
