"""`calexec run`: clients that begin again what was lost, and that the command is red when anything is wrong."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from executing import executing, unused

from runtime.calbin import sample
from runtime.calrt import Library
from runtime.cli import run
from runtime.clients import Client, Clients, Order
from runtime.exits import Exit
from runtime.job import InferenceResult, JobHandle
from runtime.manifest import load_manifest
from runtime.prompts import Prompt, read_prompts, tokenise
from runtime.report import Report, percentile
from runtime.run import books
from runtime.run_command import at_least
from runtime.simulator import Simulator
from runtime.status import JobTimings, Status, StatusKind
from runtime.straight import DeviceFailed, Straight
from runtime.strict_json import dumps
from runtime.symptoms import UNKNOWN, Fault, cause_of, unexplained
from runtime.tally import Answers, Ends
from runtime.weather import SURVIVABLE, Weather, _when

GOLDEN_JOBS = 5
PROMPTS = read_prompts()


@pytest.fixture
def sim(library: Library) -> Simulator:
    return unused(library)


def as_json(sim: Simulator, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[Exit, dict[str, Any]]:
    exit_ = run(["run", "--model", "tiny", "--device", str(sim.index), "--json", *args])
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out)
    assert found["exit"] == exit_.name
    return exit_, found


def report(**more: Any) -> Report:
    good = Report(
        model="m", prompts=10, clients=1, requests={Ends.COMPLETED: 10}, jobs={"OK": 10}, tokens=10, seconds=1.0,
        ttft_p50_us=1, ttft_p99_us=1, tpot_p50_us=1, tpot_p99_us=1, faults=0, resets=0, drains={}, generations=1,
        tokens_in_last_generation=10, differences=0, violations=0, unexplained=0, unanswered=0, changed_answers=0,
        steps=99, wrong_steps=0, served_after=None, leases_left=0, ledger=(), closed=True, given_back=True,
        device_failed=False, findings=(),
    )  # fmt: skip
    return evolve(good, **more)


# -- the whole command -------------------------------------------------------------------------------------------------
@pytest.mark.shows("§13.2-2")
def test_without_faults(sim: Simulator, capsys: pytest.CaptureFixture[str]) -> None:
    exit_, found = as_json(sim, capsys, "--limit", "6", "--tokens", "5", "--clients", "3")
    assert exit_ is Exit.OK
    assert found["requests"] == {"completed": 6}
    assert found["jobs"] == {"OK": 30}
    assert (found["tokens"], found["generations"], found["faults"]) == (30, 1, 0)
    assert (found["ledger"], found["leases_left"], found["closed"], found["given_back"]) == ([], 0, True, True)
    assert sim.truth("jobs_completed") == 30 + GOLDEN_JOBS
    assert sim.truth("buffers_alive") == 0
    assert 0 < found["tpot_p50_us"] <= found["tpot_p99_us"]


def test_with_faults_and_cancels(sim: Simulator, capsys: pytest.CaptureFixture[str]) -> None:
    """One client: what a fault of one job does to another's tokens is no part of this test."""
    exit_, found = as_json(
        sim, capsys, "--limit", "12", "--tokens", "12", "--clients", "1", "--faults", "0.02", "--cancel", "0.3",
        "--seed", "5", "--latency-decode-us", "5000", "--latency-prefill-us", "5000",
    )  # fmt: skip
    orders = [Order(12, 0.3, 5).cancelled_at(p)[0] for p in PROMPTS[:12]]
    cancelled = found["requests"]["cancelled"]
    assert 0 < cancelled <= sum(at is not None for at in orders)  # a cancel may come too late
    assert found["requests"] == {"completed": 12 - cancelled, "cancelled": cancelled}
    assert exit_ is Exit.OK, found["findings"]
    assert found["resets"] == sum(found["drains"].values()) > 0
    assert found["generations"] == 1 + found["resets"]
    assert found["faults"] >= found["resets"]


def test_a_failed_device_has_an_exit_code_of_its_own(sim: Simulator, capsys: pytest.CaptureFixture[str]) -> None:
    """Policy exit never resets."""
    sim.fault("infer", "ccu_exception", nth=GOLDEN_JOBS + 8)
    exit_, found = as_json(sim, capsys, "--limit", "4", "--tokens", "5", "--clients", "1", "--policy", "exit")
    assert exit_ is Exit.FAILED
    assert found["requests"] == {"completed": 1, "device failed": 3}
    assert (found["resets"], found["generations"], found["ledger"]) == (0, 1, None)
    assert found["differences"] == found["unexplained"] == 0


def test_faults_everywhere_may_be_the_end(sim: Simulator, capsys: pytest.CaptureFixture[str]) -> None:
    exit_, found = as_json(sim, capsys, "--limit", "2", "--faults", "1", "--faults-everywhere")
    assert exit_ is Exit.FAILED
    assert found["tokens"] == 0
    assert found["faults"] > 0


def test_a_device_that_computes_wrongly_is_red(
    library: Library, sim: Simulator, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Negative control: a manifest that does not say what the golden run has to say."""
    manifest = load_manifest(sample("tiny").with_suffix(".json"))
    shutil.copy(manifest.calbin_path, tmp_path)
    ignorant = tmp_path / "tiny.json"
    ignorant.write_text(dumps(evolve(manifest, golden_sha256="")), encoding="utf-8")
    sim.set(reset_is_honest=0)
    sim.fault("infer", "ccu_exception")
    with Straight(library, manifest, sim.index) as model, pytest.raises(DeviceFailed, match="DONE_CCU_EXCEPTION"):
        model.prefill(0, [1])
    assert sim.truth("broken") == 1
    exit_, found = as_json(sim, capsys, "--limit", "2", "--tokens", "3")
    assert exit_ is Exit.OK
    assert found["generations"] > 1, "the shipped manifest says what the golden run has to say"
    sim.power_cycle()
    sim.set(reset_is_honest=0)
    sim.fault("infer", "ccu_exception")
    with Straight(library, manifest, sim.index) as model, pytest.raises(DeviceFailed):
        model.prefill(0, [1])
    exit_, found = as_json(sim, capsys, "--limit", "2", "--tokens", "3", "--model", str(ignorant))
    assert exit_ is Exit.DIFFERENT
    assert found["differences"] >= 5
    assert found["findings"][0].startswith("differences: prompt ")


def test_latencies_are_set_for_the_run_and_put_back(sim: Simulator, capsys: pytest.CaptureFixture[str]) -> None:
    sim.set(decode_us=7)
    exit_, found = as_json(
        sim, capsys, "--limit", "1", "--tokens", "4", "--latency-decode-us", "20000", "--latency-prefill-us", "9000"
    )
    assert exit_ is Exit.OK
    assert found["tpot_p50_us"] >= 20_000  # no decode can be faster; how much slower is not asserted
    assert found["ttft_p50_us"] >= 9_000
    assert (sim.get("decode_us"), sim.get("prefill_us")) == (7, 0)


def test_the_table(sim: Simulator, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["run", "--model", "tiny", "--device", str(sim.index), "--limit", "2", "--tokens", "3"]
    assert run(args) is Exit.OK
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["tiny", "on", "a", "simulated", "device,", "4", "clients"]
    for line in (["requests", "2"], ["completed", "2"], ["jobs", "6"], ["OK", "6"], ["violations", "0"],
                 ["leases", "left", "0"], ["ledger", "balanced"]):  # fmt: skip
        assert line in lines


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "nix"], "no sample model is called 'nix'"),
        (["--faults", "1.5"], "1.5 is not in the range"),
        (["--policy", "reset"], "'reset' is not one of 'exit', 'rebuild', 'reuse'"),
        (["--model", "tiny", "--tokens", "257"], "leaves no room for a prompt"),
        (["--prompts", "/nowhere"], "/nowhere: cannot be read"),
        (["--latency-decode-us", "1000001"], "1000001 is not in the range"),
    ],
)
def test_what_cannot_be_run(sim: Simulator, capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    assert run(["run", "--device", str(sim.index), *args]) is Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


# -- the verdict -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("found", "exit_"),
    [
        ({}, Exit.OK),
        ({"violations": None}, Exit.OK),
        ({"differences": 1}, Exit.DIFFERENT),
        ({"violations": 1}, Exit.DIFFERENT),
        ({"unexplained": 1}, Exit.UNEXPLAINED),
        ({"unanswered": 1}, Exit.UNEXPLAINED),
        ({"changed_answers": 1}, Exit.DIFFERENT),
        ({"wrong_steps": 1}, Exit.DIFFERENT),
        ({"served_after": True, "faults": 3}, Exit.OK),
        ({"served_after": False, "faults": 3}, Exit.UNEXPLAINED),
        ({"leases_left": 1}, Exit.UNEXPLAINED),
        ({"ledger": ("free: ...",)}, Exit.UNEXPLAINED),
        ({"closed": False}, Exit.UNEXPLAINED),
        ({"closed": False, "abandoned": True}, Exit.ABANDONED),
        ({"closed": False, "abandoned": True, "leases_left": 1}, Exit.ABANDONED),
        ({"closed": False, "abandoned": True, "unanswered": 1}, Exit.UNEXPLAINED),
        ({"closed": False, "faults": 3}, Exit.UNEXPLAINED),
        ({"given_back": False}, Exit.UNEXPLAINED),
        ({"given_back": False, "faults": 3}, Exit.OK),
        ({"device_failed": True, "ledger": None, "closed": False}, Exit.FAILED),
        ({"device_failed": True, "differences": 1}, Exit.DIFFERENT),
        ({"requests": {Ends.COMPLETED: 9, Ends.GIVEN_UP: 1}}, Exit.UNEXPLAINED),
        ({"requests": {Ends.COMPLETED: 9, Ends.GIVEN_UP: 1}, "faults": 3}, Exit.OK),
        ({"requests": {Ends.COMPLETED: 8, Ends.GIVEN_UP: 2}, "faults": 3}, Exit.UNEXPLAINED),
        ({"requests": {Ends.COMPLETED: 5, Ends.CANCELLED: 5}}, Exit.OK),
        ({"requests": {Ends.COMPLETED: 4, Ends.CANCELLED: 5, Ends.GIVEN_UP: 1}, "faults": 3}, Exit.UNEXPLAINED),
    ],
)
def test_the_exit_code(found: dict[str, Any], exit_: Exit) -> None:
    assert report(**found).exit is exit_


def test_percentiles_are_nearest_ranks() -> None:
    values = [int(v) for v in np.random.default_rng(3).integers(0, 1000, 137)]
    for percent in (50, 99):
        assert percentile(values, percent) == np.percentile(values, percent, method="inverted_cdf")
    assert percentile([], 50) is None


REFUSED = Status(kind=StatusKind.INTERNAL, stage="commit 5 tokens of sequence 3")
UNAVAILABLE = Status(kind=StatusKind.UNAVAILABLE, stage="infer", code=18)


@pytest.mark.parametrize(
    ("status", "faults", "why"),
    [
        (UNAVAILABLE, [Fault("infer", "return", 18)], None),
        (UNAVAILABLE, [], "no fault was injected"),
        (
            UNAVAILABLE,
            [Fault("wait", "return", 28), Fault("infer", "nan")],
            "none of the faults explains it (wait: return 28, infer: nan)",
        ),
        (UNAVAILABLE, [UNKNOWN], None),
        (Status(kind=StatusKind.UNAVAILABLE, stage="submitter.drop"), [Fault("infer", "nan")], None),
        (Status(kind=StatusKind.DEADLINE_EXCEEDED, stage="clock.execution"), [Fault("infer", "hang")], None),
        (
            Status(kind=StatusKind.DEADLINE_EXCEEDED, stage="clock.execution"),
            [Fault("infer", "nan")],
            "none of the faults explains it (infer: nan)",
        ),
        (REFUSED, [Fault("apply", "refuse")], None),
        (REFUSED, [Fault("wait", "timeout")], "none of the faults explains it (wait: timeout)"),
        (Status(kind=StatusKind.INTERNAL, stage="GetStatus"), [Fault("infer", "ccu_exception")], None),
        (
            Status(kind=StatusKind.INTERNAL, stage="submitter died"),
            [Fault("infer", "hang")],
            "none of the faults explains it (infer: hang)",
        ),
        (Status(kind=StatusKind.CANCELLED, stage="client.cancel"), [Fault("infer", "hang")], "nobody cancelled it"),
        (Status(kind=StatusKind.UNAVAILABLE), [Fault("infer", "hang")], "no cause"),
    ],
)
def test_what_is_unexplained(status: Status, faults: list[Fault], why: str | None) -> None:
    assert unexplained(status, faults) == why


def test_causes_have_no_numbers_of_their_own() -> None:
    texts = [Status(kind=StatusKind.INTERNAL, stage=f"commit {n} tokens of sequence {n + 1}") for n in (1, 22)]
    assert {cause_of(s) for s in texts} == {"commit n tokens of sequence n"}
    assert cause_of(Status(kind=StatusKind.UNAVAILABLE, stage="infer", code=18)) == "DeviceUnavailable"


# -- its parts ---------------------------------------------------------------------------------------------------------
def test_the_books_are_compared_with_what_there_is(library: Library) -> None:
    """Negative control: a lease that no job has."""
    with executing(library) as b:
        b.tokens(1, [1, 2, 3], 2)
        assert books(b.executor) == ()
        pool = b.executor.calls.pool
        assert pool is not None
        lease = pool.lease()
        assert books(b.executor) == ("free: the books say 3, there are 2",)
        assert pool.give_back(lease) is None


def test_a_handle_that_is_not_answered_is_counted(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """And everybody stops."""
    prompts = tuple(Prompt(n, "slow", tokenise("slow")) for n in (1, 2))
    monkeypatch.setattr(JobHandle, "tell", lambda self: None)
    monkeypatch.setattr("runtime.executor.LATEST_S", 0.2)
    with executing(library) as b:
        expected = {p.line: b.oracle.tokens(p.tokens, 1) for p in prompts}
        clients = Clients(b.executor, prompts, Order(1, deadline_s=0.1), expected, Weather(b.sim), late_s=0.2)
        clients.serve(1)
    said = "unanswered: job 1: 0.1 s were its deadline, and 0.2 s more have passed (submitter: "
    assert clients.tally.unanswered == 1
    assert clients.tally.findings[0].startswith(said)
    assert clients.tally.requests == {Ends.INTERRUPTED: 2}


def test_a_fault_between_two_tokens_of_a_sequence_explains_that_it_is_lost(library: Library) -> None:
    """A slow client finds the device Ready again, in another generation."""
    prompts = (Prompt(1, "slow", tokenise("slow")),)
    with executing(library) as b:
        weather = Weather(b.sim)
        weather.follow(b.executor)
        client = Client(Clients(b.executor, prompts, Order(2), {}, weather, late_s=1.0), 0)
        values = list(prompts[0].tokens)
        assert client._ask(1, values, 0, None)[0].ok
        b.sim.fault("infer", "ccu_exception")
        assert not b.run(2, values).status.ok
        assert b.executor.wait_ready(10)
        status, _ = client._ask(1, [5], len(values), None)
        assert (status.stage, client._tally.findings) == ("admission.refuse", [])
        assert client._ask(3, values, 0, None)[0].ok
        assert not client._ask(3, [5], 1, None)[0].ok
        assert client._tally.unexplained == 1, "control: a wrong length, and no fault since it began"


def test_a_second_answer_is_seen_when_it_is_looked_for_and_when_it_is_forgotten() -> None:
    def answer(job: int, kind: StatusKind) -> InferenceResult:
        return InferenceResult(Status(kind=kind, job_id=job), None, JobTimings())

    answers, handles = Answers(), [JobHandle(n, lambda: False) for n in range(12)]
    found = []
    for handle in handles:
        first = answer(handle.job_id, StatusKind.OK)
        assert handle.settle(first)
        handle.tell()
        assert not handle.settle(answer(handle.job_id, StatusKind.CANCELLED)), "the first one counts"
        found += answers.add(handle, first)
        if handle.job_id in (0, 11):
            handle._result = answer(handle.job_id, StatusKind.CANCELLED)
    assert found == ["job 0: first OK: job 0, then CANCELLED: job 0"]
    assert answers.look() == ["job 11: first OK: job 11, then CANCELLED: job 11"]
    assert answers.look() == []


def test_too_few_generations_are_red() -> None:
    few = at_least(report(generations=2), 3)
    assert few.exit is Exit.UNEXPLAINED
    assert few.findings == ("generations: 2, and at least 3 were asked for",)
    assert at_least(report(generations=3), 3) == report(generations=3)


def test_the_faults_that_were_injected_are_known(sim: Simulator, library: Library) -> None:
    """By the calls that the device has seen, against its own count."""
    with executing(library, recoveries_max=1000) as b:
        weather = Weather(b.sim, 3, 0.2)
        weather.before_start()
        weather.follow(b.executor)
        for n in range(60):
            b.run(n, [1, 2, 3])
            b.executor.seq_rm(n)
            assert b.executor.wait_ready(10)
        weather.end()
        known = weather.since(0)
        assert len(known) == weather.fired() > 20
        assert len({f.action for f in known}) > 5
        assert {f.call for f in known} == {"infer", "wait", "apply", "can_allocate"}


def test_cancels_are_drawn_by_prompt() -> None:
    prompts = [Prompt(n, "x", (1,)) for n in range(1, 2001)]
    drawn = [Order(64, 0.1, 7).cancelled_at(p)[0] for p in prompts]
    assert drawn == [Order(64, 0.1, 7).cancelled_at(p)[0] for p in prompts]
    assert drawn != [Order(64, 0.1, 8).cancelled_at(p)[0] for p in prompts]
    at = [n for n in drawn if n is not None]
    assert 140 < len(at) < 260  # 200 are expected, and 4 standard deviations are 54
    assert min(at) == 0
    assert max(at) == 63


def test_faults_are_as_frequent_as_their_chance() -> None:
    gaps: Counter[int] = Counter()
    for seed in range(50):
        at = [0, *_when(random.Random(seed), 0.05)]
        gaps.update(b - a for a, b in itertools.pairwise(at))
    assert min(gaps) == 1
    mean = sum(gap * n for gap, n in gaps.items()) / gaps.total()
    assert mean == pytest.approx(20, abs=1.5)  # 3200 gaps, whose standard deviation is 19.5
    assert list(_when(random.Random(1), 1.0))[:3] == [1, 2, 3]


def test_only_what_can_be_survived_is_planned() -> None:
    """§8: 8, 9 and 23 want a person, 4, 5, 10, 11, 12 and 19 another artifact, 27 and 29 other code."""
    assert set(SURVIVABLE) == set(range(1, 30)) - {8, 9, 23} - {4, 5, 10, 11, 12, 19} - {27, 29}


def test_a_job_in_doubt_is_known_until_its_generation_ends(library: Library) -> None:
    """A commit that is refused leaves the sequence in doubt; many of them must not fill the executor's books."""
    with executing(library) as b:
        b.sim.fault("apply", "refuse", nth=2)  # after that of the reservation
        assert not b.run(1, [1, 2, 3]).status.ok
        assert b.executor.engine.read(lambda s: len(s.job_elements)) == 1
        b.sim.fault("infer", "ccu_exception")
        assert not b.run(2, [1, 2, 3]).status.ok
        assert b.executor.wait_ready(10)
        b.tokens(3, [1, 2, 3], 1)
        assert b.executor.engine.read(lambda s: len(s.job_elements)) == 0
