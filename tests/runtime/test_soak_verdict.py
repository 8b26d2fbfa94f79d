"""What a soak makes of its samples: slopes of known series, bounded memory, histograms."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from runtime.soak_samples import COLUMNS, GROWS, SAMPLES_MAX, Histogram, Samples
from runtime.soak_verdict import BOUNDS, SAMPLES_MIN, Pool, slopes_of, tolls_of

MIB = 1 << 20
POOL = Pool(byte_size=200_000, handles=20)
LAP = 1000


def soaked(laps: int, warm: int = 0, **how: Any) -> Samples:
    """Each quantity is 1000, plus what `how` makes of the lap's number; so are recoveries, faults, ..., which are 0."""
    samples = Samples()
    for lap in range(laps):
        base = {name: 1000.0 if any(name == q.name for q in GROWS) else 0.0 for name in COLUMNS}
        changed = {name: base[name] + make(lap) for name, make in how.items()}
        samples.add({**base, "jobs": float(LAP * (lap + 1)), **changed}, is_warm=lap >= warm)
    return samples


def growing(samples: Samples) -> list[str]:
    return [s.quantity.name for s in slopes_of(samples) if not s.flat]


# -- slopes ------------------------------------------------------------------------------------------------------------
def test_what_stays_is_flat() -> None:
    slopes = slopes_of(soaked(100))
    assert [s.quantity.name for s in slopes] == [q.name for q in GROWS]
    assert {(s.per_million, s.low, s.high, s.grown) for s in slopes} == {(0, 0, 0, 0)}
    assert all(s.flat for s in slopes)


@pytest.mark.parametrize(
    ("name", "each_lap"), [("rss_bytes", 64_000), ("blocks", 30), ("files", 1), ("threads", 1), ("handles", 0.25)]
)
def test_a_leak_is_seen_alone_and_measured(name: str, each_lap: float) -> None:
    noise = random.Random(name)
    samples = soaked(100, **{name: lambda lap: each_lap * lap + noise.uniform(-3, 3) * each_lap})
    assert growing(samples) == [name]
    (found,) = [s for s in slopes_of(samples) if s.quantity.name == name]
    assert found.low <= each_lap * 1000 <= found.high
    assert found.per_million == pytest.approx(each_lap * 1000, rel=0.05)


def test_noise_is_no_leak() -> None:
    """Seen in runs that were flat: blocks that come and go, and steps of an allocator."""
    noise = random.Random(1)
    steps = [MIB * (lap > 30) + noise.random() * MIB / 4 for lap in range(100)]
    samples = soaked(100, blocks=lambda lap: 600 * (0.89 * lap % 1), rss_bytes=lambda lap: steps[lap])
    assert growing(samples) == []


def test_a_few_outliers_are_no_leak() -> None:
    assert growing(soaked(100, rss_bytes=lambda lap: 500 * MIB * (lap % 25 == 24))) == []


def test_a_byte_for_each_job_is_allowed_for_a_million_jobs_and_four_are_not() -> None:
    assert growing(soaked(1000, rss_bytes=lambda lap: LAP * lap)) == []
    assert growing(soaked(1000, rss_bytes=lambda lap: 4 * LAP * lap)) == ["rss_bytes"]


@pytest.mark.parametrize("name", [q.name for q in GROWS if q.counted])
def test_of_what_is_counted_a_single_one_is_seen(name: str) -> None:
    """A median of slopes does not see it."""
    assert growing(soaked(100, **{name: lambda lap: lap >= 50})) == [name]


def test_the_warm_up_does_not_count() -> None:
    warming = {"rss_bytes": lambda lap: min(lap, 20) * MIB, "handles": lambda lap: min(lap, 20)}
    assert growing(soaked(100, warm=20, **warming)) == []
    assert set(growing(soaked(100, warm=0, **warming))) == {"handles"}, "one fifth of the laps moves no median"
    assert set(growing(soaked(30, warm=0, **warming))) == {"rss_bytes", "handles"}


def test_too_little_to_tell() -> None:
    assert slopes_of(soaked(SAMPLES_MIN)) == (), "the first lap has none before"
    assert slopes_of(soaked(SAMPLES_MIN + 2)) != ()
    assert slopes_of(soaked(100, warm=99)) == ()
    assert slopes_of(soaked(100, recoveries=lambda lap: lap)) == (), "never calm"


def test_what_is_not_known_is_not_judged() -> None:
    samples = soaked(100, device_bytes=lambda lap: math.nan)
    assert "device_bytes" not in [s.quantity.name for s in slopes_of(samples)]


# -- recoveries --------------------------------------------------------------------------------------------------------
def with_recoveries(each: float, calm: float = 0.0, name: str = "handles") -> Samples:
    """One recovery in laps 0, 1, 2 of 6; it leaves `each`, and each calm lap leaves `calm`."""
    recoveries = [0]
    for lap in range(1, 600):
        recoveries.append(recoveries[-1] + (lap % 6 < 3))
    calm_laps = [0]
    for lap in range(1, 600):
        calm_laps.append(calm_laps[-1] + (lap % 6 in (4, 5)))
    grown = [each * r + calm * c for r, c in zip(recoveries, calm_laps, strict=True)]
    return soaked(600, recoveries=lambda lap: recoveries[lap], **{name: lambda lap: grown[lap]})


def test_what_recoveries_leave_is_not_the_jobs() -> None:
    samples = with_recoveries(each=20)
    assert growing(samples) == []
    (toll,) = [t for t in tolls_of(samples, POOL) if t.quantity.name == "handles"]
    assert (toll.recoveries, toll.grown, toll.kept) == (299, 20 * 299, True)


def test_more_than_a_pool_for_each_recovery_is_seen() -> None:
    tolls = tolls_of(with_recoveries(each=21), POOL)
    assert [t.quantity.name for t in tolls if not t.kept] == ["handles"]


@pytest.mark.parametrize("name", ["files", "threads"])
def test_a_recovery_leaves_no_file_and_no_thread(name: str) -> None:
    tolls = tolls_of(with_recoveries(each=1, name=name), POOL)
    assert [t.quantity.name for t in tolls if not t.kept] == [name]


def test_between_recoveries_a_leak_is_seen() -> None:
    samples = with_recoveries(each=0, calm=1)
    assert growing(samples) == ["handles"]
    assert all(t.kept for t in tolls_of(samples, POOL))


def test_without_a_recovery_there_is_no_toll() -> None:
    assert tolls_of(soaked(100, handles=lambda lap: lap), POOL) == ()


# -- memory of its own -------------------------------------------------------------------------------------------------
def test_samples_are_bounded_and_lose_no_growth() -> None:
    laps = 5 * SAMPLES_MAX
    samples = soaked(laps, warm=100, blocks=lambda lap: lap)
    jobs = samples.column("jobs")
    assert SAMPLES_MAX // 2 <= len(jobs) <= SAMPLES_MAX
    assert samples.laps == laps
    assert len(set(np.diff(jobs))) == 1, "the same distance everywhere"
    grown = samples.column("blocks_between", warm=True)
    calm = samples.column("calm_jobs", warm=True)
    assert (grown == calm / LAP).all()
    assert jobs[-1] > LAP * (laps - 8)
    assert samples.column("jobs", warm=True)[0] == pytest.approx(100 * LAP, abs=8 * LAP)
    assert all(len(column) == len(jobs) for column in samples.as_columns().values())


def test_as_columns_has_none_where_nothing_is_known() -> None:
    found = soaked(3, device_bytes=lambda lap: math.nan if lap else 5.0).as_columns()
    assert found["device_bytes"] == [1005, None, None]
    assert found["jobs"] == [1000, 2000, 3000]


def test_every_quantity_has_a_bound() -> None:
    assert set(BOUNDS) == {q.name for q in GROWS}
    assert set(POOL.left_by_one()) == set(BOUNDS) - {"device_bytes"}


# -- latencies ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("percent", [1, 50, 90, 99, 99.9])
def test_quantiles_of_a_histogram(percent: float) -> None:
    draw = random.Random(7)
    values = [int(draw.lognormvariate(7, 1.5)) + 1 for _ in range(4999)]
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = float(np.percentile(values, percent, method="inverted_cdf"))
    assert histogram.percentile(percent) == pytest.approx(exact, rel=0.045)


def test_a_histogram_takes_anything_and_forgets() -> None:
    histogram = Histogram()
    assert math.isnan(histogram.percentile(50))
    for value in (0, 1, 2**70):
        histogram.add(value)
    assert histogram.total == 3
    histogram.clear()
    assert math.isnan(histogram.percentile(50))
