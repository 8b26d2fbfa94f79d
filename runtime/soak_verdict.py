"""Whether a soak was flat: robust slopes after the warm-up, held against bounds that stand here.

Theory. The slope over all calm laps is the median of the slopes between any two samples (Theil and Sen),
which a few outliers do not move; its interval says how well it is known. Flat is what, even by the upper end of that
interval, has grown over the whole run by less than it may: what noise is (`noise`), and what is accepted for 10^6 jobs.
A median does not see a single step, so of what is counted the last quarter must besides be what the first was.

Over recoveries growth is allowed, but no more than what one can leave behind: everything of one pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from attrs import frozen
from numpy.typing import NDArray
from scipy.stats import theilslopes

from runtime.soak_samples import GROWS, Quantity, Samples

__all__ = ["BOUNDS", "SAMPLES_MIN", "Bound", "Pool", "Slope", "Toll", "slopes_of", "tolls_of"]

MILLION = 1_000_000
SAMPLES_MIN = 8
POINTS_MAX = 800  # slopes are taken between any two of so many
CONFIDENCE = 0.95
BLOCKS_OF_A_HANDLE = 100


@frozen
class Bound:
    """What a quantity may grow by: noise, whatever the length of the run, and per_million for 10^6 jobs."""

    noise: float
    per_million: float = 0.0

    def allowed(self, jobs: float) -> float:
        return self.noise + self.per_million * jobs / MILLION


BOUNDS: Mapping[str, Bound] = {
    "rss_bytes": Bound(noise=2 << 20, per_million=1 << 20),
    "blocks": Bound(noise=1_000, per_million=5_000),
    "files": Bound(noise=0.5),
    "threads": Bound(noise=0.5),
    "handles": Bound(noise=0.5),
    "device_bytes": Bound(noise=0.5),
}
"""From what was seen in runs that are flat (docs/run.md): RSS rises by 0.1 MiB in 45,000 jobs, by up to 0.7 in a soak
of 400, which is hardly warm; blocks are known to 250. One byte kept for each job is 1 MiB for 10^6; one object kept for
each is a million blocks."""


@frozen
class Slope:
    """Growth with jobs, in calm laps. per_million, low, high: for 10^6 jobs, with the interval. grown:
    over the `jobs` that were measured, by the upper end. step: last quarter minus first, where it is counted."""

    quantity: Quantity
    jobs: float
    per_million: float
    low: float
    high: float
    step: float
    allowed: float

    @property
    def grown(self) -> float:
        return max(self.high * self.jobs / MILLION, self.step)

    @property
    def flat(self) -> bool:
        return self.grown <= self.allowed

    def __str__(self) -> str:
        q = self.quantity
        what = f"{q.about}: {self.per_million / q.scale:+,.2f} for 10^6 jobs"
        return f"{what}, {self.grown / q.scale:,.2f} in {self.jobs:,.0f}; at most {self.allowed / q.scale:,.2f}"


@frozen
class Pool:
    """What one generation's pool is made of: bytes of host memory, and handles with its Calbin and KvManager."""

    byte_size: int
    handles: int

    def left_by_one(self) -> dict[str, float]:
        """What a recovery may leave behind. Nothing is said of device memory, where a sequence in doubt keeps its KV
        until the next recovery; what a recovery itself leaves there are handles."""
        return {
            "rss_bytes": self.byte_size, "blocks": BLOCKS_OF_A_HANDLE * self.handles, "files": 0, "threads": 0,
            "handles": self.handles,
        }  # fmt: skip


@frozen
class Toll:
    """Growth over recoveries. grown: over all laps that were not calm."""

    quantity: Quantity
    recoveries: int
    grown: float
    allowed: float

    @property
    def kept(self) -> bool:
        return self.grown <= self.allowed

    def __str__(self) -> str:
        q, n = self.quantity, max(1, self.recoveries)
        return f"{q.about}: {self.grown / n / q.scale:+,.3f} for a recovery; at most {self.allowed / n / q.scale:,.3f}"


def slopes_of(samples: Samples) -> tuple[Slope, ...]:
    """Of each quantity that is known; empty where there are too few calm laps to tell."""
    return tuple(_slopes(samples))


def _slopes(samples: Samples) -> Iterator[Slope]:
    jobs = samples.column("calm_jobs", warm=True)
    places = _calm(jobs)
    if len(places) < SAMPLES_MIN:
        return
    for quantity in GROWS:
        values = samples.column(f"{quantity.name}_between", warm=True)[places]
        if not np.isnan(values).any():
            yield slope(quantity, jobs[places], values)


def _calm(jobs: NDArray[np.float64]) -> NDArray[np.intp]:
    """Samples at the end of a calm lap, of which at most POINTS_MAX are taken."""
    moved = np.flatnonzero(np.diff(jobs, prepend=-1) > 0)
    return moved[:: max(1, -(-len(moved) // POINTS_MAX))]


def slope(quantity: Quantity, jobs: NDArray[np.float64], values: NDArray[np.float64]) -> Slope:
    """jobs, values: at least SAMPLES_MIN of each; the jobs rise."""
    found = theilslopes(values, jobs, alpha=CONFIDENCE)
    quarter = len(values) // 4
    step = float(np.median(values[-quarter:]) - np.median(values[:quarter])) if quantity.counted else 0.0
    span = float(jobs[-1] - jobs[0])
    middle, low, high = (float(v) * MILLION for v in (found.slope, found.low_slope, found.high_slope))
    return Slope(quantity, span, middle, low, high, step, BOUNDS[quantity.name].allowed(span))


def tolls_of(samples: Samples, pool: Pool) -> tuple[Toll, ...]:
    """Of each quantity that is judged over recoveries; empty where there was none."""
    if not samples.recoveries:
        return ()
    left = pool.left_by_one()
    return tuple(
        Toll(q, samples.recoveries, grown, BOUNDS[q.name].noise + samples.recoveries * left[q.name])
        for q in GROWS
        if q.name in left and not np.isnan(grown := samples.across[q.name])
    )
