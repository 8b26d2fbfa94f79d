"""`python -m runtime.bench`: what the boundary costs, as ratios against the baseline in the same run.

Theory. Only ratios are claimed, never times: both sides run in paired blocks (runtime/paired.py) in one process. Before
anything is timed it is shown that both sides do the same: conversions must give the same bits, and decodes must have
made the same CalRT calls with the same arguments and answers, apart from those that the baseline exists to show:
buffers made and destroyed for every call, the second Apply. The simulated device answers at once (0 us), so the time of
a decode is the host's share, plus what the simulator computes, the same on both sides, which only dampens the ratio.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import click
import numpy as np
from attrs import asdict, frozen
from rich.console import Console
from rich.table import Table

from runtime.calrt import Library
from runtime.device_run import DEVICE, FAILURES, LEGACY_DEVICE, LanguageModel, failure_of, manifest_of, simulators_of
from runtime.exits import Exit, Failure
from runtime.legacy import Legacy, LegacyLibrary
from runtime.paired import Comparison, compare, measure
from runtime.simulator import Call, Simulator
from runtime.straight import Straight

__all__ = ["NotTheSame", "bench", "conversions", "decodes", "same_calls"]

VOCABULARY = 151_936  # §4.1
TILES = (1, 16)
MODEL = "qwen3-tile16"  # its decode has a tile of 1, its prefill one of 16
PROMPT = tuple(range(16))
TOKEN = 7


class NotTheSame(RuntimeError):
    """The two sides did not do the same, so their times must not be compared."""


@frozen
class Result:
    """cpu_us: time that this thread computed in one run, as a mean; what it waits for is not in it (§13.3)."""

    comparison: Comparison
    ours_cpu_us: float
    base_cpu_us: float


def timed(
    what: str, names: tuple[str, str], ours: Callable[[], None], base: Callable[[], None], blocks: int, runs: int
) -> Result:
    """Paired blocks of two things that were shown to do the same."""
    pairs = list(measure(ours, base, blocks, runs))
    comparison = compare(what, *names, (a for a, _ in pairs), (b for _, b in pairs))
    return Result(comparison, cpu_us(ours, blocks * runs), cpu_us(base, blocks * runs))


def cpu_us(once: Callable[[], None], runs: int) -> float:
    """Of this thread, as a mean over `runs`: the clock may be coarse."""
    begin_ns = time.thread_time_ns()
    for _ in range(runs):
        once()
    return (time.thread_time_ns() - begin_ns) / 1_000 / runs


# -- the conversion of logits (§10.1) ----------------------------------------------------------------------------------


def conversions(library: Library, blocks: int, runs: int, vocabulary: int = VOCABULARY) -> Iterator[Result]:
    """The last row of a tile, BF16 to FP32: ours (with the finite check) against a plain loop and the old way."""
    legacy = LegacyLibrary(library)
    for tile in TILES:
        source = np.random.default_rng(tile).normal(0, 8, tile * vocabulary).astype(np.float32)
        bits = (source.view(np.uint32) >> 16).astype(np.uint16)
        base = (tile - 1) * vocabulary
        for name in ("plain_loop", "convert"):
            targets = [np.zeros(vocabulary, np.float32) for _ in range(2)]
            ours = legacy.ours(library, bits, base, targets[0])
            other = legacy.conversion(name, bits, base, vocabulary, targets[1])
            ours()
            other()
            if targets[0].tobytes() != targets[1].tobytes():
                raise NotTheSame(f"tile {tile}: ours and {name} give different bits")
            names = ("one pass", "plain loop" if name == "plain_loop" else "legacy")
            yield timed(f"logits, tile {tile}", names, ours, other, blocks, runs)


# -- a call of the model -----------------------------------------------------------------------------------------------

# The baseline makes these and we do not, they are what is measured; and the reverse (the size is checked, FI09).
BASE_ALONE = {"create_input", "create_output", "map_buf", "destroy"}
OURS_ALONE = {"tensor_size"}


def decodes(library: Library, blocks: int, runs: int) -> Iterator[Result]:
    """One token through the device at 0 us latency: straight code against the baseline; tile 1, and tile 16."""
    simulators = simulators_of(library)
    manifest = manifest_of(MODEL)
    with Straight(library, manifest, DEVICE) as ours, Legacy(library, manifest, LEGACY_DEVICE) as base:
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
                same_calls(*(one_call(s, partial(call, m)) for s, m in zip(simulators, models, strict=True)))
            if ours.logits.tobytes() != base.logits.tobytes():
                raise NotTheSame(f"{what}: the logits differ")
            ours_once, base_once = (partial(_do, call, model) for model in models)
            yield timed(what, ("straight", "legacy"), ours_once, base_once, blocks, runs)


def _do(call: Callable[[LanguageModel], object], model: LanguageModel) -> None:
    call(model)


def one_call(simulator: Simulator, call: Callable[[], object]) -> list[Call]:
    """The CalRT calls of one call of the model."""
    before = max((c.number for c in simulator.trace()), default=-1)
    call()
    return [c for c in simulator.trace() if c.number > before]


def same_calls(ours: list[Call], base: list[Call]) -> None:
    """Raises NotTheSame unless both made the same calls, apart from what the baseline exists to show."""
    mine, theirs = _comparable(ours), _comparable(base)
    if mine != theirs:
        raise NotTheSame(f"different CalRT calls: {mine} and {theirs}")


def _comparable(calls: list[Call]) -> list[tuple[str, str, int, int, int]]:
    kept: list[tuple[str, str, int, int, int]] = []
    for c in calls:
        again = c.call == "apply" and any(k[0] == "apply" for k in kept)
        if c.call not in BASE_ALONE | OURS_ALONE and not again:
            kept.append((c.call, c.text, c.a, c.b, c.result))
    return kept


# -- the command -------------------------------------------------------------------------------------------------------


def table_of(results: list[Result]) -> Table:
    """Fits into 80 columns."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("", "against", "us a run", "ratio", "95 %", "", "CPU"):
        table.add_column(name, justify="left" if name in ("", "against") else "right", no_wrap=True)
    colours = {"faster": "green", "slower": "red", "undecided": "yellow"}
    for r in results:
        c = r.comparison
        verdict = f"[{colours[c.verdict]}]{c.verdict}[/]"
        times, cpu = f"{c.ours_us:,.0f} / {c.base_us:,.0f}", r.ours_cpu_us / r.base_cpu_us if r.base_cpu_us else 0.0
        table.add_row(c.what, c.base, times, f"{c.ratio:.2f}", f"{c.low:.2f} - {c.high:.2f}", verdict, f"{cpu:.2f}")
    return table


def as_json(results: list[Result]) -> str:
    rows = [
        {
            **asdict(r.comparison),
            "verdict": r.comparison.verdict,
            "ours_cpu_us": r.ours_cpu_us,
            "base_cpu_us": r.base_cpu_us,
        }
        for r in results
    ]
    return json.dumps(rows, indent=2)


@click.command("bench")
@click.option("--blocks", type=click.IntRange(2), default=61, show_default=True, help="Pairs of blocks.")
@click.option("--runs", type=click.IntRange(1), default=20, show_default=True, help="Runs in a block.")
@click.option("--json", "json_wanted", is_flag=True, help="The results as JSON.")
def bench(blocks: int, runs: int, json_wanted: bool) -> Exit:
    """Ratios of ours to the baseline, each with its 95 % interval; the last is of CPU time. Nothing passes or fails."""
    try:
        library = Library.load()
        results = [*conversions(library, blocks, runs), *decodes(library, blocks, runs)]
    except NotTheSame as error:
        raise Failure(Exit.DIFFERENT, [str(error)]) from error
    except tuple(FAILURES) as error:
        raise failure_of(error) from error
    if json_wanted:
        click.echo(as_json(results))
    else:
        Console(highlight=False).print(table_of(results))
    return Exit.OK


if __name__ == "__main__":
    from runtime import cli

    sys.exit(int(cli.run(["bench", *sys.argv[1:]])))
