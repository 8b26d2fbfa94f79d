"""Idle gaps, use and fairness from jobs whose times are known; and a profile of tokens whose milestones are known."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import pytest
from attrs import evolve

from runtime.bench_calls import NotTheSame
from runtime.bench_gap import Job, blocks_of, gap_profile, lines_of, matched
from runtime.bench_layers import Layers
from runtime.bench_profile import legs, steps_of
from runtime.bench_sides import Token
from runtime.journal import Journal
from runtime.simulator import Ended
from runtime.status import JobTimings

NUMBERS = itertools.count(1)


def job(
    client: int, begin_us: int, told_us: int, asked_us: float = 0, wait_us: float = 10, total_us: float = 20
) -> Job:
    return Job(client, next(NUMBERS), 0, wait_us, total_us, begin_us, told_us, told_us + 10)


JOBS = [job(1, 0, 900), job(2, 1000, 1900, wait_us=30), job(1, 1950, 2950, total_us=50), job(1, 3000, 4000)]


def test_a_block_by_hand() -> None:
    (block,) = blocks_of(JOBS, 4)
    assert block.gaps_us.tolist() == [100, 50, 50]
    assert block.utilisation == pytest.approx(3800 / 4000)
    assert block.period_us == 1000
    assert block.wait_max_to_median == 3
    assert block.total_max_to_median == 2.5
    assert block.tokens_min_to_max == pytest.approx(1 / 3)


def test_where_nobody_had_asked_the_device_was_not_kept_waiting() -> None:
    late = [evolve(JOBS[0]), evolve(JOBS[1], asked_us=901), *JOBS[2:]]
    (block,) = blocks_of(late, 4)
    assert block.gaps_us.tolist() == [50, 50]


def test_jobs_beyond_the_last_whole_block_are_left_out() -> None:
    assert [len(b.gaps_us) for b in blocks_of([*JOBS, *JOBS], 3)] == [2, 2]


def test_the_lines_of_the_gap() -> None:
    """Two hand-offs of 10 us each: a median gap of 50 us is 5 / 3 of three of them."""
    lines = {line.what: line for line in lines_of(list(blocks_of([*JOBS, *JOBS], 4)), (10.0, 25.0), 2)}
    assert lines["idle gap P50 / 3 hand-offs"].value == pytest.approx(50 / 30)
    assert lines["idle gap P50 / 3 hand-offs"].verdict == "not reached"
    assert lines["idle gap P50 / 3 cold hand-offs"].value == pytest.approx(50 / 75)
    assert lines["idle gap P50 / 3 cold hand-offs"].goal is None
    assert lines["utilisation, 2 clients"].value == pytest.approx(95)
    assert lines["utilisation, 2 clients"].verdict == "not reached"
    assert lines["a job's period / the device's 5 ms"].value == pytest.approx(0.2)


def token(asked_us: int, submitted_us: int, awake_us: int, job_id: int = 1, **more: int) -> Token:
    timings = JobTimings(submitted_us=submitted_us, **more)
    return Token(job_id, asked_us * 1_000, awake_us * 1_000, timings)


def test_jobs_are_the_devices_in_the_order_of_their_submits() -> None:
    """The clocks differ by 1,000 us; client 2 was submitted first."""
    tokens = [
        (1, token(2000, 3500, 4600, job_id=8, completed_us=4405)),
        (2, token(2100, 2600, 3600, job_id=9, completed_us=3405)),
    ]
    found = matched(tokens, [Ended(0, 7, 1590, 2400, 2410), Ended(1, 8, 2490, 3400, 3420)], 1000.0)
    assert found == [
        Job(2, 9, 1100, 500, 1500, 1590, 2410, 2405), Job(1, 8, 1000, 1500, 2600, 2490, 3420, 3405),
    ]  # fmt: skip


def test_another_number_of_jobs_is_not_matched() -> None:
    """Negative control."""
    with pytest.raises(NotTheSame, match="the clients had 1 jobs, the device 0"):
        matched([(1, token(2000, 3500, 4600))], [], 0.0)


def test_what_happens_in_a_gap() -> None:
    """The clocks differ by 5,000 us. What happens outside of the gap is no part of it."""
    jobs = [evolve(JOBS[0], job_id=1), evolve(JOBS[1], job_id=2), evolve(JOBS[2], job_id=3)]
    steps = {
        1: {"wait": 5500, "wait.ok": 5930, "deliver": 6950}, 2: {"infer": 5960, "wait.ok": 6920},
        3: {"arrive": 5100, "infer": 6940}, 4: {},
    }  # fmt: skip
    profile = gap_profile(jobs, steps, 5000.0)
    assert profile.us == 75  # of 100 and 50
    assert {part.what: part.us for part in profile.legs} == {
        "-> Wait() returned": 10, "-> wait.ok (ended)": 15, "-> infer (next)": 25,
        "-> the next one is on the device": 25,
    }  # fmt: skip


# -- the profile -------------------------------------------------------------------------------------------------------


def test_legs_follow_the_median_token_and_leave_out_what_not_all_have() -> None:
    tokens = [
        token(0, 40, 100, accepted_us=10, completed_us=70),
        token(1000, 1050, 1200, accepted_us=1010, completed_us=1090, queued_us=1020),
        token(2000, 2040, 2100, accepted_us=2020, completed_us=2080),
    ]
    found = {part.what: part.us for part in legs(tokens, {})}
    assert found == {"-> accepted": 10, "-> submitted": 30, "-> completed": 40, "-> awake": 30}


def test_legs_know_the_steps_of_those_tokens_that_the_journal_still_has() -> None:
    journal = Journal(entries=8)
    for number, at_us in ((1, 0), (2, 1000), (3, 2000)):
        for rule, after_us in (("arrive", 7), ("infer", 30), ("forget", 300)):
            journal.add(at_us + after_us, rule, (number, 0), "")
    tokens = [token(1000 * i, 1000 * i + 40, 1000 * i + 100, job_id=i + 1) for i in range(3)]
    assert sorted(steps_of(journal)) == [2, 3]
    found = {part.what: part.us for part in legs(tokens, steps_of(journal))}
    assert found == {"-> arrive": 7, "-> infer": 23, "-> submitted": 10, "-> awake": 60}


class Machine:
    """`outer` takes no time of its own."""

    def outer(self, times: int) -> int:
        return sum(self.inner() for _ in range(times))

    def inner(self) -> int:
        return sum(range(200_000)) and 1

    def fails(self) -> None:
        raise LookupError


def test_methods_are_counted_without_each_other_and_put_back() -> None:
    honest = dict(vars(Machine))
    layers, machine = Layers(), Machine()
    machine.told = lambda: 5  # type: ignore[attr-defined]
    with ExitStack() as stack:
        for owner, name in ((Machine, "outer"), (Machine, "inner"), (Machine, "fails"), (machine, "told")):
            stack.enter_context(layers.watching(owner, name))
        assert machine.outer(3) == 3
        assert machine.told() == 5  # type: ignore[attr-defined]
        with pytest.raises(LookupError):
            machine.fails()
    assert dict(vars(Machine)) == honest
    assert {name: layer.times for name, layer in layers.spent.items()} == {
        "Machine.outer": 1, "Machine.inner": 3, "Machine.fails": 1, "Machine.told": 1,
    }  # fmt: skip
    assert 0 <= layers.spent["Machine.outer"].cpu_ns < layers.spent["Machine.inner"].cpu_ns
