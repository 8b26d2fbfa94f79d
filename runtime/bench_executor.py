"""TPOT and TTFT of one client of the executor, against the path that the product replaces (§13.3).

Theory. A block is one sequence: a prompt, then so many tokens, each timed by itself. Both sides do one block each, in
turns, and each pair gives one ratio of medians (P50) and one of 99th percentiles. Before a pair counts, the calls that
the two sides made in it must be the same, all of them (`bench_calls`), and so must the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from functools import partial

import numpy as np
from numpy.typing import NDArray

from runtime.bench_line import Goal, Line, of_comparison
from runtime.bench_profile import profiled
from runtime.bench_setting import HOST_MS, Setting
from runtime.bench_sides import Side, opened_sides, same_block, set_latency, times_ns
from runtime.paired import compare

__all__ = ["PROMPT", "TPOT", "TTFT", "decode_block", "paired_blocks", "prompted", "tpot", "tpot_ms", "ttft", "ttft_ms"]

PROMPT = tuple(range(16))
PROMPTS = (16, 1024)  # tokens, of TTFT
GOALS = {50: Goal(1.03), 99: Goal(1.05)}  # §13.3, by percentile
TPOT, TTFT = "tpot", "ttft"
SIDES = ("executor", "legacy")
PROFILED_MAX = 300  # tokens of a profile
TILE_MS = 10.0  # what a tile of 16 rows takes on the host; for the progress bar alone


def prompted(side: Side) -> None:
    """A sequence that begins with a prompt; what is compared begins there, too."""
    side.forget()
    side.begin()
    side.prefill(PROMPT)


def decode_block(side: Side, tokens: int) -> NDArray[np.int64]:
    """[tokens] ns, after a prompt."""
    prompted(side)
    return times_ns(tokens, side.decode)


def prefill_block(side: Side, count: int, prompt: Items[int]) -> NDArray[np.int64]:
    """[count] ns, each on a sequence that begins; before them one that does not count."""
    side.forget()
    side.begin()
    side.prefill(prompt)
    side.forget()
    return times_ns(count, lambda: side.prefill(prompt), side.forget)


def paired_blocks(
    sides: Items[Side], s: Setting, block: Callable[[Side], NDArray[np.int64]], job_ms: float
) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """For each of `blocks` rounds the times of each side, in the order of `sides`; who begins alternates. The first
    side's calls and logits are compared with each other's. job_ms: what one is expected to take. Raises NotTheSame."""
    for number in range(s.size.blocks):
        order = range(len(sides)) if number % 2 == 0 else range(len(sides) - 1, -1, -1)
        found: dict[int, NDArray[np.int64]] = {}
        for i in order:
            found[i] = block(sides[i])
            s.step(len(found[i]) * job_ms)
        for other in sides[1:]:
            same_block(sides[0], other)
        yield tuple(found[i] for i in range(len(sides)))


def lines_of(group: str, what: str, pairs: Items[tuple[NDArray[np.int64], ...]], latency_ms: int) -> Iterator[Line]:
    """P50 and P99 of each pair."""
    for percent, goal in GOALS.items():
        ours, base = (
            [float(np.percentile(block, percent)) / 1_000 for block in side] for side in zip(*pairs, strict=True)
        )
        title = f"{what} P{percent}, {latency_ms} ms / legacy"
        compared = compare(title, "executor", "legacy", ours, base)
        yield of_comparison(group, compared, goal=goal)


def tpot(s: Setting) -> Iterator[Line]:
    """Raises NotTheSame, DeviceFailed, LegacyFailed."""
    with opened_sides(s.library, s.manifest, SIDES, s.size.tokens + 1) as sides:
        for ms in s.latencies_ms:
            set_latency(sides, ms)
            block = partial(decode_block, tokens=s.size.tokens)
            blocks = paired_blocks(list(sides.values()), s, block, ms + HOST_MS)
            yield from lines_of(TPOT, "TPOT", list(blocks), ms)
            if s.profiles:
                s.told(profiled(sides["executor"], min(s.size.tokens, PROFILED_MAX), f"A token at {ms} ms"))


def tpot_ms(s: Setting) -> float:
    return sum(len(SIDES) * s.size.blocks * s.size.tokens * (ms + HOST_MS) for ms in s.latencies_ms)


def ttft(s: Setting) -> Iterator[Line]:
    """Raises NotTheSame, DeviceFailed, LegacyFailed."""
    with opened_sides(s.library, s.manifest, SIDES, 2 * s.size.prefills + 2) as sides:
        for ms in s.latencies_ms:
            set_latency(sides, ms)
            for length in PROMPTS:
                block = partial(prefill_block, count=s.size.prefills, prompt=range(length))
                blocks = paired_blocks(list(sides.values()), s, block, ms + TILE_MS)
                yield from lines_of(TTFT, f"TTFT {length:,}", list(blocks), ms)


def ttft_ms(s: Setting) -> float:
    return sum(len(PROMPTS) * len(SIDES) * s.size.blocks * s.size.prefills * (ms + TILE_MS) for ms in s.latencies_ms)
