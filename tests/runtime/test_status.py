"""Failures, statuses, timings: every code keeps its number, every kind its server codes, every unset milestone is None.

What HTTP and gRPC say is written down here from the specification (§8, last paragraph) and from gRPC's own list.
"""

from __future__ import annotations

import itertools

import attrs
import pytest
from attrs import fields_dict

from machines.errors import CODES, SHIM_CODES, classify, code_named
from runtime.calrt import Library
from runtime.status import MILESTONES, Failure, JobTimings, Status, StatusKind, failed, now_us

BUSY, TIMEOUT, BAD_HANDLE = (code_named(name).number for name in ("DeviceBusy", "Timeout", "ShimBadHandle"))

SERVER_CODES = {
    StatusKind.OK: (200, "OK"),
    StatusKind.CANCELLED: (499, "CANCELLED"),
    StatusKind.DEADLINE_EXCEEDED: (504, "DEADLINE_EXCEEDED"),
    StatusKind.INVALID_ARGUMENT: (400, "INVALID_ARGUMENT"),
    StatusKind.RESOURCE_EXHAUSTED: (429, "RESOURCE_EXHAUSTED"),
    StatusKind.UNAVAILABLE: (503, "UNAVAILABLE"),
    StatusKind.INTERNAL: (500, "INTERNAL"),
    StatusKind.NOT_SUPPORTED: (501, "UNIMPLEMENTED"),
}


def test_every_kind_has_its_server_codes() -> None:
    assert {kind: (kind.http, kind.grpc) for kind in StatusKind} == SERVER_CODES


@pytest.mark.parametrize("number", [*(c.number for c in (*CODES, *SHIM_CODES) if c.number), 30, 999, -1, -(2**31)])
def test_a_code_is_never_lost_and_says_the_kind(number: int) -> None:
    """F44: every code there is, and codes that there are not."""
    status = Status.of(Failure("infer", number))
    assert (status.code, status.code_name) == (number, classify(number).name)
    assert (status.http, status.grpc) == (classify(number).http, classify(number).grpc)
    assert not status.ok
    assert str(number) in str(status)
    assert classify(number).name in str(status)


def test_what_the_client_was_told_may_be_something_else() -> None:
    """A job whose client had cancelled is CANCELLED, and keeps what the device said."""
    status = Status.of(Failure("wait", TIMEOUT), StatusKind.CANCELLED)
    assert (status.kind, status.http, status.code_name) == (StatusKind.CANCELLED, 499, "Timeout")


def test_a_check_of_ours_is_internal_unless_said_otherwise() -> None:
    ours = Failure("logits", text="the device wrote 2 bytes")
    assert Status.of(ours).kind is StatusKind.INTERNAL
    assert Status.of(ours, StatusKind.INVALID_ARGUMENT).http == 400
    assert Status.of(ours).code_name == ""


def test_the_log_line_keeps_what_6_1_demands() -> None:
    status = Status.of(Failure("infer", BUSY, "no engine"), job_id=5, request_id=7, seq_id=0, generation=2)
    line = str(status)
    assert line == (
        "UNAVAILABLE: job 5, request 7, sequence 0, generation 2: infer: 17 DeviceBusy (Transient): no engine"
    )
    assert str(Status(kind=StatusKind.OK)) == "OK"


def test_the_log_line_is_one_line() -> None:
    status = Status.of(Failure("infer", -770001, "what():\n  bad\x1b[31m"))
    assert str(status).isprintable()


def test_success_has_no_failure() -> None:
    with pytest.raises(ValueError, match="OK has no failure"):
        Status(kind=StatusKind.OK, code=BUSY)
    with pytest.raises(ValueError, match="OK has no failure"):
        Status.of(Failure("infer", 0), StatusKind.OK)


def test_a_failure_says_what_the_code_is_about(library: Library) -> None:
    assert failed("wait", 0, library) is None
    failure = failed("wait", TIMEOUT, library)
    assert failure == Failure("wait", TIMEOUT, classify(TIMEOUT).about)
    assert str(failure) == "wait: 13 Timeout (Transient): the runtime waited too long"


def test_the_shims_own_code_comes_with_its_sentence(library: Library) -> None:
    code = library.call("kv_release", 123456789)
    failure = failed("release", code, library)
    assert failure is not None
    assert (failure.code, failure.text) == (BAD_HANDLE, library.last_error())
    assert failure.text


# -- timings -----------------------------------------------------------------------------------------------------------
DIFFERENCES = {
    "admission_us": ("accepted", "admitted"),
    "prepare_us": ("admitted", "queued"),
    "queue_us": ("queued", "submitted"),
    "execution_us": ("submitted", "completed"),
    "total_us": ("accepted", "completed"),
}


def test_the_milestones_are_those_of_4_2() -> None:
    assert MILESTONES == ("accepted", "admitted", "queued", "submitted", "completed")


@pytest.mark.shows("S11")
@pytest.mark.parametrize("reached", list(itertools.product((False, True), repeat=5)))
def test_a_difference_needs_both_its_ends(reached: tuple[bool, ...]) -> None:
    """F51: whatever a job has reached, nothing is measured from or to what it has not."""
    timings, at_us = JobTimings(), dict(zip(MILESTONES, (10, 25, 45, 70, 100), strict=True))
    there = {name for name, yes in zip(MILESTONES, reached, strict=True) if yes}
    for name in there:
        timings.reach(name, at_us[name])
    for difference, (start, end) in DIFFERENCES.items():
        expected = at_us[end] - at_us[start] if {start, end} <= there else None
        assert getattr(timings, difference) == expected


def test_zero_is_a_time() -> None:
    timings = JobTimings(accepted_us=0, completed_us=0)
    assert timings.total_us == 0


def test_a_milestone_is_reached_once() -> None:
    timings, before_us = JobTimings(), now_us()
    timings.reach("accepted")
    assert timings.accepted_us is not None
    assert before_us <= timings.accepted_us <= now_us()
    with pytest.raises(ValueError, match="reached already"):
        timings.reach("accepted")
    with pytest.raises(KeyError, match="completed"):
        timings.reach("finished")


def test_nothing_is_measured_at_first() -> None:
    assert set(attrs.asdict(JobTimings()).values()) == {None}
    assert set(attrs.asdict(JobTimings())) >= {"h2d_ms", "device_wait_ms", "d2h_ms", "postprocess_ms", "gil_wait_us"}


def test_what_a_wait_took_comes_from_its_stamps() -> None:
    timings = JobTimings(submitted_us=900)
    timings.waited(1_000_000, 3_500_999, 3_600_999)
    assert (timings.completed_us, timings.execution_us) == (3500, 2600)
    assert (timings.device_wait_ms, timings.gil_wait_us) == (pytest.approx(2.500999), 100.0)


def test_every_time_says_what_it_is() -> None:
    metadata = {name: a.metadata for name, a in fields_dict(JobTimings).items()}
    assert [name for name, m in metadata.items() if not m.get("about") and not m.get("measures")] == []
