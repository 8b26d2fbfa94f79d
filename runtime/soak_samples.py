"""What a soak measures, in memory that does not grow with it: samples, their growth, and histograms of latencies.

Theory. What watches for growth must not grow itself. So all samples lie in one array that was made at the beginning;
when it is full every second one is dropped, and from then on only every second lap is kept. Latencies are counted in
buckets whose bounds grow by a sixteenth of an octave, so a quantile is known to 4 %.

A recovery may leave memory in quarantine, and a fault a sequence in doubt; a served job may leave nothing. So growth is
written into two accounts: of calm laps (`between`), and of all others. A lap is calm if no fault came and no recovery
began, in it and in the one before, for what follows a recovery is new and fills its memory first; and if faults were
planned in both or in neither, for plans are memory too. Each sample has the sums so far, so dropping samples loses
nothing of them.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from runtime.executor import DeviceExecutor
from runtime.simulator import Simulator

__all__ = ["COLUMNS", "GROWS", "SAMPLES_MAX", "Histogram", "Quantity", "Samples", "measured"]

SAMPLES_MAX = 2000
STEPS = 16  # buckets of an octave
OCTAVES = 36
PAGE = os.sysconf("SC_PAGESIZE")
THREAD_READS, THREAD_PAUSE_S = 5, 0.002


@frozen
class Quantity:
    """about: with its unit, for a table or a plot; divided by `scale` it has that unit. counted: whole numbers, of
    which a single one more is not noise."""

    name: str
    about: str
    scale: float = 1.0
    counted: bool = False


MIB = float(1 << 20)
GROWS = (
    Quantity("rss_bytes", "RSS, MiB", MIB),
    Quantity("blocks", "Python memory blocks"),
    Quantity("files", "open files", counted=True),
    Quantity("threads", "threads", counted=True),
    Quantity("handles", "C ABI handles", counted=True),
    Quantity("device_bytes", "device memory, MiB", MIB, counted=True),
)
"""What must not grow with the number of jobs."""

COLUMNS = (
    "jobs", "seconds", "cpu_seconds", *(q.name for q in GROWS), "leases", "quarantined_bytes", "generation",
    "recoveries", "faults", "injecting", "tpot_p50_us", "tpot_p99_us", "ttft_p50_us", "ttft_p99_us", "tokens_per_s",
    "calm_jobs", *(f"{q.name}_between" for q in GROWS),
)  # fmt: skip
"""Of each sample. injecting: 1 where faults were planned. calm_jobs, ..._between: served and grown so far in calm laps,
since the warm-up."""


# -- latencies ---------------------------------------------------------------------------------------------------------
class Histogram:
    """Of times in us, from 1 on. Bounded."""

    def __init__(self) -> None:
        self._counts = array("q", bytes(8 * (STEPS * OCTAVES + 1)))
        self.total = 0

    def add(self, us: int) -> None:
        self._counts[min(int(STEPS * math.log2(us)), STEPS * OCTAVES) if us > 1 else 0] += 1
        self.total += 1

    def percentile(self, percent: float) -> float:
        """The nearest rank, as the middle of its bucket; NaN without a sample."""
        rank = max(1, math.ceil(self.total * percent / 100))
        for i, count in enumerate(self._counts):
            rank -= count
            if rank <= 0:
                return float(2 ** ((i + 0.5) / STEPS))
        return math.nan

    def clear(self) -> None:
        for i in range(len(self._counts)):
            self._counts[i] = 0
        self.total = 0


# -- the process and the device ----------------------------------------------------------------------------------------
def measured(executor: DeviceExecutor, simulator: Simulator | None) -> dict[str, float]:
    """What there is now, by the names of columns. Nothing must be under way. Garbage is collected first: what only the
    collector can free is no leak, nor what the engine drops as soon as there is more of it."""
    executor.engine.read(lambda s: executor.engine.timers.drop_idle())  # some 9,000 blocks, now there, now not
    gc.collect()
    pool = executor.calls.pool
    return {
        "rss_bytes": float(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE,
        "blocks": sys.getallocatedblocks(),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": _threads(),
        "handles": executor.calls.library.handles,
        "device_bytes": simulator.truth("memory_used") if simulator else math.nan,
        "leases": pool.counts().leased if pool else 0,
        "quarantined_bytes": sum(pool.counts().quarantined_bytes for pool in executor.calls.pools),
        "generation": executor.calls.generation_id,
    }


def _threads() -> int:
    """A thread that was joined may be the kernel's a moment longer: the least of some looks."""
    found = len(os.listdir("/proc/self/task"))
    for _ in range(THREAD_READS):
        time.sleep(THREAD_PAUSE_S)
        found = min(found, len(os.listdir("/proc/self/task")))
    return found


# -- all samples -------------------------------------------------------------------------------------------------------
@define(eq=False)
class Samples:
    """One for each lap, as long as there is room. laps: that were added, kept or not. across: what has grown since the
    warm-up in laps that were not calm. warm: the lap with which the warm-up ended; None: it has not."""

    laps: int = field(default=0, init=False)
    warm: int | None = field(default=None, init=False)
    across: dict[str, float] = field(factory=lambda: dict.fromkeys((q.name for q in GROWS), 0.0), init=False)
    recoveries: int = field(default=0, init=False)  # in these laps
    _quiet: bool = field(default=False, init=False)  # the last lap
    _rows: NDArray[np.float64] = field(factory=lambda: np.full((SAMPLES_MAX, len(COLUMNS)), np.nan), init=False)
    _last: NDArray[np.float64] = field(factory=lambda: np.full(len(COLUMNS), np.nan), init=False)
    _kept: int = field(default=0, init=False)
    _stride: int = field(default=1, init=False)

    def add(self, values: Mapping[str, float], is_warm: bool) -> dict[str, float]:
        """One lap more. values: of all columns but the accounts. The row, with them."""
        row = {**dict.fromkeys(COLUMNS, 0.0), **values}
        if self.laps and self.warm is not None:
            self._account(row, dict(zip(COLUMNS, self._last.tolist(), strict=True)))
        elif is_warm:
            self.warm = self.laps
        self._last[:] = [row[name] for name in COLUMNS]
        if self.laps % self._stride == 0:
            self._keep()
        self.laps += 1
        return row

    def _account(self, row: dict[str, float], before: Mapping[str, float]) -> None:
        begun = row["recoveries"] - before["recoveries"]
        quiet = all(row[name] == before[name] for name in ("faults", "recoveries", "generation"))
        calm, self._quiet = quiet and self._quiet and row["injecting"] == before["injecting"], quiet
        row["calm_jobs"] = before["calm_jobs"] + (row["jobs"] - before["jobs"] if calm else 0)
        self.recoveries += int(begun)
        for name in self.across:
            grown = row[name] - before[name]
            row[f"{name}_between"] = before[f"{name}_between"] + (grown if calm else 0)
            self.across[name] += 0 if calm else grown

    def _keep(self) -> None:
        if self._kept == SAMPLES_MAX:
            half = SAMPLES_MAX // 2
            self._rows[:half] = self._rows[::2]
            self._kept, self._stride = half, 2 * self._stride
        self._rows[self._kept] = self._last
        self._kept += 1

    @property
    def warm_row(self) -> int:
        """The first kept sample after the warm-up; as many as are kept where it has not ended."""
        return self._kept if self.warm is None else min(self._kept, -(-self.warm // self._stride))

    def column(self, name: str, warm: bool = False) -> NDArray[np.float64]:
        """Of all samples, or of those after the warm-up, oldest first."""
        found: NDArray[np.float64] = self._rows[self.warm_row if warm else 0 : self._kept, COLUMNS.index(name)]
        return found

    def last(self, name: str) -> float:
        return float(self._last[COLUMNS.index(name)])

    def as_columns(self) -> dict[str, list[Any]]:
        """For JSON: None where a value is not known."""
        return {
            name: [None if math.isnan(v) else int(v) if v.is_integer() else v for v in self.column(name).tolist()]
            for name in COLUMNS
        }
