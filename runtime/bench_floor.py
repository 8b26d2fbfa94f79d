"""What the executor adds to a token where the device takes no time, against what it cannot do without.

Theory. A token's path through threads has three hand-offs that the device cannot hide: client to submitter, submitter
to whoever waits for the device, and from there back to the client; and the logits must be read once. What these cost
with nothing around them is the floor: bare hand-offs between two C threads, and one pass over the logits, measured in
the same blocks as the rest. What is added is the executor's token less that of straight code (or of the baseline),
which pays for CalRT, the simulated device and the logits as the executor does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from runtime.bench_executor import decode_block, paired_blocks
from runtime.bench_line import Goal, Line, line
from runtime.bench_profile import profiled
from runtime.bench_setting import HOST_MS, Setting
from runtime.bench_sides import opened_sides, set_latency, times_ns
from runtime.calrt import Library
from runtime.legacy import LegacyLibrary

__all__ = ["FLOOR", "Floor", "floor_lines", "floor_ms", "floor_of"]

FLOOR = "floor"
HANDOFFS, CONVERSIONS = 300, 50  # of a block
ON_THE_PATH = 3  # hand-offs of a token
GOAL = Goal(1.5)
SIDES = ("executor", "straight", "legacy")


@frozen
class Floor:
    """Medians (us)."""

    handoff_us: float
    logits_us: float

    @property
    def us(self) -> float:
        return ON_THE_PATH * self.handoff_us + self.logits_us


def floor_of(library: Library, vocabulary: int) -> Callable[[], Floor]:
    """A function that measures it once more."""
    source = np.zeros(vocabulary, np.uint16)
    target = np.zeros(vocabulary, np.float32)
    legacy = LegacyLibrary(library)
    once = legacy.ours(library, source, 0, target)

    def measure() -> Floor:
        return Floor(_us(legacy.handoffs_ns(HANDOFFS)), _us(times_ns(CONVERSIONS, once)))

    return measure


def floor_lines(s: Setting) -> Iterator[Line]:
    """The executor's token, straight code's and the baseline's at 0 ms; then where the executor's goes. Raises
    NotTheSame, DeviceFailed, LegacyFailed."""
    measure = floor_of(s.library, s.manifest.submodels[0].vocabulary)
    floors: list[Floor] = []
    rounds: list[list[float]] = []
    with opened_sides(s.library, s.manifest, SIDES, s.size.tokens + 1) as sides:
        set_latency(sides, 0)
        for blocks in paired_blocks(list(sides.values()), s, partial(decode_block, tokens=s.size.tokens), HOST_MS):
            floors.append(measure())
            rounds.append([_us(times) for times in blocks])
        s.told(profiled(sides["executor"], s.size.tokens, "A token at 0 ms"))
    executor, straight, legacy = (np.array(side) for side in zip(*rounds, strict=True))
    floor = np.array([f.us for f in floors])
    yield line(FLOOR, "C hand-off", [f.handoff_us for f in floors], value_unit="us")
    yield line(FLOOR, "logits pass", [f.logits_us for f in floors], value_unit="us")
    yield line(FLOOR, "3 hand-offs + logits pass", floor, value_unit="us")
    for name, other in (("straight", straight), ("legacy", legacy)):
        yield line(
            FLOOR, f"added over {name} / floor", (executor - other) / floor, goal=GOAL, names=("executor", name),
            ours=float(np.median(executor)), base=float(np.median(other)), unit="us",
        )  # fmt: skip


def floor_ms(s: Setting) -> float:
    return len(SIDES) * s.size.blocks * s.size.tokens * HOST_MS


def _us(times_ns: NDArray[np.int64]) -> float:
    return float(np.median(times_ns)) / 1_000
