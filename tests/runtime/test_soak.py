"""`calexec soak`: it is green where nothing grows, and red where something does."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import seeded_leaks
from executing import ALL_GOOD, READY_S, executing, unused

from runtime import breaks, executor, soak_plot
from runtime.calbin import sample
from runtime.calrt import Library
from runtime.cli import run
from runtime.exits import Exit
from runtime.journal import Journal
from runtime.simulator import Simulator
from runtime.soak_command import LEAKS
from runtime.soak_samples import COLUMNS, GROWS
from runtime.weather import REMEMBERED, Weather

BUGS = breaks.bugs(LEAKS)
SMALL = ("--jobs", "400", "--tokens", "5", "--clients", "2")
PNG = b"\x89PNG"
# What may grow besides: what is kept is an object of Python's, a thread has a stack, a handle is the device's memory.
ALSO: dict[str, set[str]] = {
    "blocks": {"rss_bytes"}, "rss_bytes": {"blocks"}, "files": set(), "threads": {"rss_bytes", "blocks"},
    "handles": {"rss_bytes", "device_bytes"},
}  # fmt: skip


@pytest.fixture
def sim(library: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    """The executor's ring is full after few jobs, and the collector need not look at all of pytest."""
    monkeypatch.setattr(executor, "Journal", partial(Journal, 512))
    gc.collect()
    gc.freeze()
    yield unused(library)
    gc.unfreeze()


def soak(sim: Simulator, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[Exit, dict[str, Any]]:
    exit_ = run(["soak", "--device", str(sim.index), "--json", *args])
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out)
    assert found["exit"] == exit_.name
    return exit_, found


# -- the whole command -------------------------------------------------------------------------------------------------
@pytest.mark.shows("§13.2-2")
def test_with_faults_and_then_without(
    sim: Simulator, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is drawn is looked at, and not drawn: that takes longer than the soak."""
    files = tmp_path / "soak.json", tmp_path / "soak.png"
    drawn: list[Any] = []
    monkeypatch.setattr(soak_plot, "small_multiples", lambda *of, **how: drawn.append((of, how)))
    exit_, found = soak(
        sim, capsys, *SMALL, "--faults", "0.02", "--seed", "3", "--report", str(files[0]), "--plot", str(files[1])
    )
    assert exit_ is Exit.OK, found["findings"]
    told, samples = found["run"], found["samples"]
    assert told["differences"] == told["violations"] == told["unexplained"] == told["wrong_steps"] == 0
    assert told["ledger"] == []
    assert told["leases_left"] == 0
    assert samples["leases"] == [0] * len(samples["leases"])
    assert told["resets"] == sum(told["drains"].values()) >= samples["recoveries"][-1] > 0
    assert samples["faults"][-1] == told["faults"] > 0, "none after they were over"
    completed, of = found["served_after_the_faults"]
    assert completed == of > 0
    assert set(found["slopes"]) == set(found["bounds"]) == {q.name for q in GROWS}
    assert set(samples) == set(COLUMNS)
    assert samples["jobs"] == sorted(set(samples["jobs"]))
    assert samples["jobs"][-1] >= 400
    assert json.loads(files[0].read_text(encoding="utf-8")) == found
    (((path, panels), how),) = drawn
    assert path == files[1]
    assert {q.about for q in GROWS} <= {panel.title for panel in panels}
    assert all(len(series.x) == len(samples["jobs"]) for panel in panels for series in panel.series)
    assert 0 < len(how["marks"]) <= told["resets"]
    assert how["shaded"] == (0, found["warm_from_job"])


def test_every_leak_is_seen(sim: Simulator, capsys: pytest.CaptureFixture[str]) -> None:
    """Negative control, of all at once."""
    with ExitStack() as stack:
        for bug in BUGS:
            stack.enter_context(bug.installed())
        exit_, found = soak(sim, capsys, *SMALL)
    seeded_leaks.give_back()
    assert exit_ is Exit.GROWING
    assert set(found["growing"]) >= {bug.seen_as for bug in BUGS}
    for bug in BUGS:
        assert any(text.startswith("it grows: ") for text in found["findings"])
        assert not found["slopes"][bug.seen_as]["flat"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", [bug.name for bug in BUGS])
def test_a_leak_is_seen_alone(sim: Simulator, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Negative control."""
    exit_, found = soak(sim, capsys, "--jobs", "2000", "--tokens", "16", "--clients", "2", "--break", name)
    seeded_leaks.give_back()
    assert exit_ is Exit.GROWING, found
    assert found["break_seen"]
    seen_as = breaks.bug_named(name, LEAKS).seen_as
    assert set(found["growing"]) - ALSO[seen_as] == {seen_as}


@pytest.mark.shows("§13.2-2")
@pytest.mark.nightly
@pytest.mark.parametrize("faults", ["0", "0.01"])
def test_f64_flat_over_a_hundred_thousand_jobs(
    library: Library, capsys: pytest.CaptureFixture[str], tmp_path: Path, faults: str
) -> None:
    """As a service is: nothing is smaller than usual."""
    plot = tmp_path / "soak.png"
    exit_, found = soak(unused(library), capsys, "--jobs", "100000", "--faults", faults, "--plot", str(plot))
    assert exit_ is Exit.OK, found["findings"]
    assert sum(found["jobs"].values()) >= 100_000
    assert len(found["slopes"]) == len(GROWS)
    assert plot.read_bytes().startswith(PNG)


# -- a device that ends ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("more", "resets", "why"),
    [
        (("--recoveries-max", "3"), 3, "all 3 recoveries are used up; the last fault was "),
        (("--policy", "exit"), 0, "the policy never resets; the last fault was "),
    ],
)
def test_a_device_that_failed_names_why(
    sim: Simulator, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], resets: int, why: str
) -> None:
    exit_, found = soak(sim, capsys, *SMALL, "--faults", "0.2", *more)
    assert exit_ is Exit.FAILED, found["findings"]
    assert found["run"]["device_failed"]
    assert found["run"]["resets"] == resets
    assert why in found["ended_by"]
    assert found["run"]["quarantined_bytes"] <= (resets + 1) * 250_000, "a pool for each"


def test_a_device_that_failed_of_itself_is_red(
    sim: Simulator, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: nothing explains it."""
    monkeypatch.setattr("runtime.soak_command.ended_by", lambda *of: "")
    exit_, found = soak(sim, capsys, *SMALL, "--faults", "0.2", "--recoveries-max", "1")
    assert exit_ is Exit.UNEXPLAINED
    assert "unexplained: the device Failed, and no injected fault leads there" in found["findings"]


# -- what is shown and written -----------------------------------------------------------------------------------------
def test_what_a_user_reads_and_has_without_matplotlib(
    sim: Simulator, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    files = ("--report", str(tmp_path / "s.json"), "--plot", str(tmp_path / "s.png"))
    exit_ = run(["soak", "--device", str(sim.index), *SMALL, "--every", "0", *files])
    captured = capsys.readouterr()
    assert exit_ is Exit.OK, captured.out
    *lines, last = captured.err.splitlines()
    assert len(lines) > 30, "a line for each lap"
    assert all("no faults: " in line and " MiB; " in line for line in lines)
    assert max(map(len, [*lines, *captured.out.splitlines()])) <= 100
    assert "s.png was not drawn: matplotlib is not installed" in last
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]
    for quantity in GROWS:
        assert any(line.strip().startswith(quantity.about) and "flat" in line for line in captured.out.splitlines())


@pytest.mark.parametrize(
    ("args", "exit_", "message"),
    [
        (["--jobs", "100"], Exit.USAGE, "--jobs 100 is too little to see what grows; at least 10240: 40 laps of 4"),
        (["--jobs", "9999", "--hours", "1"], Exit.USAGE, "give one"),
        (["--hours", "0"], Exit.USAGE, "0 is not in the range"),
        (["--hours", "nan"], Exit.USAGE, "nan is not in the range 0<x<=10000"),
        (["--every", "nan"], Exit.USAGE, "nan is not in the range 0<=x<=86400"),
        (["--faults", "2"], Exit.USAGE, "2.0 is not in the range 0<=x<=1"),
        (["--tokens", "300", "--clients", "1"], Exit.USAGE, "--tokens 300 leaves no room for a prompt: max_seq is 256"),
        (["--plot", "soak.bmp"], Exit.USAGE, "--plot soak.bmp is none of .png, .svg, .pdf"),
        (["--report", "/nowhere/s.json"], Exit.NOT_WRITTEN, "cannot write /nowhere/s.json: its folder is not there"),
        (["--break", "nix"], Exit.USAGE, "no seeded bug is called 'nix'; there are results, "),
        (["--model", "nix"], Exit.USAGE, "'nix' is no file"),
    ],
)
def test_what_cannot_be_asked(capsys: pytest.CaptureFixture[str], args: list[str], exit_: Exit, message: str) -> None:
    assert run(["soak", *args]) is exit_
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_leaks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["soak", "--list-breaks"]) is Exit.OK
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [bug.name for bug in BUGS]
    assert {bug.seen_as for bug in BUGS} == {q.name for q in GROWS} - {"device_bytes"}


# -- what it stands on -------------------------------------------------------------------------------------------------
def test_live_handles_are_counted(library: Library) -> None:
    before = library.handles
    code, calbin = library.calbin(sample("tiny"))
    assert (code, library.handles) == (0, before + 1)
    assert calbin is not None
    assert library.calbin("/nowhere")[0] != 0
    assert library.handles == before + 1, "what was not made is not counted"
    assert calbin.release() == 0
    assert library.handles == before


class Panel:
    """A simulator of which only this is asked."""

    fired = 0

    def faults_fired(self) -> int:
        return self.fired


def test_of_very_many_faults_the_last_are_remembered() -> None:
    panel = Panel()
    weather = Weather(panel)  # type: ignore[arg-type]
    for _ in range(5):
        before, panel.fired = panel.fired, panel.fired + REMEMBERED
        assert len(weather.since(before)) == REMEMBERED
        assert len(weather._came) <= 2 * REMEMBERED
    assert weather.since(panel.fired) == ()
    assert len(weather.since(panel.fired - 7)) == 7
    assert len(weather.since(0)) < panel.fired, "the first ones are forgotten"


def test_faults_end_and_begin_again(library: Library) -> None:
    with executing(library, recoveries_max=1000) as b:
        weather = Weather(b.sim, seed=1, rate=1.0, facts=frozenset(ALL_GOOD))
        weather.before_start()
        weather.follow(b.executor)
        weather.end()
        assert b.tokens(1, [1, 2], 3) == b.oracle.tokens([1, 2], 3)
        assert b.sim.faults_fired() == 0
        weather.resume()
        assert not b.run(2, [1, 2]).status.ok
        weather.end()
        assert b.sim.faults_fired() > 0
        assert b.executor.wait_ready(READY_S)
        assert b.tokens(3, [1, 2], 3) == b.oracle.tokens([1, 2], 3)
