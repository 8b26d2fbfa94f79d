"""Metrics: counters that add up, gauges that are the ledger, times of what was reached alone (F51, F53).

What is said is read back by Prometheus' own parser.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from machines.errors import CODES, SHIM_CODES, code_named
from machines.job import JOB, JobState
from runtime.metrics import BUCKETS_S, INTERVALS, LABELS_MAX, Ledger, Metrics
from runtime.status import MILESTONES, Failure, JobTimings, Status, StatusKind

OK = Status(kind=StatusKind.OK)
ENDS = JOB.final | {JobState.Quarantined}
FINAL = sorted(ENDS, key=lambda state: state.code)
Key = tuple[tuple[str, str], ...]


def metrics() -> Metrics:
    return Metrics(Ledger)


def said(m: Metrics, name: str) -> dict[Key, float]:
    """The samples with this name: sorted labels -> value."""
    families = text_string_to_metric_families(m.text())
    samples = [s for family in families for s in family.samples if s.name == f"calexec_{name}"]
    found = {tuple(sorted(s.labels.items())): s.value for s in samples}
    assert len(found) == len(samples)
    return found


def total(m: Metrics, name: str) -> float:
    return sum(said(m, name).values())


def observed(m: Metrics) -> dict[str, float]:
    """How often each interval was observed."""
    return {dict(labels)["interval"]: value for labels, value in said(m, "job_seconds_count").items()}


# -- counters ----------------------------------------------------------------------------------------------------------
def test_what_was_accepted_is_what_ended_and_what_is_there() -> None:
    """F51: whatever became of them, from many threads; also those that reached nothing at all."""
    live, lock = Counter[str](), threading.Lock()
    m = Metrics(lambda: Ledger(jobs=live["jobs"]))

    def some(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(50):
            with lock:
                live["jobs"] += 1
            m.accepted()
            if chance.random() < 0.1:
                continue  # it is still there
            failure = Failure("infer", chance.choice([0, 4, 13, 17, 18, 99, -1, -770001]))
            status = chance.choice(
                [OK, *(Status.of(failure, kind) for kind in StatusKind if kind is not StatusKind.OK)]
            )
            m.ended(chance.choice(FINAL), status, JobTimings())
            with lock:
                live["jobs"] -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(some, range(16)))
    assert total(m, "jobs_accepted_total") == 16 * 50
    assert total(m, "jobs_ended_total") + total(m, "jobs") == 16 * 50
    assert 0 < total(m, "jobs") < 16 * 50


def test_a_job_is_counted_by_its_end_by_what_was_told_and_by_the_code() -> None:
    m, busy = metrics(), code_named("DeviceBusy").number
    m.ended(JobState.Succeeded, Status(kind=StatusKind.CANCELLED), JobTimings())
    m.ended(JobState.Failed, Status.of(Failure("infer", busy)), JobTimings())
    assert said(m, "jobs_ended_total") == {
        (("cause", "CANCELLED"), ("code", ""), ("state", "Succeeded")): 1,
        (("cause", "UNAVAILABLE"), ("code", "DeviceBusy"), ("state", "Failed")): 1,
    }


@pytest.mark.parametrize("state", [state for state in JobState if state not in ENDS])
def test_a_job_that_goes_on_has_not_ended(state: JobState) -> None:
    m = metrics()
    with pytest.raises(ValueError, match=f"not ended in {state.name}; final are Failed, Quarantined, Succeeded"):
        m.ended(state, OK, JobTimings())
    assert total(m, "jobs_ended_total") == 0


def test_the_other_counters() -> None:
    m = metrics()
    m.refused(Status(kind=StatusKind.RESOURCE_EXHAUSTED))
    m.recovery("clock.execution")
    m.recovery("clock.execution")
    m.recovery("submitter.infer.device")
    m.generation()
    m.violation("lease dropped")
    assert said(m, "requests_refused_total") == {(("kind", "RESOURCE_EXHAUSTED"),): 1}
    assert said(m, "recoveries_total") == {
        (("cause", "clock.execution"),): 2, (("cause", "submitter.infer.device"),): 1,
    }  # fmt: skip
    assert said(m, "generations_total") == {(): 1}
    assert said(m, "violations_total") == {(("kind", "lease dropped"),): 1}


def test_labels_do_not_grow_without_end() -> None:
    m = metrics()
    for i in range(10 * LABELS_MAX):
        m.violation(f"kind {i}")
        m.recovery(f"cause {i}")
        m.ended(JobState.Failed, Status.of(Failure("infer", 1000 + i)), JobTimings())
    for name in ("violations_total", "recoveries_total"):
        assert len(said(m, name)) == LABELS_MAX + 1
        assert total(m, name) == 10 * LABELS_MAX
    assert said(m, "jobs_ended_total") == {
        (("cause", "UNAVAILABLE"), ("code", "other"), ("state", "Failed")): 10 * LABELS_MAX
    }


def test_every_code_that_has_a_name_keeps_it() -> None:
    m, codes = metrics(), [c for c in (*CODES, *SHIM_CODES) if c.number]
    for code in codes:
        m.ended(JobState.Failed, Status.of(Failure("infer", code.number)), JobTimings())
    assert {dict(labels)["code"] for labels in said(m, "jobs_ended_total")} == {c.name for c in codes}


# -- gauges ------------------------------------------------------------------------------------------------------------
def test_a_gauge_is_the_ledger_of_this_moment() -> None:
    """F53: nothing has to be told when something ends by a way that nobody thought of."""
    now = [Ledger()]
    m = Metrics(lambda: now[0])
    names = attrs.fields_dict(Ledger)
    for first, step in ((1, 1), (0, 1), (0, 0)):
        now[0] = Ledger(**{name: first + step * i for i, name in enumerate(names)})
        assert {name: said(m, name)[()] for name in attrs.fields_dict(Ledger)} == attrs.asdict(now[0])


def test_nobody_is_asked_before_somebody_asks() -> None:
    asked: list[None] = []

    def ledger() -> Ledger:
        asked.append(None)
        return Ledger()

    m = Metrics(ledger)
    m.accepted()
    m.ended(JobState.Succeeded, OK, JobTimings())
    assert asked == []
    m.text()
    assert len(asked) == 1


# -- times -------------------------------------------------------------------------------------------------------------
ENDS = {
    "admission": ("accepted", "admitted"), "prepare": ("admitted", "queued"), "queue": ("queued", "submitted"),
    "execution": ("submitted", "completed"), "total": ("accepted", "completed"),
}  # fmt: skip
MEASURED = ("h2d", "device_wait", "d2h", "postprocess", "gil_wait")


@pytest.mark.parametrize("reached", [c for n in range(6) for c in itertools.combinations(MILESTONES, n)], ids=str)
def test_only_what_was_reached_is_observed(reached: tuple[str, ...]) -> None:
    """F51: all 32 ways to stop on the way; also the time that passed is the one that is said."""
    m, timings = metrics(), JobTimings()
    for i, name in enumerate(MILESTONES):
        if name in reached:
            timings.reach(name, 10**15 + 1000 * 2**i)
    m.ended(JobState.Failed, Status(kind=StatusKind.CANCELLED), timings)
    assert observed(m) == {name: set(ENDS.get(name, ("never",))) <= set(reached) for name in INTERVALS}
    sums_s = {dict(labels)["interval"]: value for labels, value in said(m, "job_seconds_sum").items()}
    for name, (start, end) in ENDS.items():
        if {start, end} <= set(reached):
            took_ms = 2 ** MILESTONES.index(end) - 2 ** MILESTONES.index(start)
            assert sums_s[name] == pytest.approx(took_ms / 1000)
    assert all(sums_s[name] == 0 for name, there in observed(m).items() if not there)


def test_what_was_measured_is_observed_in_seconds() -> None:
    m = metrics()
    timings = JobTimings(h2d_ms=1, device_wait_ms=2.5, d2h_ms=3, postprocess_ms=0, gil_wait_us=4)
    m.ended(JobState.Succeeded, OK, timings)
    sums_s = {dict(labels)["interval"]: value for labels, value in said(m, "job_seconds_sum").items()}
    assert {name: sums_s[name] for name in MEASURED} == pytest.approx(
        {"h2d": 0.001, "device_wait": 0.0025, "d2h": 0.003, "postprocess": 0, "gil_wait": 0.000004}
    )
    assert observed(m) == {name: name in MEASURED for name in INTERVALS}


def test_a_negative_time_is_a_violation_and_no_time() -> None:
    m = metrics()
    m.ended(JobState.Succeeded, OK, JobTimings(accepted_us=10, admitted_us=4, d2h_ms=-1.0))
    assert set(observed(m).values()) == {0}
    assert said(m, "violations_total") == {(("kind", "negative admission"),): 1, (("kind", "negative d2h"),): 1}
    assert total(m, "jobs_ended_total") == 1


def test_every_number_of_the_timings_is_observed() -> None:
    """A new one that nobody observes would be silent."""
    numbers = {name for name in attrs.fields_dict(JobTimings) if name.removesuffix("_us") not in MILESTONES}
    differences = {name for name, value in vars(JobTimings).items() if isinstance(value, property)}
    assert {attribute for attribute, _ in INTERVALS.values()} == numbers | differences
    assert all(attribute.endswith({1e6: "_us", 1e3: "_ms"}[unit]) for attribute, unit in INTERVALS.values())
    assert list(BUCKETS_S) == sorted(set(BUCKETS_S))


# -- the registry ------------------------------------------------------------------------------------------------------
def test_two_executors_share_nothing() -> None:
    one, other = metrics(), metrics()
    one.accepted()
    assert (total(one, "jobs_accepted_total"), total(other, "jobs_accepted_total")) == (1, 0)
    assert [family.name for family in REGISTRY.collect() if family.name.startswith("calexec")] == []
