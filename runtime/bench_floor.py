"""What the executor adds to a token where the device takes no time, against what it cannot do without.

Theory. A token's path through threads has three hand-offs that the device cannot hide: client to submitter, submitter
to whoever waits for the device, and from there back to the client; and the logits must be read once. What these cost
with nothing around them is the floor: bare hand-offs between two C threads, and one pass over the logits, measured in
the same blocks as the rest. What is added is the executor's token less that of straight code (or of the baseline),
which pays for CalRT, the simulated device and the logits as the executor does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from functools import partial

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from runtime.bench_executor import paired_blocks, prompted
from runtime.bench_line import Goal, Line, line, of_comparison
from runtime.bench_profile import profiled
from runtime.bench_setting import HOST_MS, Setting
from runtime.bench_sides import Side, opened_sides, set_latency, still, times_ns
from runtime.calrt import Library
from runtime.legacy import LegacyLibrary
from runtime.paired import compare

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
    cpu_us: dict[str, list[float]] = {name: [] for name in SIDES}
    block = partial(cpu_block, tokens=s.size.tokens, cpu_us=cpu_us)
    with opened_sides(s.library, s.manifest, SIDES, s.size.tokens + 1) as sides:
        set_latency(sides, 0)
        for blocks in paired_blocks(list(sides.values()), s, block, HOST_MS):
            floors.append(measure())
            rounds.append([_us(times) for times in blocks])
        s.told(profiled(sides["executor"], s.size.tokens, "A token at 0 ms"))
    yield from lines_of(floors, rounds, cpu_us)


def cpu_block(side: Side, tokens: int, cpu_us: Mapping[str, list[float]]) -> NDArray[np.int64]:
    """As `decode_block`; what the whole process computed for a token is added to the side's cpu_us."""
    prompted(side)
    side.settle()
    with still():  # what the collector takes now is nobody's
        begin_ns = time.process_time_ns()
        times = times_ns(tokens, side.decode)
        side.settle()
        cpu_us[side.name].append((time.process_time_ns() - begin_ns) / 1_000 / tokens)
    return times


def lines_of(floors: Items[Floor], rounds: Items[Items[float]], cpu_us: Mapping[str, Items[float]]) -> Iterator[Line]:
    """rounds: of each block the medians of the sides (us)."""
    executor, straight, legacy = (np.array(side) for side in zip(*rounds, strict=True))
    floor = np.array([f.us for f in floors])
    yield line(FLOOR, "C hand-off", [f.handoff_us for f in floors], value_unit="us")
    yield line(FLOOR, "logits pass", [f.logits_us for f in floors], value_unit="us")
    yield line(FLOOR, "3 hand-offs + logits pass", floor, value_unit="us")
    for name, other in (("straight", straight), ("legacy", legacy)):
        yield line(
            FLOOR, f"added over {name} / floor", (executor - other) / floor, goal=GOAL, names=("executor", name),
            ours=float(np.median(executor)), base=float(np.median(other)),
        )  # fmt: skip
    for name in SIDES[1:]:
        compared = compare(f"CPU of a token / {name}", "executor", name, cpu_us["executor"], cpu_us[name])
        yield of_comparison(FLOOR, compared)


def floor_ms(s: Setting) -> float:
    return len(SIDES) * s.size.blocks * s.size.tokens * HOST_MS


def _us(times_ns: NDArray[np.int64]) -> float:
    return float(np.median(times_ns)) / 1_000
