"""`calexec run`: its options, its table, and the commands that it turns into others for many seeds and seeded bugs."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
from attrs import asdict, evolve, frozen
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from runtime.breaks import Bug, bug_named, bugs
from runtime.calrt import Library
from runtime.clients import LATE_S, Order
from runtime.config import POLICIES
from runtime.device_run import DEVICE, Rate, opened
from runtime.exits import Exit, Failure
from runtime.finished import Finished
from runtime.logs import LOGGER, JsonLines
from runtime.prompts import PROMPTS, TOKENS_MAX, PromptError, read_prompts
from runtime.recording import Recording
from runtime.report import Report
from runtime.run import Asked, config_of, run, settings, stands_on
from runtime.run_table import COLUMNS, interruptible, tell
from runtime.seeds import each_seed, given_options, seeds_of
from runtime.simulator import NotSimulated, Simulator
from runtime.stopping import stoppable
from runtime.weather import Weather

__all__ = ["SEED", "logged", "run_command", "simulator_of"]

LATENCY = click.IntRange(0, 1_000_000)
LONGEST_MS = 3_600_000
SEED = click.IntRange(0, 2**32 - 1)


class Range(click.FloatRange):
    """NaN is in no range, and click's lets it pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class Share(Range):
    """0 to 1."""

    def __init__(self) -> None:
        super().__init__(0, 1)


EPILOG = """\b
Examples:
  calexec run                                        all prompts; every token against the oracle
  calexec run --faults 0.05 --cancel 0.1 --seed 7    with faults and cancels
  calexec run --faults 0.05 --cancel 0.1 --seeds 7,1-20 --generations-min 3
                                                     one process after the other; a table of them
  calexec run --break swap                           an executor with a bug: must end red (from the source tree)
  calexec supervise -- run --policy exit --faults 0.001 --resume done.jsonl
                                                     a new process wherever the device Failed
"""


@frozen(kw_only=True)
class Options:
    """What the command line says, by the names of its parameters."""

    path: Path
    model: str
    count: int
    limit: int | None
    clients: int
    faults: float
    faults_everywhere: bool
    cancel: float
    seed: int
    deadline_ms: int | None
    policy: str
    device: int
    latency_decode_us: int | None
    latency_prefill_us: int | None
    generations_min: int
    resume: Path | None
    log: Path | None
    journal: Path | None
    as_json: bool


@click.command("run", epilog=EPILOG)
@click.option(
    "--prompts", "path", type=click.Path(path_type=Path), default=PROMPTS, help="UTF-8 file, one prompt a line."
)
@click.option("--model", default="qwen3-tile16", show_default=True, metavar="NAME|MANIFEST", help="The model to run.")
@click.option("--tokens", "count", type=click.IntRange(1), default=64, show_default=True, help="For each prompt.")
@click.option("--limit", type=click.IntRange(1), help="Only so many prompts.")
@click.option("--clients", type=click.IntRange(1, 64), default=4, show_default=True, help="Threads that want tokens.")
@click.option(
    "--faults", type=Share(), default=0.0, show_default=True, metavar="RATE",
    help="Chance of a fault at each infer, Wait, Apply and canAllocate while the device serves.",
)  # fmt: skip
@click.option("--faults-everywhere", is_flag=True, help="Also at start-up and in recoveries, also fatal ones.")
@click.option(
    "--cancel", type=Share(), default=0.0, show_default=True, metavar="RATE",
    help="Share of the requests that are cancelled, at a random token and moment.",
)  # fmt: skip
@click.option("--seed", type=SEED, default=1, show_default=True, help="Of faults and cancels.")
@click.option("--seeds", callback=seeds_of, help="Instead: one run for each of these seeds, such as 7,1-20.")
@click.option("--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Seeds at the same time.")
@click.option(
    "--deadline-ms", type=click.IntRange(1, LONGEST_MS),
    help="Of each job; an answer much later is an error. [what the executor's own deadlines add up to]",
)  # fmt: skip
@click.option(
    "--policy", type=click.Choice(list(POLICIES)), default="rebuild", show_default=True, help="See docs/config.md."
)
@click.option("--device", type=click.IntRange(0, 2**32 - 1), default=DEVICE, show_default=True, metavar="N")
@click.option("--latency-decode-us", type=LATENCY, help="What a decode takes on the simulated device.")
@click.option("--latency-prefill-us", type=LATENCY, help="What a prefill takes there.")
@click.option(
    "--generations-min", type=click.IntRange(1), default=1, show_default=True, metavar="N",
    help="An error if fewer generations were reached: faults that never lead to a reset prove little.",
)  # fmt: skip
@click.option(
    "--resume", type=click.Path(path_type=Path), metavar="FILE",
    help="Finished prompts are written there, and those that are there already are not run again.",
)  # fmt: skip
@click.option("--break", "bug", metavar="NAME", help="Run an executor with a seeded bug (--list-breaks has them).")
@click.option("--control", is_flag=True, help="With --break: its settings, but without the bug.")
@click.option("--list-breaks", is_flag=True, help="List the seeded bugs.")
@click.option("--log", type=click.Path(path_type=Path), metavar="FILE", help="Write the executor's log there.")
@click.option(
    "--journal", type=click.Path(path_type=Path), metavar="FILE",
    help="Write every step and every call of the ABI there, for `check-states replay FILE`.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
@click.pass_context
def run_command(
    context: click.Context, /, seeds: tuple[int, ...], processes: int, bug: str | None, control: bool,
    list_breaks: bool, **given: Any,
) -> Exit:  # fmt: skip
    """Decode prompts for several clients through the executor; compare every token.

    Ends with 0 only if no token differs, the simulator saw no violation, every step is one of the rulebook, every
    failed job names an injected fault, everything was given back, and of the requests that were not cancelled all
    completed (90 % where there are faults).
    """
    options = Options(**given)
    if list_breaks:
        for seeded in bugs():
            click.echo(f"{seeded.name:<14}{seeded.about}; {seeded.seen_as}")
        return Exit.OK
    if control and not bug:
        raise click.UsageError("--control is for --break NAME")
    if seeds:
        if bug or options.log or options.journal or options.resume:
            raise click.UsageError("--seeds does not go with --break, --log, --journal or --resume")
        arguments = given_options(context, but=("seeds", "processes", "as_json", "seed"))
        return each_seed(["run", *arguments], seeds, processes, COLUMNS, options.as_json)
    return _run(options, _prepared(context, bug), control) if bug else _run(options, None, False)


def _prepared(context: click.Context, name: str) -> Bug:
    """The seeded bug. Its settings count where the command line has none."""
    bug = bug_named(name)
    source = context.get_parameter_source
    given = {key for key in bug.settings if source(key) is click.core.ParameterSource.COMMANDLINE}
    return evolve(bug, settings={key: value for key, value in bug.settings.items() if key not in given})


def _run(options: Options, bug: Bug | None, control: bool) -> Exit:
    if bug:
        options = evolve(options, **bug.settings)
    library, manifest = opened(options.model, options.device)
    room = min(s.max_seq for s in manifest.submodels) - (options.count - 1)
    if room < 1:
        longest = room + options.count - 1
        raise click.UsageError(f"--tokens {options.count} leaves no room for a prompt: max_seq is {longest}")
    try:
        prompts = read_prompts(options.path, min(room, TOKENS_MAX))[: options.limit]
    except PromptError as error:
        raise Failure(Exit.USAGE, str(error).splitlines()) from None
    simulator = simulator_of(library, options.device)
    if options.faults and simulator is None:
        raise Failure(Exit.USAGE, ["--faults is for the simulator, and this CalRT is not one"])
    latency_us = max(options.latency_decode_us or 0, options.latency_prefill_us or 0)
    config = config_of(manifest, options.device, options.clients, options.policy, simulator is not None, latency_us)
    longest_ms = config.admission_ms + config.queue_ms + config.request_ms_max + config.grace_ms
    order = Order(options.count, options.cancel, options.seed, (options.deadline_ms or longest_ms) / 1000)
    with interruptible(options.as_json) as so_far, ExitStack() as stack:
        finished = stack.enter_context(Finished.at(options.resume, manifest, prompts, order))
        seed = f"{options.seed}/{finished.start}" if finished.start else options.seed
        weather = Weather(simulator, seed, options.faults, options.faults_everywhere, stands_on(options.policy))
        so_far.weather = weather
        recording = stack.enter_context(recorded(options.journal, simulator))
        asked = Asked(
            prompts, order, options.clients, finished.ends, bug.planned if bug else (), bug.late_s if bug else LATE_S,
            before=so_far.before, recording=recording,
        )  # fmt: skip
        latencies = {"decode_us": options.latency_decode_us, "prefill_us": options.latency_prefill_us}
        stack.enter_context(settings(simulator, latencies))
        stack.enter_context(logged(options.log))
        stack.enter_context(stoppable())
        if bug and not control:
            stack.enter_context(bug.installed())
        left = len(prompts) - len(finished.ends)
        on_token = stack.enter_context(_progress(left * order.count)) if not options.as_json else lambda: None
        report = run(config, simulator, asked, weather, on_token, finished.write)
    report = at_least(report, options.generations_min)
    if options.as_json:
        more = {"break": bug.name, "break_seen": bug.seen(report), "control": control} if bug else {}
        values = {**asdict(report), "tokens_per_s": report.tokens_per_s, "exit": report.exit.name, **more}
        click.echo(json.dumps(values, indent=2))
    else:
        if bug:
            _tell_of(bug, control)
        tell(report)
        if bug and not control:
            click.echo(f"the bug {bug.name} was {'' if bug.seen(report) else 'not '}seen as: {bug.seen_as}")
    if recording and recording.lost:
        worst = Exit.NOT_WRITTEN if report.exit is Exit.OK else report.exit
        raise Failure(worst, [f"cannot write {recording.path}: {recording.lost}"])
    return report.exit


def at_least(report: Report, generations: int) -> Report:
    """With a finding more where there were fewer, which makes it red."""
    if report.generations >= generations:
        return report
    few = f"generations: {report.generations}, and at least {generations} were asked for"
    return evolve(report, too_few_generations=True, findings=(*report.findings, few))


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    shown = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with shown:
        task = shown.add_task("decoding", total=total)
        yield lambda: shown.advance(task)


def _tell_of(bug: Bug, control: bool) -> None:
    click.echo(f"{'the settings of the bug' if control else 'with the bug'} {bug.name}: {bug.about}")
    said = [f"{key} {value}" for key, value in bug.settings.items()]
    said += [f"{action} at {call} {nth}" for call, action, nth in bug.planned]
    click.echo(f"settings: {', '.join(said)}")


def simulator_of(library: Library, device: int) -> Simulator | None:
    """None: CalRT is not the simulator."""
    try:
        return Simulator.beside(library, device)
    except NotSimulated:
        return None


@contextmanager
def recorded(path: Path | None, simulator: Simulator | None) -> Iterator[Recording | None]:
    """A file for the journal of the executor that is made within."""
    if path is None:
        yield None
        return
    try:
        recording = Recording(path, simulator)
    except OSError as error:
        raise Failure(Exit.NOT_WRITTEN, [f"cannot write {path}: {error.strerror}"]) from None
    try:
        yield recording
    finally:
        recording.close()


class _Lines(logging.FileHandler):
    """lost: why lines could not be written, the first time. logging would print a traceback for each."""

    lost: BaseException | None = None

    def handleError(self, record: logging.LogRecord) -> None:
        self.lost = self.lost or sys.exc_info()[1]

    def close(self) -> None:
        try:
            super().close()
        except OSError as error:
            self.lost = self.lost or error


@contextmanager
def logged(path: Path | None) -> Iterator[None]:
    """The executor's log goes to a file, line by line in JSON, or nowhere: what it says of failed jobs is counted here.
    Which of its lines are written its configuration says."""
    logger = logging.getLogger(LOGGER)
    try:
        handler = _Lines(path, "w", encoding="utf-8") if path else logging.NullHandler()
    except OSError as error:
        raise Failure(Exit.NOT_WRITTEN, [f"cannot write {path}: {error.strerror}"]) from None
    handler.setFormatter(JsonLines())
    before = logger.propagate, logger.level
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.propagate, level = before
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
    if lost := getattr(handler, "lost", None):
        raise Failure(Exit.NOT_WRITTEN, [f"cannot write {path}: {getattr(lost, 'strerror', None) or lost}"])
