"""What a run of the benchmark is given: the device boundary, how much is measured, and who is told of its progress.

Theory. A part of the benchmark is a function from this to lines. How long a part will take is known beforehand well
enough for a progress bar: the number of jobs times what the device is told to take, and a little for the host.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from runtime.bench_profile import Profile
from runtime.calrt import Library
from runtime.manifest import Manifest

__all__ = ["FULL", "QUICK", "Setting", "Size"]

HOST_MS = 1.0  # of a job, beside what the device takes; for the progress bar alone


@frozen
class Size:
    """How much is measured. blocks: (pairs of) blocks of the executor's lines; tokens: of a block of TPOT; prefills: of
    a block of TTFT; short_blocks and runs: of the lines without an executor; jobs: of a block of the saturated device;
    clients: of that; waiters: in the admission line; freed: units of KV that are freed there; idle_s: of each of the
    blocks in which nothing happens."""

    blocks: int
    tokens: int
    prefills: int
    short_blocks: int
    runs: int
    jobs: int
    clients: int
    waiters: int
    freed: int
    idle_s: float


FULL = Size(20, 1000, 100, 61, 20, jobs=512, clients=64, waiters=256, freed=40, idle_s=1.0)
QUICK = Size(2, 4, 1, 2, 1, jobs=8, clients=4, waiters=8, freed=2, idle_s=0.02)


@frozen
class Setting:
    """latencies_ms: of the device, for TPOT and TTFT. profiles: also of a token at each of them. step: told how much of
    the expected time has passed (ms). told: given each profile."""

    library: Library
    manifest: Manifest
    size: Size
    latencies_ms: tuple[int, ...]
    profiles: bool = False
    step: Callable[[float], None] = lambda ms: None
    told: Callable[[Profile], None] = lambda profile: None
