"""F51, F53: the counters of a running executor add up after every kind of fault, and its gauges are what there is.

What a gauge should say is asked of the pool, of the KV and of the rulebook's own variables; how many jobs there were is
what the clients counted; whether a milestone was reached is what the device's trace shows."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from executing import PATIENT, READY_S, Bench, executing
from moments import books, end, late, pool_of, standing, until, waiting
from prometheus_client.parser import text_string_to_metric_families

from machines.job import JobState
from runtime.buffers import BufferPool
from runtime.calls import DeviceCalls
from runtime.calrt import Library
from runtime.clients import Clients, Order
from runtime.compiled import IllegalTransition
from runtime.executor import Refused
from runtime.metrics import Ledger, Metrics
from runtime.observer import Observer
from runtime.prompts import read_prompts
from runtime.simulator import Call
from runtime.status import JobTimings, Status
from runtime.weather import Weather

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")


# -- what the metrics say ----------------------------------------------------------------------------------------------
def said(b: Bench) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name, each by its labels' values in the order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(b.executor.metrics.text()):
        for s in family.samples:
            labels = tuple(value for _, value in sorted(s.labels.items()))
            found.setdefault(s.name.removeprefix("calexec_"), {})[labels] = s.value
    return found


def total(b: Bench, name: str) -> float:
    return sum(said(b).get(name, {}).values())


def quiet(b: Bench) -> bool:
    """Nothing is under way; what is in quarantine may stay there."""
    found = books(b)
    busy = found["calls"] or found["line"] or found["permits"] > found["lost_permits"]
    return not busy and all(c.handle.done() for c in known(b))


def known(b: Bench) -> list[Any]:
    return b.executor.records.contexts()


# -- the checks --------------------------------------------------------------------------------------------------------
def add_up(b: Bench, accepted: int) -> None:
    """Accepted is ended and still there; nothing is counted twice, and nothing is below zero."""
    metrics = said(b)
    ended, there = sum(metrics.get("jobs_ended_total", {}).values()), metrics["jobs"][()]
    assert metrics["jobs_accepted_total"] == {(): accepted}
    assert (ended, there) == (accepted, 0)
    assert all(value >= 0 for values in metrics.values() for value in values.values())
    assert "violations_total" not in metrics or not metrics["violations_total"]


def gauges_are_what_there_is(b: Bench) -> None:
    written, counts, calls = books(b), pool_of(b).counts(), b.executor.calls
    assert calls.kv is not None
    gauges = {name: int(said(b)[name][()]) for name in ("slots_free", "slots_leased", "sequences_free", "waits",
              "sequences_in_doubt", "jobs_in_flight", "admission_line", "generation", "slots_quarantined")}  # fmt: skip
    assert gauges == {
        "slots_free": written["free"] + 1,  # the golden run has a slot of its own, which no rule counts
        "slots_leased": counts.leased,
        "slots_quarantined": sum(len(pool.quarantined()) for pool in calls.pools),
        "sequences_free": written["kv_free"],
        "sequences_in_doubt": written["lost_kv"],
        "jobs_in_flight": written["permits"],
        "waits": waiting(b),
        "admission_line": written["line"],
        "generation": 1 + b.rules().count("clock.grace.recover") + b.rules().count("lifecycle.recover"),
    }
    assert counts.free + counts.leased + counts.quarantined == written["free"] + 1 + written["lost_slots"]


def both(b: Bench, accepted: int) -> None:
    add_up(b, accepted)
    gauges_are_what_there_is(b)


# -- every kind of fault -----------------------------------------------------------------------------------------------
def one(b: Bench) -> int:
    b.run(1, PROMPT)
    return 1


def cancelled_before(b: Bench) -> int:
    with standing(b):
        first = b.enqueue(1, PROMPT)
        until(lambda: waiting(b))
        second = b.enqueue(2, OTHER)
        assert second.cancel()
    end(first)
    return 2


def cancelled_after(b: Bench) -> int:
    with standing(b):
        handle = b.enqueue(1, PROMPT)
        until(lambda: waiting(b))
        assert handle.cancel()
    return 1


def past_its_deadline(b: Bench) -> int:
    for nth in range(1, 200):
        b.sim.fault("can_allocate", "refuse", nth=nth)
    end(b.enqueue(1, PROMPT, deadline_us=b.executor.engine.now_us() + 100_000))
    b.sim.faults_clear()
    return 1


def wrong_past(b: Bench) -> int:
    """Accepted, and refused by the sequence's rule."""
    assert not b.run(1, [1], past=3).status.ok
    return 1


def fault(call: str, action: str, *arguments: int) -> Callable[[Bench], int]:
    def inject(b: Bench) -> int:
        b.sim.fault(call, action, *arguments)
        with_fault = b.run(1, PROMPT)
        assert call == "undo_slice" or not with_fault.status.ok
        until(b.executor.ready)
        return 1

    return inject


FAULTS: dict[str, Callable[[Bench], int]] = {
    "none": one, "cancel before submit": cancelled_before, "cancel after submit": cancelled_after,
    "deadline": past_its_deadline, "wrong past_len": wrong_past,
    "busy": fault("infer", "return", 17, 0), "request": fault("infer", "return", 14, 0),
    "transient": fault("infer", "return", 13, 0), "unavailable": fault("infer", "return", 18, 0),
    "lifecycle": fault("infer", "return", 16, 0),
    "exception": fault("infer", "ccu_exception"), "nan": fault("infer", "nan"), "short": fault("infer", "short_tensor"),
    "hang": fault("infer", "hang"), "wait timeout": fault("wait", "return", 13, 1),
    "CSR": fault("set_csr", "return", 14, 0), "slice": fault("slice_tensor", "return", 14, 0),
    "undo": fault("undo_slice", "return", 4, 0), "commit": fault("apply", "refuse", 0, 0, 2),
}  # fmt: skip


SOON = {"execution_ms": 500}
ALWAYS = {"none", "cancel before submit", "wrong past_len", "request", "lifecycle", "nan", "hang", "undo"}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in ALWAYS else [pytest.mark.nightly]) for kind in FAULTS]
)
def test_f51_f53_after_each_kind_of_fault(library: Library, kind: str) -> None:
    with executing(library, **(SOON if kind == "hang" else {})) as b:
        accepted = FAULTS[kind](b)
        until(lambda: quiet(b))
        until(lambda: not said(b)["jobs"][()])
        both(b, accepted)
        assert b.tokens(5, OTHER, 2) == b.oracle.tokens(OTHER, 2)
        until(lambda: quiet(b))
        both(b, accepted + 2)


@pytest.mark.parametrize(
    ("call", "action", "arguments", "ended"),
    [
        ("infer", "ccu_exception", (), ("INTERNAL", "", "Quarantined")),
        ("infer", "return", (18, 0), ("UNAVAILABLE", "DeviceUnavailable", "Quarantined")),
        ("set_csr", "return", (4, 0), ("INTERNAL", "IllegalValue", "Failed")),
    ],
)
def test_f51_when_the_device_failed(
    library: Library, call: str, action: str, arguments: tuple[int, ...], ended: tuple[str, ...]
) -> None:
    """No reset is allowed, or another model is not there: what is in quarantine stays there, and is counted all the
    same."""
    with executing(library, recoveries_max=0) as b:
        b.sim.fault(call, action, *arguments)
        assert not b.run(1, PROMPT).status.ok
        until(lambda: {"lifecycle.give_up", "lifecycle.no_fallback"} & set(b.rules()))
        until(lambda: total(b, "jobs_ended_total"))
        for _ in ("Failed", "closed"):
            add_up(b, 1)
            assert set(said(b)["jobs_ended_total"]) == {tuple(ended)}
            b.executor.close()


def test_what_is_in_quarantine_is_there_after_closing(library: Library) -> None:
    """Its memory is kept for ever, and a gauge that said 0 would hide it."""
    with executing(library) as b:
        FAULTS["exception"](b)
        until(lambda: quiet(b))
        assert b.executor.close()
        kept = [slot for pool in b.executor.calls.pools for slot in pool.quarantined()]
        assert said(b)["slots_quarantined"][()] == len(kept) == 1
        assert said(b)["quarantined_bytes"][()] == kept[0].byte_size > 0
        assert b.sim.truth("buffers_alive") == 2 * len(kept[0].lanes)
        assert b.executor.close(), "again the same"


def test_f51_a_call_that_never_returns(library: Library) -> None:
    """The job never ends; from the closing on nobody waits for it, and it is counted as that."""
    with executing(library, stuck_ms=60_000, close_ms=300) as b:
        there, go = threading.Event(), threading.Event()

        def hangs(job: object) -> str:
            there.set()
            go.wait(READY_S)
            return "ok"

        b.executor._table["infer"] = hangs  # type: ignore[index]
        handle = b.enqueue(1, PROMPT)
        assert there.wait(READY_S)
        b.executor.abandon()
        assert not end(handle).status.ok
        assert (total(b, "jobs_ended_total"), total(b, "jobs")) == (0, 1), "it is still there"
        b.executor.close()
        assert (total(b, "jobs_ended_total"), total(b, "jobs")) == (1, 0)
        assert {labels[-1] for labels in said(b)["jobs_ended_total"]} == {"Abandoned"}
        go.set()


def test_f51_what_is_refused_is_counted_apart(library: Library) -> None:
    with executing(library) as b:
        for values, past in (([], 0), ([1] * 300, 0), ([1], -1)):
            with pytest.raises(Refused):
                b.enqueue(1, values, past)
        b.executor.close()
        with pytest.raises(Refused):
            b.enqueue(1, PROMPT)
        assert said(b)["requests_refused_total"] == {("INVALID_ARGUMENT",): 3, ("UNAVAILABLE",): 1}
        add_up_nothing = said(b)
        assert add_up_nothing["jobs_accepted_total"] == {(): 0}
        assert "jobs_ended_total" not in add_up_nothing


@pytest.mark.parametrize("seed", [3, *(pytest.param(s, marks=pytest.mark.nightly) for s in range(20, 30))])
def test_f51_f53_after_a_storm(library: Library, seed: int) -> None:
    """Many clients, faults and cancels at once; what was accepted and refused the clients have counted themselves."""
    prompts = read_prompts()[:16]
    limits = {"recoveries_max": 1000, "jobs_max": 64, "sequences_max": 24, "abandoned_max": 8}
    with executing(library, {"decode_us": 200, "prefill_us": 200}, **limits, **SOON) as b:
        weather = Weather(b.sim, seed, 0.04)
        weather.follow(b.executor)
        expected = {p.line: b.oracle.tokens(p.tokens, 6) for p in prompts}
        clients = Clients(b.executor, prompts, Order(6, 0.3, seed), expected, weather)
        clients.serve(4)
        weather.end()
        until(lambda: quiet(b) and b.executor.ready())
        until(lambda: not said(b)["jobs"][()])
        refused = total(b, "requests_refused_total")
        accepted = clients.tally.jobs.total() - refused
        assert accepted > 50
        add_up(b, int(accepted))
        gauges_are_what_there_is(b)
        assert total(b, "recoveries_total") == weather.resets > 0
        assert counts_of_times(b)["total"] <= accepted


DRAINS, RECOVERS = "completion.wait.exception", "lifecycle.recover"


def check_cause_told_late(library: Library) -> None:
    """The drain's step is told after the recovery's, which another thread makes: report, metrics and journal agree."""
    with executing(library, **{**PATIENT, "slots": 2, "inflight": 2}) as b:
        weather = Weather(b.sim)
        weather.follow(b.executor)
        with late(b, DRAINS) as go:
            with standing(b):
                b.sim.fault("infer", "ccu_exception", nth=1)
                handles = [b.enqueue(seq_id, PROMPT) for seq_id in (1, 2)]
                until(lambda: waiting(b) == 2)
                until(lambda: DRAINS in b.rules(), move=b.sim.step)
            until(lambda: weather.resets)
            assert not go.is_set()
            assert b.rules().index(DRAINS) < b.rules().index(RECOVERS), "by the journal, this began it"
            assert weather.causes == {DRAINS: 1}
            assert said(b)["recoveries_total"] == {(DRAINS,): 1}
        assert not any(end(handle).status.ok for handle in handles[:1])
        assert b.executor.wait_ready(READY_S)


def test_f51_a_recovery_has_one_cause(library: Library) -> None:
    check_cause_told_late(library)


def test_f51_control_a_cause_by_the_order_of_telling(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Observer, "cause", lambda self, recovery: recovery)
    with pytest.raises(AssertionError):
        check_cause_told_late(library)


# -- times -------------------------------------------------------------------------------------------------------------
REACHED_BY = {  # what the device's trace must show of a job for these intervals to be known
    "admission": "apply", "h2d": "bind_sequence", "queue": "infer", "execution": "wait", "device_wait": "wait",
    "gil_wait": "wait", "total": "wait", "postprocess": "tensor_size",
}  # fmt: skip


def counts_of_times(b: Bench) -> dict[str, int]:
    found = said(b)["job_seconds_count"]
    return {labels[0]: int(value) for labels, value in found.items()}


def only_what_was_reached(b: Bench, before: dict[str, int], calls: list[Call]) -> None:
    seen = {c.call for c in calls}
    observed = {name: value - before[name] for name, value in counts_of_times(b).items()}
    returned = [c for c in calls if c.call == "infer" and c.result == 0]
    for name, call in REACHED_BY.items():
        assert observed[name] == (call in seen and (name != "queue" or bool(returned))), (name, observed)
    assert observed["d2h"] == 0, "CalRT does not report it"


@pytest.mark.shows("S11")
@pytest.mark.parametrize(
    "kind",
    [
        "none", "busy", "wait timeout",
        *(pytest.param(k, marks=pytest.mark.nightly) for k in ("nan", "CSR", "wrong past_len", "deadline")),
        pytest.param("exception", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_f51_times_of_what_was_reached_alone(library: Library, kind: str) -> None:
    with executing(library) as b:
        before, mark = counts_of_times(b), len(b.sim.trace())
        b.sim.set(trace_limit=100_000)
        FAULTS[kind](b)
        until(lambda: not said(b)["jobs"][()])
        own = list(b.sim.trace()[mark:])
        golden = next((i for i, c in enumerate(own) if c.call == "configure"), len(own))
        only_what_was_reached(b, before, own[:golden])
        sums = said(b)["job_seconds_sum"]
        assert all(0 <= value < READY_S for value in sums.values()), "no absurd latency"


def test_times_are_the_devices(library: Library) -> None:
    """A decode that takes long is seen inside Wait(), and nowhere else."""
    with executing(library, {"decode_us": 60_000}) as b:
        b.run(1, PROMPT)
        timings = b.run(1, [5], past=len(PROMPT)).timings
        wait = [c for c in b.sim.trace() if c.call == "wait"][-1]
        in_wait_ms = (wait.end_us - wait.begin_us) / 1000
        assert timings.device_wait_ms is not None
        assert in_wait_ms <= timings.device_wait_ms + 1
        assert timings.device_wait_ms > 30
        assert timings.h2d_ms is not None
        assert timings.postprocess_ms is not None
        assert timings.gil_wait_us is not None
        assert 0 <= timings.gil_wait_us < READY_S * 1e6
        assert timings.d2h_ms is None
        at = [timings.at_us(name) for name in ("accepted", "admitted", "queued", "submitted", "completed")]
        assert None not in at
        assert at == sorted(at, key=lambda us: us or 0)
        assert timings.execution_us is not None
        assert timings.execution_us >= 1000 * (timings.device_wait_ms - 1)


@pytest.mark.shows("S11")
def test_a_result_keeps_the_times_that_it_was_given(library: Library) -> None:
    """A cancelled job goes on; its client's timings do not."""
    with executing(library) as b:
        with standing(b):
            handle = b.enqueue(1, PROMPT)
            until(lambda: waiting(b))
            assert handle.cancel()
            timings = end(handle).timings
        until(lambda: not said(b)["jobs"][()])
        assert timings.completed_us is None
        assert counts_of_times(b)["total"] == 1, "what the job took is known all the same"


def test_the_time_in_which_python_could_not_run_is_known(library: Library) -> None:
    """Somebody keeps the GIL while Wait() returns in C: that is no time of the device's. At other times it is short."""
    held_s = 0.4
    keeps_the_gil = ctypes.PyDLL(None).usleep
    with executing(library, {"decode_us": 50_000}) as b:
        b.run(1, PROMPT)
        usual = b.run(1, [5], past=len(PROMPT)).timings
        handle = b.enqueue(1, [6], past=len(PROMPT) + 1)
        until(lambda: waiting(b))
        keeps_the_gil(int(held_s * 1e6))
        timings = end(handle).timings
    assert timings.gil_wait_us is not None
    assert usual.gil_wait_us is not None
    assert timings.device_wait_ms is not None
    assert timings.gil_wait_us > usual.gil_wait_us
    assert timings.gil_wait_us + 1000 * timings.device_wait_ms > 1e6 * held_s / 2, "it was held all that time"
    assert timings.gil_wait_us > 1e6 * held_s / 4
    assert timings.total_us is not None
    assert timings.total_us < 1e6 * held_s, "the device was done long before"


# -- recoveries, generations, violations -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("exception", "completion.wait.exception"), ("hang", "clock.execution"),
        pytest.param("nan", "completion.convert.invalid", marks=pytest.mark.nightly),
        pytest.param("unavailable", "submitter.infer.device", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_recoveries_by_what_began_them(library: Library, kind: str, cause: str) -> None:
    with executing(library, **(SOON if kind == "hang" else {}), recoveries_max=5) as b:
        for rounds in (1, 2):
            FAULTS[kind](b)
            assert said(b)["recoveries_total"] == {(cause,): rounds}
            assert said(b)["generations_total"] == {(): 1 + rounds}
            b.executor.seq_rm(1)


def test_a_dropped_lease_is_a_violation(library: Library) -> None:
    with executing(library) as b:
        pool_of(b).lease()  # and nobody has it
        assert said(b)["violations_total"] == {("lease dropped",): 1}
        assert said(b)["slots_quarantined"][()] == 1


@pytest.mark.parametrize("effect", ["infer", "prepare"])
def test_an_illegal_transition_is_a_violation(library: Library, effect: str) -> None:
    """In an actor, and in a client's own thread."""
    with executing(library, close_ms=200) as b:

        def bug(job: object) -> str:
            raise IllegalTransition("rule made.up: job is Queued, where commit is not possible")

        b.executor._table[effect] = bug  # type: ignore[index]
        with suppress(IllegalTransition):
            assert not b.run(1, PROMPT).status.ok
        assert said(b)["violations_total"] == {("illegal transition",): 1}


def test_a_late_write_into_quarantine_is_a_violation(library: Library) -> None:
    """The facts say that a reset stops DMA; this device goes on. Where the fact is true nothing is found."""
    for stops in (1, 0):
        with executing(library, {"reset_stops_dma": stops}, execution_ms=200, grace_ms=50, close_ms=500) as b:
            with standing(b, prefill_us=1_000_000):
                handle = b.enqueue(1, PROMPT)
                assert not end(handle).status.ok
                b.sim.set(prefill_us=0)
                until(b.executor.ready, move=lambda: b.sim.advance(20))
                b.sim.advance(2_000_000)
            b.executor.close()
            late = said(b).get("violations_total", {})
            assert late == ({} if stops else {("late write",): 1})


# -- negative controls: each seeded mistake turns a check above red ----------------------------------------------------
ROOM: dict[str, Any] = {"slots": 4, "inflight": 2}  # a job in doubt drains nothing: it stays as the fault left it


def not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job in quarantine is forgotten, as aborted jobs were."""
    ended = Metrics.ended

    def some(self: Metrics, state: JobState, status: Status, timings: JobTimings) -> None:
        if state is not JobState.Quarantined:
            ended(self, state, status, timings)

    monkeypatch.setattr(Metrics, "ended", some)


def counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    after = Observer.after

    def again(self: Observer, rule: Any, context: Any, status: Status) -> None:
        context.ended = False
        after(self, rule, context, status)

    monkeypatch.setattr(Observer, "after", again)


def slot_not_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quarantined, and still among those that are lent."""
    monkeypatch.setattr(BufferPool, "_put_away", lambda self, slot: self._quarantined.update({slot: None}))


def doubt_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The KV that a failed job leaves is not marked."""
    monkeypatch.setattr(DeviceCalls, "doubt", lambda self, context: None)


def stale_gauge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A depth that is remembered, not read."""
    ledger = Observer.ledger
    kept: list[Ledger] = []

    def first(self: Observer) -> Ledger:
        kept.append(ledger(self))
        return kept[0]

    monkeypatch.setattr(Observer, "ledger", first)


@pytest.mark.parametrize(
    ("mistake", "kind"),
    [
        (not_counted, "transient"), (counted_twice, "exception"), (slot_not_taken_out, "transient"),
        (doubt_forgotten, "transient"), (stale_gauge, "transient"),
    ],
)  # fmt: skip
def test_control_a_seeded_mistake_is_seen(
    library: Library, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None], kind: str
) -> None:
    mistake(monkeypatch)
    with executing(library, **ROOM) as b:
        total(b, "jobs")
        FAULTS[kind](b)
        until(lambda: quiet(b))
        with pytest.raises(AssertionError):
            both(b, 1)


@pytest.mark.parametrize("kind", ["transient", "exception"])
def test_control_the_same_without_a_mistake(library: Library, kind: str) -> None:
    with executing(library, **ROOM) as b:
        FAULTS[kind](b)
        until(lambda: quiet(b))
        both(b, 1)


def test_control_an_unreached_milestone_is_seen(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero in the place of None, as unset milestones were: an absurd time."""
    monkeypatch.setattr(JobTimings, "waited", lambda self, begin_ns, end_ns, now_ns: self.reach("completed", 0))
    with executing(library) as b:
        b.run(1, PROMPT)
        with pytest.raises(AssertionError):
            add_up(b, 1)
        assert ("negative total",) in said(b)["violations_total"]
