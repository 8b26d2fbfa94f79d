"""`calexec bench`: every line of the benchmark, each with its 95 % interval, against its goal.

Theory. Only what was shown to do the same is compared (runtime/bench_calls.py), in paired blocks in one process
(runtime/paired.py); a goal counts as reached only when the whole interval is on its side (runtime/bench_line.py).
Nothing passes or fails: the numbers are the machine's as much as ours.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import click
from attrs import evolve, frozen
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from runtime.bench_boundary import conversions, decodes
from runtime.bench_calls import NotTheSame
from runtime.bench_executor import tpot, tpot_ms, ttft, ttft_ms
from runtime.bench_floor import floor_lines, floor_ms
from runtime.bench_gap import gap_lines, gap_ms
from runtime.bench_idle import idle_lines, idle_ms, waiter_lines, waiters_ms
from runtime.bench_line import Line
from runtime.bench_plot import draw
from runtime.bench_profile import Profile
from runtime.bench_setting import FULL, QUICK, Setting
from runtime.bench_table import as_json, as_markdown, profile_table, table_of
from runtime.device_run import FAILURES, failure_of, opened, simulators_of
from runtime.exits import Exit, Failure
from runtime.names import plain
from runtime.plots import SUFFIXES, available

__all__ = ["PARTS", "bench"]

MODEL = "qwen3-tile16"  # its decode has a tile of 1, its prefill one of 16
LATENCY_MS_MAX = 1_000
STDOUT = "-"
COLUMNS_MAX = 100  # of what is printed


@frozen
class PartOfIt:
    """A part of the benchmark. expected_ms: how long it will take. simulated: it needs the simulator."""

    about: str
    lines: Callable[[Setting], Iterator[Line]]
    expected_ms: Callable[[Setting], float] = lambda s: 1_000.0
    simulated: bool = True


PARTS: Mapping[str, PartOfIt] = {
    "logits": PartOfIt("the conversion of logits", conversions, simulated=False),
    "straight": PartOfIt("straight code against the baseline, 0 ms", decodes, simulated=False),
    "tpot": PartOfIt("a token of one client against the baseline", tpot, tpot_ms),
    "ttft": PartOfIt("the first token, prompts of 16 and 1,024 tokens", ttft, ttft_ms),
    "floor": PartOfIt("what the executor adds at 0 ms, and its profile", floor_lines, floor_ms),
    "gap": PartOfIt("the device under 64 clients: idle gaps, utilisation, fairness", gap_lines, gap_ms),
    "waiters": PartOfIt("256 clients that wait for KV: CPU, and who wakes", waiter_lines, waiters_ms),
    "idle": PartOfIt("an executor with nothing to do: CPU", idle_lines, idle_ms),
}


def chosen(context: click.Context, option: click.Parameter, value: str) -> tuple[str, ...]:
    """The parts that are named, in their own order; all where none is."""
    names = {n.strip() for n in value.split(",") if n.strip()} or set(PARTS)
    if unknown := sorted(names - set(PARTS)):
        raise click.BadParameter(f"{unknown[0]!r} is no part of the benchmark; there are {', '.join(PARTS)}")
    return tuple(name for name in PARTS if name in names)


def milliseconds(context: click.Context, option: click.Parameter, value: str) -> tuple[int, ...]:
    """Whole milliseconds, separated by commas."""
    found = tuple(dict.fromkeys(text.strip() for text in value.split(",")))
    if not all(text.isdecimal() and int(text) <= LATENCY_MS_MAX for text in found):
        raise click.BadParameter(f"{value!r}; expected whole milliseconds, 0 to {LATENCY_MS_MAX}, such as 5,20")
    return tuple(int(text) for text in found)


def writable(context: click.Context, option: click.Parameter, value: str | None) -> Path | None:
    """Asked before half an hour is spent on it: whether there is a place for such a file."""
    if value is None or value == STDOUT:
        return Path(value) if value else None
    if not (path := Path(value)).parent.is_dir() or path.is_dir():
        raise click.BadParameter(f"{plain(value)!r}; expected a file in a directory that is there")
    return path


def plottable(context: click.Context, option: click.Parameter, value: str | None) -> Path | None:
    """And whether it can be drawn here."""
    if (path := writable(context, option, value)) is None:
        return None
    if path.suffix not in SUFFIXES:
        raise click.BadParameter(f"{plain(path.name)!r}; expected a name that ends in {' or '.join(SUFFIXES)}")
    if not available():
        raise click.BadParameter("matplotlib is not installed (pip install 'calexec[plots]')")
    return path


def refuse_without_simulator(parts: Iterable[str]) -> None:
    """Raises Failure where a part needs what a vendor's CalRT does not have: latencies to set, a trace, its clock."""
    if needy := [name for name in parts if PARTS[name].simulated]:
        able = " and ".join(name for name in PARTS if not PARTS[name].simulated)
        raise Failure(
            Exit.USAGE, [f"{', '.join(needy)}: the simulator is needed, and this CalRT is not one; without it: {able}"]
        )


def measured(setting: Setting, parts: Iterable[str]) -> Iterator[Line]:
    """Raises Failure for whatever cannot be compared or fails."""
    try:
        for name in parts:
            yield from PARTS[name].lines(setting)
    except NotTheSame as error:
        raise Failure(Exit.DIFFERENT, [str(error)]) from error
    except tuple(FAILURES) as error:
        raise failure_of(error) from error
    finally:
        gc.unfreeze()  # bench_sides.still


def progress_bar() -> Progress:
    """Redrawn only when it is told something: a thread of its own would be in the way."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, auto_refresh=False,
    )  # fmt: skip


def run(setting: Setting, parts: tuple[str, ...], shown: bool) -> tuple[list[Line], list[Profile]]:
    """Every line of these parts, and the profiles."""
    lines: list[Line] = []
    profiles: list[Profile] = []
    with progress_bar() as progress:
        progress.disable = not shown
        task = progress.add_task("", total=sum(PARTS[name].expected_ms(setting) for name in parts))

        def step(ms: float) -> None:
            progress.advance(task, ms)
            progress.refresh()

        for name in parts:
            progress.update(task, description=name)
            progress.refresh()
            lines += measured(evolve(setting, step=step, told=profiles.append), (name,))
    return lines, profiles


EPILOG = f"""\b
Parts of the benchmark (--lines):
{chr(10).join(f"  {name:<10} {part.about}" for name, part in PARTS.items())}

\b
Examples:
  calexec bench                                      everything; about half an hour, on a machine that does nothing else
  calexec bench --quick                              everything, too short to be believed
  calexec bench --lines tpot,floor --latencies-ms 5 --blocks 6 --tokens 300 --json -
"""


@click.command("bench", epilog=EPILOG)
@click.option("--lines", "parts", default="", metavar="NAMES", callback=chosen, help="Only these parts.")
@click.option("--quick", is_flag=True, help="So little of everything that the numbers mean nothing.")
@click.option("--blocks", type=click.IntRange(2), help="Pairs of blocks [20, without executor 61].")
@click.option("--tokens", type=click.IntRange(1), help="Tokens of a block of TPOT [1000].")
@click.option(
    "--latencies-ms", "latencies_ms", default="5,20", show_default=True, metavar="MS,...", callback=milliseconds,
    help="What a call takes on the device, for TPOT and TTFT.",
)  # fmt: skip
@click.option("--profile", "profiles", is_flag=True, help="Also where a token's time goes at each latency.")
@click.option(
    "--json", "json_to", metavar="FILE|-", callback=writable, help="The results as JSON; - instead of the table."
)
@click.option("--plot", "plot_to", metavar="FILE.png", callback=plottable, help="The results as a picture.")
@click.option("--markdown", "markdown_to", metavar="FILE", callback=writable, help="The results as a page.")
def bench(
    parts: tuple[str, ...], quick: bool, blocks: int | None, tokens: int | None, latencies_ms: tuple[int, ...],
    profiles: bool, json_to: Path | None, plot_to: Path | None, markdown_to: Path | None,
) -> Exit:  # fmt: skip
    """Ours against the baseline and against goals, each with its 95 % interval. Nothing passes or fails.

    Before a ratio is printed both sides are shown to have made the same calls (else 10)."""
    library, manifest = opened(MODEL)
    if not simulators_of(library):
        refuse_without_simulator(parts)
    size = QUICK if quick else FULL
    given = {"blocks": blocks, "short_blocks": blocks, "tokens": tokens}
    size = evolve(size, **{key: value for key, value in given.items() if value is not None})
    setting = Setting(library, manifest, size, latencies_ms, profiles)
    found = run(setting, parts, shown=sys.stderr.isatty())
    if json_to == Path(STDOUT):
        click.echo(as_json(*found))
    else:
        tell(*found, verdicts=not quick)
    for path, text in ((json_to, as_json), (markdown_to, as_markdown)):
        if path and path != Path(STDOUT):
            write(path, text(*found))
    if plot_to:
        plot(plot_to, found[0])
    return Exit.OK


def tell(lines: Iterable[Line], profiles: Iterable[Profile], verdicts: bool = True) -> None:
    console = Console(highlight=False)
    console.width = max(console.width, COLUMNS_MAX)
    console.print(table_of(lines, verdicts))
    if not verdicts:
        console.print("no verdicts: --quick is too short for them")
    for profile in profiles:
        console.print()
        console.print(profile_table(profile))


def plot(path: Path, lines: Iterable[Line]) -> None:
    """Raises Failure."""
    try:
        draw(path, lines)
    except OSError as error:
        raise Failure(Exit.NOT_WRITTEN, [f"{path}: {error.strerror}"]) from None


def write(path: Path, text: str) -> None:
    """Raises Failure."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(Exit.NOT_WRITTEN, [f"{path}: {error.strerror}"]) from None


if __name__ == "__main__":
    from runtime import cli

    sys.exit(int(cli.run(["bench", *sys.argv[1:]])))
