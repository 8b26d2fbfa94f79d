"""`calexec soak`: its options, what it shows while it runs, and its reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
from attrs import evolve, frozen
from rich.console import Console

from machines.protocol.params import Policy
from runtime import breaks
from runtime.breaks import Bug
from runtime.clients import Order
from runtime.config import POLICIES
from runtime.device_run import DEVICE, opened
from runtime.exits import Exit, Failure
from runtime.files import write_private
from runtime.manifest import Manifest
from runtime.plots import SUFFIXES, PlotsMissing
from runtime.prompts import Prompt, read_prompts
from runtime.run import Asked, config_of, run, settings, stands_on
from runtime.run_command import LATENCY, LONGEST_MS, SEED, Range, Share, logged, simulator_of
from runtime.run_table import interruptible
from runtime.soak import LAPS_MIN, Length, Soak
from runtime.soak_plot import plot
from runtime.soak_report import SoakReport, ended_by
from runtime.soak_watch import tell, watching
from runtime.stopping import stoppable
from runtime.weather import Weather

__all__ = ["soak_command"]

PROMPTS_MAX = 8  # different ones
JOBS = 20_000
WIDTH = 100  # of the tables where stdout is no terminal
NEVER_RESETS = Policy.Exit.name.lower()
TRACE_CALLS = 8_192  # records of calls that the simulator keeps: those of more jobs than the weather lets pass unseen
LEAKS = breaks.FILE.with_name("seeded_leaks.py")
EPILOG = """\b
Examples:
  calexec soak                                       20,000 jobs without faults
  calexec soak --jobs 1000000 --report soak.json --plot soak.png
  calexec soak --hours 24 --faults 0.01 --seed 7     first with faults, then without
  calexec soak --break results                       an executor that leaks: must end with 15 (--list-breaks)
"""


@frozen(kw_only=True)
class Options:
    """What the command line says, by the names of its parameters."""

    jobs: int | None
    hours: float | None
    faults: float
    cancel: float
    seed: int
    model: str
    clients: int
    tokens: int
    policy: str
    recoveries_max: int | None
    device: int
    latency_decode_us: int | None
    latency_prefill_us: int | None
    every_s: float
    report: Path | None
    plot: Path | None
    log: Path | None
    as_json: bool


@click.command("soak", epilog=EPILOG)
@click.option(
    "--jobs",
    type=click.IntRange(1, 10**9),
    help=f"So many jobs, at least {LAPS_MIN} x clients x tokens. [{JOBS:,}, without --hours]",
)
@click.option("--hours", type=Range(0, 10_000, min_open=True), help="Instead: so many hours.")
@click.option(
    "--faults", type=Share(), default=0.0, show_default=True, metavar="RATE",
    help="Chance of a fault at each infer, Wait, Apply and canAllocate while the device serves, as in `run`.",
)  # fmt: skip
@click.option("--cancel", type=Share(), default=0.0, show_default=True, metavar="RATE", help="Requests cancelled.")
@click.option("--seed", type=SEED, default=1, show_default=True, help="Of faults and cancels.")
@click.option("--model", default="tiny", show_default=True, metavar="NAME|MANIFEST", help="The model to run.")
@click.option("--clients", type=click.IntRange(1, 64), default=4, show_default=True, help="Threads that want tokens.")
@click.option("--tokens", type=click.IntRange(2), default=64, show_default=True, help="Of each sequence.")
@click.option(
    "--policy", type=click.Choice(list(POLICIES)), default="rebuild", show_default=True, help="See docs/config.md."
)
@click.option(
    "--recoveries-max", type=click.IntRange(0, 1 << 16), metavar="N",
    help="Resets that are allowed; with the next one the device Failed. [as many as there can be]",
)  # fmt: skip
@click.option("--device", type=click.IntRange(0, 2**32 - 1), default=DEVICE, show_default=True, metavar="N")
@click.option("--latency-decode-us", type=LATENCY, help="What a decode takes on the simulated device.")
@click.option("--latency-prefill-us", type=LATENCY, help="What a prefill takes there.")
@click.option(
    "--every", "every_s", type=Range(0, 86_400), default=10.0, show_default=True, metavar="S",
    help="Where stderr is no terminal: a line every so many seconds.",
)  # fmt: skip
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write all samples there, as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw them there: .png, .svg or .pdf.")
@click.option("--log", type=click.Path(path_type=Path), metavar="FILE", help="Write the executor's log there.")
@click.option("--break", "bug", metavar="NAME", help="Run an executor that leaks (--list-breaks has them).")
@click.option("--list-breaks", is_flag=True, help="List the seeded leaks.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON, with all samples.")
def soak_command(bug: str | None, list_breaks: bool, **given: Any) -> Exit:
    """Serve very many jobs, first with faults, then without; nothing may grow.

    Every token is compared and every step judged, as `run` does. Between laps the process is measured: memory, files,
    threads, handles, objects. Ends with 0 only if none of them grows with the jobs, nor by more than one pool for each
    recovery; with 12 if the device Failed.
    """
    options = Options(**given)
    if list_breaks:
        for leak in breaks.bugs(LEAKS):
            click.echo(f"{leak.name:<14}{leak.about}; {leak.seen_as}")
        return Exit.OK
    length = _length(options)
    _check_files(options)
    return _soak(options, length, breaks.bug_named(bug, LEAKS) if bug else None)


def _length(options: Options) -> Length:
    if options.jobs is not None and options.hours is not None:
        raise click.UsageError("--jobs and --hours are two ways to say how long; give one")
    if options.hours is not None:
        return Length(seconds=options.hours * 3600)
    jobs, least = options.jobs or JOBS, LAPS_MIN * options.clients * options.tokens
    if jobs < least:
        why = f"{LAPS_MIN} laps of {options.clients} clients, each with {options.tokens} tokens"
        raise click.UsageError(f"--jobs {jobs} is too little to see what grows; at least {least}: {why}")
    return Length(jobs=jobs)


def _check_files(options: Options) -> None:
    """Before hours of work: what is to be written at the end."""
    if options.plot and options.plot.suffix not in SUFFIXES:
        raise click.UsageError(f"--plot {options.plot} is none of {', '.join(SUFFIXES)}")
    for path in filter(None, (options.plot, options.report)):
        if not path.absolute().parent.is_dir():
            raise Failure(Exit.NOT_WRITTEN, [f"cannot write {path}: its folder is not there"])


def _prompts(manifest: Manifest, tokens: int) -> tuple[Prompt, ...]:
    """Some that leave room for so many tokens."""
    longest = min(s.max_seq for s in manifest.submodels)
    room = longest - (tokens - 1)
    fit = tuple(prompt for prompt in read_prompts() if len(prompt.tokens) <= room)[:PROMPTS_MAX]
    if not fit:
        raise click.UsageError(f"--tokens {tokens} leaves no room for a prompt: max_seq is {longest}")
    return fit


def _soak(options: Options, length: Length, leak: Bug | None) -> Exit:
    library, manifest = opened(options.model, options.device)
    prompts = _prompts(manifest, options.tokens)
    simulator = simulator_of(library, options.device)
    if options.faults and simulator is None:
        raise Failure(Exit.USAGE, ["--faults is for the simulator, and this CalRT is not one"])
    latency_us = max(options.latency_decode_us or 0, options.latency_prefill_us or 0)
    config = config_of(manifest, options.device, options.clients, options.policy, simulator is not None, latency_us)
    if options.recoveries_max is not None:
        config = evolve(config, recoveries_max=options.recoveries_max)
    weather = Weather(simulator, options.seed, options.faults, facts=stands_on(options.policy))
    soak = Soak(prompts, length, options.clients, options.tokens, weather)
    order = Order(options.tokens, options.cancel, options.seed, LONGEST_MS / 1000 if simulator is None else 60.0)
    wanted = {"decode_us": options.latency_decode_us, "prefill_us": options.latency_prefill_us}
    with interruptible(options.as_json) as so_far, ExitStack() as stack:
        so_far.weather, so_far.then = weather, soak.work
        asked = Asked(prompts, order, options.clients, before=so_far.before)
        stack.enter_context(settings(simulator, wanted | ({"trace_limit": TRACE_CALLS} if simulator else {})))
        stack.enter_context(logged(options.log))
        stack.enter_context(stoppable())
        if leak:
            stack.enter_context(leak.installed())
        on_token = stack.enter_context(_shown(soak, options))
        report = run(config, simulator, asked, weather, on_token)
    by = ended_by(weather, config.recoveries_max, options.policy == NEVER_RESETS) if report.device_failed else ""
    found = SoakReport.of(report, soak, by)
    _write(found, options)
    _say(found, options, leak)
    return found.exit


@contextmanager
def _shown(soak: Soak, options: Options) -> Iterator[Any]:
    if options.as_json:
        yield lambda: None
        return
    with watching(soak, Console(stderr=True), options.every_s) as on_token:
        yield on_token


def _write(found: SoakReport, options: Options) -> None:
    """The report first: without matplotlib there is no plot, and all the same a report."""
    if options.report:
        write_private(options.report, (json.dumps(found.as_json()) + "\n").encode())
    if options.plot:
        try:
            plot(options.plot, found)
        except (PlotsMissing, ValueError) as missing:
            click.echo(f"calexec: {missing}", err=True)


def _say(found: SoakReport, options: Options, leak: Bug | None) -> None:
    seen = leak is not None and leak.seen_as in found.growing
    if options.as_json:
        more: Mapping[str, Any] = {"break": leak.name, "break_seen": seen} if leak else {}
        click.echo(json.dumps({**found.as_json(), **more}))
        return
    tell(found, Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False))
    if leak:
        click.echo(f"the leak {leak.name} ({leak.about}) was {'' if seen else 'not '}seen as: {leak.seen_as}")
