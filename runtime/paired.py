"""Is one thing faster than another? Paired blocks, the median of their ratios, and how sure one may be of it.

Theory. On a shared machine times drift: the clock rate, the neighbours, the caches. So the two sides run in turns, in
blocks short enough that both meet the same conditions, and each pair of blocks gives one ratio; which side goes first
alternates, so that neither always finds warm caches. The median of the ratios is the answer. Its 95 % interval is a
bootstrap: the ratios are drawn anew with replacement many times, and the interval holds the middle 95 % of the medians.
An interval that straddles 1 decides nothing, and that is then the verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

__all__ = ["Comparison", "compare", "interval", "measure"]

DRAWS = 4_000
PERCENT = (2.5, 97.5)


@frozen
class Comparison:
    """`ours` against `base`. Times are medians over the blocks (us a run); ratio: ours / base, with its interval."""

    what: str
    ours: str
    base: str
    ours_us: float
    base_us: float
    ratio: float
    low: float
    high: float
    blocks: int

    @property
    def verdict(self) -> str:
        if self.low <= 1 <= self.high:
            return "undecided"
        return "faster" if self.high < 1 else "slower"


def compare(what: str, ours: str, base: str, ours_us: Iterable[float], base_us: Iterable[float]) -> Comparison:
    """From the times of paired blocks (us a run, the same order on both sides).

    Raises ValueError when they do not pair, are fewer than two, or a time is not positive: that clock measured nothing.
    """
    a, b = np.array(list(ours_us), np.float64), np.array(list(base_us), np.float64)
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"{what}: {len(a)} and {len(b)} blocks; at least 2 pairs are needed")
    if not (np.all(a > 0) and np.all(b > 0)):
        raise ValueError(f"{what}: a block took no time; make the blocks longer")
    low, high = interval(a / b)
    ours_median, base_median, ratio = (float(np.median(x)) for x in (a, b, a / b))
    return Comparison(what, ours, base, ours_median, base_median, ratio, low, high, len(a))


def interval(blocks: NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % interval of the median of `blocks`, [blocks]: the percentile bootstrap."""
    draws = np.random.default_rng(0).integers(0, len(blocks), (DRAWS, len(blocks)))
    low, high = np.percentile(np.median(blocks[draws], axis=1), PERCENT)
    return float(low), float(high)


def measure(
    ours: Callable[[], None], base: Callable[[], None], blocks: int, runs: int
) -> Iterator[tuple[float, float]]:
    """(ours, base) in us a run for each of `blocks` pairs, `runs` runs a block, after one pair that does not count."""
    for block in range(-1, blocks):
        first, second = (ours, base) if block % 2 == 0 else (base, ours)
        times = (_us_a_run(first, runs), _us_a_run(second, runs))
        if block >= 0:
            yield times if block % 2 == 0 else (times[1], times[0])


def _us_a_run(what: Callable[[], None], runs: int) -> float:
    begin_ns = time.perf_counter_ns()
    for _ in range(runs):
        what()
    return (time.perf_counter_ns() - begin_ns) / 1_000 / runs
