"""`calexec storm`: many seeds of a thousand events each on the running executor, a process for each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
from attrs import asdict, evolve
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from runtime.clients import Order
from runtime.device_run import DEVICE, opened
from runtime.exits import Exit, Failure
from runtime.prompts import read_prompts
from runtime.report import Report
from runtime.run import Asked, config_of, run, stands_on
from runtime.run_command import SEED, logged, simulator_of
from runtime.run_table import count_of, interruptible, tell, wrong
from runtime.seeds import Column, each_seed, given_options, seeds_of
from runtime.stopping import stoppable
from runtime.storm import HOSTS, LULL, Storm, ended_rightly
from runtime.weather import Weather

__all__ = ["storm_command"]

POLICY = "rebuild"
DEADLINE_S = 20.0
READY_SHARE_MIN = 0.95
TOKENS = 4
EPILOG = """\b
Examples:
  calexec storm                                      seeds 1 to 100
  calexec storm --seeds 7,20-29 --events 200 --processes 2
  calexec storm --seed 7 --log storm.log             one seed, in this process
"""


@click.command("storm", epilog=EPILOG)
@click.option("--model", default="tiny", show_default=True, metavar="NAME|MANIFEST", help="The model to run.")
@click.option("--seeds", callback=seeds_of, default="1-100", show_default=True, help="A process for each of them.")
@click.option("--seed", type=SEED, help="Instead: this one alone, in this process.")
@click.option("--events", type=click.IntRange(1, 1_000_000), default=1_000, show_default=True, help="Of each seed.")
@click.option("--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Seeds at the same time.")
@click.option("--device", type=click.IntRange(0, 2**32 - 1), default=DEVICE, show_default=True, metavar="N")
@click.option("--log", type=click.Path(path_type=Path), metavar="FILE", help="With --seed: the executor's log.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
@click.pass_context
def storm_command(
    context: click.Context, /, model: str, seeds: tuple[int, ...], seed: int | None, events: int, processes: int,
    device: int, log: Path | None, as_json: bool,
) -> Exit:  # fmt: skip
    """Let hosts and device do what they like, a thousand times; then the executor must serve.

    A seed ends with 0 if the device is Ready, its golden run passed, and new jobs are served rightly; with 12 if it
    rightly Failed for an injected fault that nobody recovers from, or that used up the reset ladder, which it names.

    The command ends with 0 if all seeds end so, and no more than one in twenty with 12. Of fewer than twenty seeds none
    may: a few seeds can be red though each of them ended as it should. The last line says so.
    """
    if seed is None:
        if log:
            raise click.UsageError("--log is for --seed, one seed")
        arguments = given_options(context, but=("seeds", "processes", "as_json"))
        return each_seed(["storm", *arguments], seeds, processes, COLUMNS, as_json, failed_max=1 - READY_SHARE_MIN)
    library, manifest = opened(model, device)
    simulator = simulator_of(library, device)
    if simulator is None:
        raise Failure(Exit.USAGE, ["a storm is for the simulator, and this CalRT is not one"])
    config = evolve(config_of(manifest, device, 2 * HOSTS, POLICY, True, 0), golden_ms=10_000)
    facts = stands_on(POLICY) | {"reset_is_honest"}
    weather = Weather(simulator, seed, facts=facts, lull=LULL)
    storm = Storm(seed, events, weather)
    prompts = read_prompts()[:1]
    with interruptible(as_json) as so_far, ExitStack() as stack:
        so_far.weather, so_far.then = weather, storm.rage
        asked = Asked(prompts, Order(TOKENS, deadline_s=DEADLINE_S), 1, before=so_far.before)
        stack.enter_context(logged(log))
        stack.enter_context(stoppable())
        if not as_json:
            storm.on_event = stack.enter_context(_progress(events))
        report = run(config, simulator, asked, weather)
    ended = ended_rightly(weather.failed_by, storm.fatal, weather.since(0)) if report.device_failed else ""
    report = judged(report, ended)
    if as_json:
        more = {"events": dict(storm.events), "ended_by": ended, "exit": report.exit.name}
        click.echo(json.dumps({**asdict(report), **more}, indent=2))
    else:
        for name, n in sorted(storm.events.items()):
            click.echo(f"{name:<26} {n:,}")
        tell(report)
    return report.exit


def judged(report: Report, ended: str) -> Report:
    """A device that Failed must name the fault that ended it (`ended`), or its end is not explained."""
    if not report.device_failed:
        return report
    if ended:
        return evolve(report, findings=(*report.findings, f"ended by {ended}"))
    text = "unexplained: the device Failed, and no injected fault leads there"
    return evolve(report, unexplained=report.unexplained + 1, findings=(*report.findings, text))


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    shown = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with shown:
        task = shown.add_task("events", total=total)
        yield lambda: shown.advance(task)


def _served(r: Mapping[str, Any]) -> str:
    return f"{r['jobs'].get('OK', 0):,} of {sum(r['jobs'].values()):,}"


COLUMNS = (
    Column("events", lambda r: f"{sum(r['events'].values()):,}"),
    Column("jobs served", _served),
    *map(count_of, ("faults", "resets")),
    Column("steps", lambda r: f"{r['steps']:,}"),
    Column("device", lambda r: "Failed" if r["device_failed"] else "Ready"),
    Column("s", lambda r: f"{r['seconds']:.0f}"),
    Column("wrong", wrong),
)
