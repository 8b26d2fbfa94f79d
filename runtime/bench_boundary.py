"""The device boundary alone: the logits pass and straight code, against the baseline.

Theory. Conversions must give the same bits and decodes must have made the same CalRT calls before either is timed. The
simulated device answers at once (0 us), so the time of a decode is the host's share, plus what the simulator computes,
the same on both sides, which only dampens the ratio. Of these lines the CPU time is compared, too: what a thread waits
for is not in it (§13.3).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from runtime.bench_calls import NotTheSame, calls_since, same_calls
from runtime.bench_line import Line, of_comparison
from runtime.bench_setting import Setting
from runtime.device_run import DEVICE, LEGACY_DEVICE, LanguageModel, simulators_of
from runtime.legacy import Legacy, LegacyLibrary
from runtime.paired import compare, measure
from runtime.simulator import Call, Simulator
from runtime.straight import Straight

__all__ = ["LOGITS", "STRAIGHT", "conversions", "decodes"]

LOGITS, STRAIGHT = "logits", "straight"
VOCABULARY = 151_936  # §4.1
TILES = (1, 16)
PROMPT = tuple(range(16))
TOKEN = 7


def timed(
    group: str, what: str, names: tuple[str, str], ours: Callable[[], None], base: Callable[[], None], s: Setting
) -> Line:
    """Paired blocks of two things that were shown to do the same."""
    blocks, runs = s.size.short_blocks, s.size.runs
    pairs = list(measure(ours, base, blocks, runs))
    s.step(sum(map(sum, pairs)) * runs / 1_000)
    ours_cpu_us, base_cpu_us = (cpu_us(side, blocks * runs) for side in (ours, base))
    compared = compare(what, *names, (a for a, _ in pairs), (b for _, b in pairs))
    cpu_ratio = ours_cpu_us / base_cpu_us if base_cpu_us else None
    return of_comparison(group, compared, cpu_ratio=cpu_ratio)


def cpu_us(once: Callable[[], None], runs: int) -> float:
    """Of this thread, as a mean over `runs`: the clock may be coarse."""
    begin_ns = time.thread_time_ns()
    for _ in range(runs):
        once()
    return (time.thread_time_ns() - begin_ns) / 1_000 / runs


def conversions(s: Setting, vocabulary: int = VOCABULARY) -> Iterator[Line]:
    """The last row of a tile, BF16 to FP32 (§10.1): ours (with the finite check), against a plain loop and the old way.
    Raises NotTheSame."""
    legacy = LegacyLibrary(s.library)
    for tile in TILES:
        source = np.random.default_rng(tile).normal(0, 8, tile * vocabulary).astype(np.float32)
        bits = (source.view(np.uint32) >> 16).astype(np.uint16)
        base = (tile - 1) * vocabulary
        for name in ("plain_loop", "convert"):
            targets = [np.zeros(vocabulary, np.float32) for _ in range(2)]
            ours = legacy.ours(s.library, bits, base, targets[0])
            other = legacy.conversion(name, bits, base, vocabulary, targets[1])
            ours()
            other()
            if targets[0].tobytes() != targets[1].tobytes():
                raise NotTheSame(f"tile {tile}: ours and {name} give different bits")
            names = ("one pass", "plain loop" if name == "plain_loop" else "legacy")
            yield timed(LOGITS, f"logits, tile {tile} / {names[1]}", names, ours, other, s)


def decodes(s: Setting) -> Iterator[Line]:
    """One token through the device at 0 us latency: straight code against the baseline; tile 1, and tile 16. Raises
    NotTheSame, DeviceFailed, LegacyFailed."""
    simulators = simulators_of(s.library)
    with Straight(s.library, s.manifest, DEVICE) as ours, Legacy(s.library, s.manifest, LEGACY_DEVICE) as base:
        models: tuple[LanguageModel, LanguageModel] = (ours, base)
        kinds: dict[str, Callable[[LanguageModel], object]] = {
            "decode, tile 1": lambda model: model.decode(0, TOKEN),
            "prefill 1, tile 16": lambda model: model.prefill(0, [TOKEN]),
        }
        for what, call in kinds.items():
            for model in models:
                model.forget(0)
                model.prefill(0, PROMPT)
                call(model)
            if simulators:
                same_calls(*(_one_call(s, partial(call, m)) for s, m in zip(simulators, models, strict=True)))
            if ours.logits.tobytes() != base.logits.tobytes():
                raise NotTheSame(f"{what}: the logits differ")
            ours_once, base_once = (partial(_do, call, model) for model in models)
            yield timed(STRAIGHT, f"straight: {what} / legacy", ("straight", "legacy"), ours_once, base_once, s)


def _do(call: Callable[[LanguageModel], object], model: LanguageModel) -> None:
    call(model)


def _one_call(simulator: Simulator, call: Callable[[], object]) -> list[Call]:
    """The CalRT calls of one call of the model."""
    begun = simulator.calls_total()
    call()
    return calls_since(simulator, begun)
