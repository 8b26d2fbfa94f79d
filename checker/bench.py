"""How fast the C engine is: against SPIN on the executor's protocol with two jobs, and against the Python engine.

Theory. A ratio means something only if both sides did the same work: so each pair of runs must agree on states and
transitions, or there is no ratio. The sides take turns on one core of the same machine, in the same minutes; the median
and the range are over the rounds. Seconds are processor time (user and system) of the whole search, so that a busy
machine does not decide; wall time stands beside them. Compilation is apart. SPIN gets what suits it: `-O3`, a hash
table as large as the state space, just enough stack, and no properties to check, while our engines judge all of them.

    make bench-checker                       (python -m checker.bench --json bench.json)
"""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from attrs import define, field, frozen
from rich.console import Console
from rich.table import Table

from checker.explore import explore
from checker.model import Model, build
from checker.native import NativeError, Program
from checker.spin import SpinError, SpinProgram
from machines.protocol import RULEBOOK
from machines.rulebook import Rulebook

# What holds in them does not matter for speed, but a proof is the usual case: the exit policy under its own fact.
SPIN_SCOPE = {"jobs": 2, "process_exit_stops_dma": 1}
PYTHON_SCOPE = {**SPIN_SCOPE, "sequences": 1, "kv": 1, "faults": 1}  # small enough for plain Python, several times
RATIO_GOAL = 10.0
ROUNDS = 3
MEGABYTE = 1_000_000
CLOCK_TICK = 0.01  # what the system's processor clock can tell apart


class Unequal(Exception):
    """Two engines did not do the same work: one line that says who counted what."""


@frozen
class Once:
    """One search: its counts, seconds of processor and of wall time, bytes of memory for all states (None: unknown)."""

    states: int
    transitions: int
    seconds: float
    wall_seconds: float
    memory_bytes: float | None


@define
class Side:
    """One engine of a comparison."""

    name: str
    search: Callable[[], Once]
    compile_seconds: float = 0.0
    runs: list[Once] = field(factory=list)

    @property
    def seconds(self) -> float:
        return statistics.median(r.seconds for r in self.runs)

    def summary(self) -> dict[str, Any]:
        """What the table and the JSON say about it. Rates are of the median run."""
        last = self.runs[-1]
        every = [r.seconds for r in self.runs]
        return {
            "engine": self.name,
            "states": last.states,
            "transitions": last.transitions,
            "seconds": self.seconds,
            "seconds_min": min(every),
            "seconds_max": max(every),
            "wall_seconds": statistics.median(r.wall_seconds for r in self.runs),
            "states_per_second": last.states / self.seconds,
            "transitions_per_second": last.transitions / self.seconds,
            "bytes_per_state": None if last.memory_bytes is None else last.memory_bytes / last.states,
            "compile_seconds": self.compile_seconds,
        }


def compare(ours: Side, theirs: Side, rounds: int) -> dict[str, Any]:
    """Take turns. Raises Unequal as soon as the counts of a pair differ."""
    for _ in range(rounds):
        for side in (ours, theirs):
            side.runs.append(side.search())
        a, b = ours.runs[-1], theirs.runs[-1]
        if (a.states, a.transitions) != (b.states, b.transitions):
            raise Unequal(
                f"no ratio, the work was not the same: {ours.name} {a.states:,} states and {a.transitions:,} "
                f"transitions, {theirs.name} {b.states:,} and {b.transitions:,}"
            )
    pairs = [b.seconds / a.seconds for a, b in zip(ours.runs, theirs.runs, strict=True)]
    return {
        "rounds": rounds,
        "sides": [ours.summary(), theirs.summary()],
        "ratio": theirs.seconds / ours.seconds,
        "ratio_min": min(pairs),
        "ratio_max": max(pairs),
    }


# -- the engines ------------------------------------------------------------------------------------------------------
class Stopwatch:
    """Seconds since it was made: processor time of this process and of its children that have ended, and wall time."""

    def __init__(self) -> None:
        self._start = self._now()

    def _now(self) -> tuple[float, float]:
        t = os.times()
        return t.user + t.system + t.children_user + t.children_system, time.monotonic()

    def read(self) -> tuple[float, float]:
        """(processor seconds, wall seconds)."""
        (cpu, wall), (cpu_before, wall_before) = self._now(), self._start
        return max(cpu - cpu_before, CLOCK_TICK), wall - wall_before


def native_side(model: Model) -> Side:
    program = Program(model)

    def search() -> Once:
        watch = Stopwatch()
        r = program.explore(traces=False)
        return Once(r.states, r.transitions, *watch.read(), r.memory_mb * MEGABYTE)

    return Side("C engine", search, program.compile_seconds)


def python_side(model: Model) -> Side:
    def search() -> Once:
        watch = Stopwatch()
        r = explore(model)
        return Once(r.states, r.transitions, *watch.read(), None)

    return Side("Python engine", search)


def spin_side(program: SpinProgram, states: int) -> Side:
    """SPIN without checks. Its transitions are ours and one: it counts the initial state."""
    hash_bits = max(16, math.ceil(math.log2(states)))

    def search() -> Once:
        watch = Stopwatch()
        r = program.run(depth_max=states, hash_bits=hash_bits)
        side.name = f"SPIN {r.version}"
        return Once(r.states, r.transitions - 1, *watch.read(), (r.states_mb + r.hash_mb) * MEGABYTE)

    side = Side("SPIN", search, program.compile_seconds)
    return side


def against_spin(rulebook: Rulebook, values: Mapping[str, int], rounds: int) -> dict[str, Any]:
    """The C engine and SPIN on one scope. Raises SpinError where there is no SPIN."""
    model = build(rulebook.scope(values))
    with SpinProgram(model) as program:
        ours = native_side(model)
        return compare(ours, spin_side(program, ours.search().states), rounds) | {"scope": dict(values)}


def against_python(rulebook: Rulebook, values: Mapping[str, int], rounds: int) -> dict[str, Any]:
    model = build(rulebook.scope(values))
    return compare(native_side(model), python_side(model), rounds) | {"scope": dict(values)}


# -- printing ---------------------------------------------------------------------------------------------------------
def show(console: Console, title: str, result: Mapping[str, Any]) -> None:
    scope = " ".join(f"{k}={v}" for k, v in result["scope"].items())
    table = Table(title=f"{title}: {scope}", title_justify="left")
    columns = (
        "engine",
        "states",
        "transitions",
        "cpu s (min-max)",
        "wall s",
        "states/s",
        "transitions/s",
        "bytes/state",
        "compile s",
    )
    for n, name in enumerate(columns):
        table.add_column(name, justify="left" if n == 0 else "right")
    for side in result["sides"]:
        memory = side["bytes_per_state"]
        table.add_row(
            side["engine"],
            f"{side['states']:,}",
            f"{side['transitions']:,}",
            f"{side['seconds']:.2f} ({side['seconds_min']:.2f}-{side['seconds_max']:.2f})",
            f"{side['wall_seconds']:.2f}",
            f"{side['states_per_second']:,.0f}",
            f"{side['transitions_per_second']:,.0f}",
            "-" if memory is None else f"{memory:.0f}",
            f"{side['compile_seconds']:.1f}",
        )
    console.print(table)
    rest = f"median of {result['rounds']} rounds; pairs {result['ratio_min']:.1f}-{result['ratio_max']:.1f}"
    console.print(f"The C engine is {result['ratio']:.1f} times as fast as {result['sides'][1]['engine']} ({rest}).\n")


@click.command()
@click.option("--rounds", default=ROUNDS, show_default=True, type=click.IntRange(1))
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write it as JSON.")
def main(rounds: int, json_file: Path | None) -> None:
    """Compare the C engine with SPIN and with the Python engine."""
    console, results = Console(width=130), {}
    try:
        with compile_anew():
            results["python"] = against_python(RULEBOOK, PYTHON_SCOPE, rounds)
            show(console, "Against the Python engine", results["python"])
            results["spin"] = against_spin(RULEBOOK, SPIN_SCOPE, rounds)
            show(console, "Against SPIN", results["spin"])
        console.print(f"Goal against SPIN: {RATIO_GOAL:g} times or more; measured {results['spin']['ratio']:.1f}.")
    except (Unequal, SpinError, NativeError) as e:
        raise click.ClickException(str(e)) from e
    if json_file:
        json_file.write_text(json.dumps({"ratio_goal": RATIO_GOAL, **results}, indent=2) + "\n", encoding="utf-8")


@contextmanager
def compile_anew() -> Iterator[None]:
    """Keep compiled programs apart for a while, so that compile times are not those of a cache."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory(prefix="calexec-bench-") as directory:
        os.environ["XDG_CACHE_HOME"] = directory
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


if __name__ == "__main__":
    main()
