"""The device under many clients: how long it is idle between two jobs, how much it is used, and who waits how long.

Theory. Each client asks for the next token as soon as it has one, so there is always somebody who waits. The device's
own records say when each job went onto it and when `Wait()` could know that it was done; what lies between one job's
end and the next one's begin is the host's. Gaps before which nobody had asked yet are left out: there the device had
nothing to do. The jobs' milestones are brought onto the device's clock, which is the same clock with another zero.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence as Items
from functools import partial
from itertools import pairwise

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from runtime.bench_calls import NotTheSame
from runtime.bench_line import Goal, Line, line
from runtime.bench_profile import Profile, Steps, between, steps_of
from runtime.bench_setting import HOST_MS, Setting
from runtime.bench_sides import DEVICES, TRACE, Client, Token, executor_on, still
from runtime.executor import DeviceExecutor
from runtime.legacy import LegacyLibrary
from runtime.run import idle
from runtime.simulator import Ended, Simulator
from runtime.together import together

__all__ = ["GAP", "Block", "Job", "blocks_of", "gap_lines", "gap_ms", "gap_profile"]

GAP = "gap"
LATENCY_MS = 5
PROMPT = tuple(range(16))
TOKEN = 7
HANDOFFS = 3
HOT, COLD = 3_000, 50  # hand-offs to measure; the cold ones after a pause as long as a job
UTILISATION = Goal(97, at_most=False)  # %
AS_FLOOR = Goal(1.0)
BEGINS = "the next one is on the device"


@frozen
class Job:
    """One job on the device's clock (us). wait_us: from its client's request until infer() had accepted it; total_us:
    until its client had the logits. returned_us: when its Wait() had returned, by the clock in C."""

    client: int
    job_id: int
    asked_us: float
    wait_us: float
    total_us: float
    begin_us: int
    told_us: int
    returned_us: float


@frozen
class Block:
    """Jobs that followed each other on the device. gaps_us: before each but the first, where somebody waited."""

    gaps_us: NDArray[np.float64]
    utilisation: float
    period_us: float
    wait_max_to_median: float
    total_max_to_median: float
    tokens_min_to_max: float


def gap_lines(s: Setting) -> Iterator[Line]:
    """Raises NotTheSame when the device has not seen just the jobs that the clients had; DeviceFailed."""
    clients, jobs = s.size.clients, s.size.jobs * s.size.blocks
    simulator = Simulator.beside(s.library, DEVICES["executor"])
    simulator.power_cycle()
    simulator.set(trace_limit=max(TRACE, 2 * (jobs + clients)))
    handoffs = _handoffs_us(s)
    with executor_on(s.manifest, jobs_max=2 * clients, sequences_max=2 * clients) as executor:
        simulator.set(decode_us=1_000 * LATENCY_MS)
        zero_us = zero_of(simulator)
        found = served(executor, simulator, clients, jobs, zero_us)
        steps = steps_of(executor.journal)
    s.step(gap_ms(s))
    yield from lines_of(list(blocks_of(found, s.size.jobs)), handoffs, clients)
    s.told(gap_profile(found, steps, zero_us))


def gap_ms(s: Setting) -> float:
    return s.size.jobs * s.size.blocks * (LATENCY_MS + HOST_MS)


def lines_of(blocks: Items[Block], handoffs: tuple[float, float], clients: int) -> Iterator[Line]:
    """handoffs: of C threads (us), and after a pause as long as a job."""
    hot_us, cold_us = handoffs
    for percent in (50, 99):
        gaps = np.array([np.percentile(b.gaps_us, percent) for b in blocks])
        for what, each_us, goal in (("3 hand-offs", hot_us, AS_FLOOR), ("3 cold hand-offs", cold_us, None)):
            yield line(
                GAP, f"idle gap P{percent} / {what}", gaps / (HANDOFFS * each_us), goal=goal,
                names=("device idle", what), ours=float(np.median(gaps)), base=HANDOFFS * each_us,
            )  # fmt: skip
    many = f"{clients} clients"
    used = [100 * b.utilisation for b in blocks]
    yield line(GAP, f"utilisation, {many}", used, goal=UTILISATION, value_unit="%")
    yield line(
        GAP, "a job's period / the device's 5 ms", [b.period_us / (1_000 * LATENCY_MS) for b in blocks],
        names=("period", "5 ms"), ours=float(np.median([b.period_us for b in blocks])), base=1_000 * LATENCY_MS,
    )  # fmt: skip
    for what, values in (
        ("wait max / median", [b.wait_max_to_median for b in blocks]),
        ("total max / median", [b.total_max_to_median for b in blocks]),
        ("tokens min / max", [b.tokens_min_to_max for b in blocks]),
    ):
        yield line(GAP, f"{what}, {many}", values)


def _handoffs_us(s: Setting) -> tuple[float, float]:
    legacy = LegacyLibrary(s.library)
    hot, cold = legacy.handoffs_ns(HOT), legacy.handoffs_ns(COLD, 1_000 * LATENCY_MS)
    return float(np.median(hot)) / 1_000, float(np.median(cold)) / 1_000


def gap_profile(jobs: Items[Job], steps: Steps, zero_us: float) -> Profile:
    """What happens in a gap: steps of the job that has ended, and of the next one."""
    timelines = [
        dict(_moments(a, b, steps, zero_us)) for a, b in pairwise(jobs) if {a.job_id, b.job_id} <= steps.keys()
    ]
    gaps = [b.begin_us - a.told_us for a, b in pairwise(jobs)]
    return Profile("Between two jobs on the device", float(np.median(gaps)), tuple(between(timelines, BEGINS)))


def _moments(ended: Job, following: Job, steps: Steps, zero_us: float) -> Iterator[tuple[str, float]]:
    """(moment, us since the device could tell of the end)."""
    yield "told", 0.0
    yield "Wait() returned", ended.returned_us - ended.told_us
    for job, whose in ((ended, "ended"), (following, "next")):
        for rule, at_us in steps[job.job_id].items():
            if ended.told_us <= at_us - zero_us <= following.begin_us:
                yield f"{rule} ({whose})", at_us - zero_us - ended.told_us
    yield BEGINS, float(following.begin_us - ended.told_us)


# -- the jobs ----------------------------------------------------------------------------------------------------------


def blocks_of(jobs: Items[Job], size: int) -> Iterator[Block]:
    """Of `size` jobs each, in the order in which they were on the device."""
    for i in range(0, len(jobs) - size + 1, size):
        yield _block(jobs[i : i + size])


def _block(jobs: Items[Job]) -> Block:
    gaps = [b.begin_us - a.told_us for a, b in pairwise(jobs) if b.asked_us <= a.told_us]
    span_us = jobs[-1].told_us - jobs[0].begin_us
    waits, totals = (np.array(values) for values in zip(*((j.wait_us, j.total_us) for j in jobs), strict=True))
    _, counts = np.unique([j.client for j in jobs], return_counts=True)
    return Block(
        np.array(gaps, np.float64), sum(j.told_us - j.begin_us for j in jobs) / span_us, span_us / len(jobs),
        float(waits.max() / np.median(waits)), float(totals.max() / np.median(totals)),
        float(counts.min() / counts.max()),
    )  # fmt: skip


def served(executor: DeviceExecutor, simulator: Simulator, clients: int, jobs: int, zero_us: float) -> list[Job]:
    """So many jobs of so many clients, in the order in which they were on the device. zero_us: as of `zero_of`. Raises
    NotTheSame."""
    all_ = [Client(executor) for _ in range(clients)]
    for number, client in enumerate(all_):
        client.prefill(number, PROMPT)
        client.tokens = []
    idle(executor)
    begun = len(simulator.jobs())
    left = itertools.count(jobs - 1, -1)  # next() of it is one step

    def serve(number: int) -> None:
        while next(left) >= 0:
            all_[number].decode(number, TOKEN)

    with still():
        together({f"client {i}": partial(serve, i) for i in range(clients)}, threading.Event())
    idle(executor)
    tokens = [(i, t) for i, client in enumerate(all_) for t in client.tokens or ()]
    return matched(tokens, simulator.jobs(begun), zero_us)


def matched(tokens: Items[tuple[int, Token]], ended: Items[Ended], zero_us: float) -> list[Job]:
    """(client, token) and the device's records: the same jobs, in the same order. Raises NotTheSame."""
    if len(tokens) != len(ended):
        raise NotTheSame(f"the clients had {len(tokens)} jobs, the device {len(ended)}")
    in_order = sorted(tokens, key=lambda item: item[1].timings.submitted_us or 0)
    return [
        Job(
            client, t.job_id, t.asked_ns / 1_000 - zero_us, (t.timings.submitted_us or 0) - t.asked_ns / 1_000,
            (t.awake_ns - t.asked_ns) / 1_000, record.begin_us, record.told_us,
            (t.timings.completed_us or 0) - zero_us,
        )
        for (client, t), record in zip(in_order, ended, strict=True)
    ]  # fmt: skip


def zero_of(simulator: Simulator) -> float:
    """When the device's clock was 0, on the monotonic clock (us), to within the time of one question."""
    before_ns = time.monotonic_ns()
    at_us = simulator.truth("now_us")
    return (before_ns + time.monotonic_ns()) / 2_000 - at_us
