"""The command `check-states`: runs a rulebook's campaign, or one scope, and says in its exit code how that ended.

Whatever is wrong with the input ends in one clear line and an exit code of its own (checker/exits.py), never in a
traceback and never in PROVED.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from attrs import field, frozen

from checker import exits, report
from checker.campaign import (
    TIERS,
    Campaign,
    Plan,
    SelectionError,
    execute,
    plan_campaign,
    plan_scope,
)
from checker.conform import command as replaying
from checker.engines import ENGINES, EngineError, Search
from checker.exits import Exit
from checker.memory import default_limit_mb
from checker.progress import board_for
from checker.result import Limits
from checker.stopping import Terminated
from machines.expr import ExprError, Param
from machines.rulebook import Rulebook
from machines.table import RulebookError

DEFAULT_TARGET = "machines.protocol:RULEBOOK"
REPLAY = "replay"  # the one word that is no MODULE:RULEBOOK
DEFAULT_WORKERS = min(2, os.cpu_count() or 1)

EPILOG = f"""\b
Examples:
  check-states                                       the executor's whole protocol
  check-states --run 'exit 1*' --show rules          some runs, with how often each rule fired
  check-states examples.two_phase_commit:RULEBOOK --scope managers=2
                                                     one scope of your choice
  check-states my_package.my_module:RULEBOOK         your own machines
  check-states --list                                runs, parameters, properties
  check-states replay run.jsonl                      was what happened allowed? (check-states replay --help)

\b
Exit codes:
{exits.table()}
"""


@frozen
class Failure(Exception):
    """The command cannot go on: an exit code, and one line per thing that is wrong."""

    exit: Exit
    lines: tuple[str, ...] = field(converter=tuple[str, ...])


class Seconds(click.FloatRange):
    """A number of seconds: inf and nan bound nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{seconds} is not a number of seconds", param, ctx)
        return seconds


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.argument("target", default=DEFAULT_TARGET, metavar="[MODULE:RULEBOOK]")
@click.option("--scope", "scope", multiple=True, metavar="K=V", help="One ad-hoc run with these parameters.")
@click.option("--run", "runs", multiple=True, metavar="NAME", help="Only the runs with this name (* and ? match).")
@click.option("--tier", type=click.Choice(TIERS), default="fast", show_default=True, help="nightly: every run.")
@click.option("--engine", type=click.Choice(ENGINES), default="auto", show_default=True, help="auto: C, else Python.")
@click.option("--limit-states", type=click.IntRange(1), metavar="N", help="Bound of each run.")
@click.option("--limit-seconds", type=Seconds(0, min_open=True), metavar="S", help="Bound of each run.")
@click.option("--limit-memory-mb", type=click.IntRange(1), metavar="MB", help="Bound of each run [a share of all].")
@click.option("--stop", is_flag=True, help="Stop each search at its first finding.")
@click.option("--no-liveness", is_flag=True, help="With --scope: leave leads-to out (they end UNDETERMINED).")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=DEFAULT_WORKERS,
    show_default=True,
    metavar="N",
    help="Runs at a time.",
)
@click.option("--show", type=click.Choice(report.SHOWN), help="Also how often each rule fired, each row was used.")
@click.option("--json", "json_file", is_flag=False, flag_value="-", metavar="[FILE]", help="Report as JSON [stdout].")
@click.option("--junit", "junit_file", metavar="FILE", help="Report as JUnit XML [-: stdout].")
@click.option("--list", "only_list", is_flag=True, help="List runs, parameters and properties; run nothing.")
@click.option("--quiet", is_flag=True, help="No progress and no tables, only the verdict.")
@click.version_option(package_name="calexec")
def command(
    target: str,
    scope: tuple[str, ...],
    runs: tuple[str, ...],
    tier: str,
    engine: str,
    limit_states: int | None,
    limit_seconds: float | None,
    limit_memory_mb: int | None,
    stop: bool,
    no_liveness: bool,
    workers: int,
    show: str | None,
    json_file: str | None,
    junit_file: str | None,
    only_list: bool,
    quiet: bool,
) -> Exit:
    """Prove a rulebook, or print the shortest counterexample.

    Explores every state of every declared run and judges every property.
    """
    if json_file and ":" in json_file:
        raise click.UsageError(f"--json takes a FILE, and {json_file!r} looks like a rulebook; put it before --json")
    if json_file == junit_file == "-":
        raise click.UsageError("--json - and --junit - cannot both have stdout")
    book = load(target)
    if only_list:
        click.echo(report.listing(book))
        return Exit.PROVED
    plan = _plan(book, scope, runs, tier, no_liveness)
    limits = Limits(limit_states, limit_seconds, limit_memory_mb or default_limit_mb(workers))
    out = sys.stderr if "-" in (json_file, junit_file) else sys.stdout
    with board_for(sys.stderr, len(plan.tasks), quiet) as board:
        started = time.monotonic()
        results = execute(plan, Search(engine, limits, stop), board, workers)
    campaign = Campaign(plan, results, time.monotonic() - started)
    click.echo(report.verdict(campaign) if quiet else report.text(campaign, show or ""), file=out)
    _write(json_file, json.dumps(report.as_json(campaign), indent=2, ensure_ascii=False) + "\n", campaign)
    _write(junit_file, report.as_junit(campaign), campaign)
    return campaign.exit


# -- input ----------------------------------------------------------------------------------------------------------
def load(target: str) -> Rulebook:
    """Import MODULE:RULEBOOK; the current directory is on the path. Raises Failure or click.UsageError."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise click.UsageError(f"{target!r} is not MODULE:RULEBOOK, such as {DEFAULT_TARGET}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except RulebookError as e:
        raise _bad_rulebook(e) from e
    except ExprError as e:
        raise Failure(Exit.BAD_RULEBOOK, [f"{module_name}: {e}{_place(e)}"]) from e
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as e:  # SystemExit, and whatever else the module raises
        raise Failure(Exit.NOT_FOUND, [f"cannot import {module_name}: {_name(e)}{_place(e)}"]) from e
    books = [k for k, v in vars(module).items() if isinstance(v, Rulebook)]
    known = f"; its rulebooks are: {', '.join(books) or 'none'}"
    if not hasattr(module, attribute):
        raise Failure(Exit.NOT_FOUND, [f"module {module_name} has no {attribute!r}{known}"])
    book = getattr(module, attribute)
    if not isinstance(book, Rulebook):
        raise Failure(Exit.NOT_FOUND, [f"{target} is a {type(book).__name__}, not a Rulebook{known}"])
    return book


def _name(error: BaseException) -> str:
    """The error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _place(error: BaseException) -> str:
    """Where in the imported code it was raised; empty when that is not in a file of the user's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_file()]
    ours = [f for f in frames if f.filename != __file__]
    return f" ({os.path.relpath(ours[-1].filename)}:{ours[-1].lineno})" if ours else ""


def _bad_rulebook(error: RulebookError) -> Failure:
    return Failure(Exit.BAD_RULEBOOK, [f"{error.subject}: {problem}" for problem in error.problems])


def _plan(book: Rulebook, scope: Sequence[str], runs: Sequence[str], tier: str, no_liveness: bool) -> Plan:
    if scope and runs:
        raise click.UsageError("--scope is a run of its own; it cannot be combined with --run")
    if no_liveness and not scope:
        raise click.UsageError("--no-liveness belongs to --scope; a declared run says itself whether it has liveness")
    try:
        if not scope:
            return plan_campaign(book, tier, runs)
        values = parse_scope(book.params, scope)
        try:
            book.scope(values)
        except RulebookError as e:
            raise click.UsageError("; ".join(e.problems)) from e
        return plan_scope(book, values, with_liveness=not no_liveness)
    except SelectionError as e:
        raise click.UsageError(str(e)) from e
    except RulebookError as e:
        raise _bad_rulebook(e) from e


def parse_scope(params: Sequence[Param], texts: Sequence[str]) -> Mapping[str, int]:
    """`K=V` texts as numbers: an enum-valued parameter by its member's name, a number, or true and false."""
    known = {p.name: p for p in params}
    values: dict[str, int] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--scope {text!r} is not K=V")
        if name not in known:
            raise click.UsageError(f"unknown parameter {name!r}; allowed are {', '.join(known) or 'none'}")
        values[name] = _number(known[name], value)
    return values


def _number(param: Param, text: str) -> int:
    if param.choices is not None:
        members = {m.name: m.code for m in param.choices if param.lo <= m.code <= param.hi}
        folded = {name.lower(): code for name, code in members.items()}  # exact names go first: they may differ in case
        known = folded | {str(code): code for code in members.values()} | members
        code = known.get(text, known.get(text.lower()))
        if code is None:
            raise click.UsageError(f"{param.name}={text}: allowed are {', '.join(members)}")
        return code
    if (param.lo, param.hi) == (0, 1) and text.lower() in ("true", "false"):
        return int(text.lower() == "true")
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(f"{param.name}={text} is not a number; allowed are {param.lo}..{param.hi}") from None


# -- output ---------------------------------------------------------------------------------------------------------
def _write(path: str | None, content: str, campaign: Campaign) -> None:
    if path is None:
        return
    encoded = content.encode("utf-8", errors="backslashreplace")  # for programs: whatever the locale is
    if path == "-":
        click.echo(encoded, nl=False)
        return
    try:
        Path(path).write_bytes(encoded)
    except OSError as e:
        exit_ = campaign.exit if campaign.exit is not Exit.PROVED else Exit.NOT_WRITTEN
        raise Failure(exit_, [f"cannot write {path}: {e.strerror}"]) from e


def run(args: Sequence[str] | None = None) -> Exit:
    """The command with every failure turned into its exit code and its lines on stderr."""
    try:
        _prepare_streams()
        given = list(sys.argv[1:] if args is None else args)
        asked, name = (
            (replaying.command, f"check-states {REPLAY}") if given[:1] == [REPLAY] else (command, "check-states")
        )
        done = asked.main(given[asked is not command :], prog_name=name, standalone_mode=False)
        sys.stdout.flush()  # what cannot be written must be known before the exit code is
        return done if isinstance(done, Exit) else Exit.PROVED  # --help and --version end with 0
    except Failure as e:
        return _fail(e.exit, *e.lines)
    except replaying.NotDone as e:
        return _fail(e.exit, str(e))
    except click.UsageError as e:
        return _fail(Exit.USAGE, f"{e.format_message()} (see check-states --help)")
    except EngineError as e:
        return _fail(Exit.NO_ENGINE, str(e))
    except MemoryError:
        return _fail(Exit.UNDETERMINED, "UNDETERMINED: memory exhausted")
    except (OSError, SystemExit) as e:  # SystemExit: how click ends when nobody reads what it prints
        _discard_output()
        return (
            Exit.NOT_WRITTEN
            if isinstance(e, (BrokenPipeError, SystemExit))
            else _fail(Exit.NOT_WRITTEN, f"cannot write: {e}")
        )
    except (click.Abort, KeyboardInterrupt):
        return _fail(Exit.INTERRUPTED, "interrupted: nothing is proved")
    except Terminated:
        return _fail(Exit.TERMINATED, "terminated: nothing is proved")


def _prepare_streams() -> None:
    """A stream that was closed before we began is None. A letter that the terminal does not have is shown as `?`."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (it is open as long as we live)
    if sys.stdout is None:
        raise Failure(Exit.NOT_WRITTEN, ["cannot write: stdout is closed"])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _discard_output() -> None:
    """What stdout still holds must not fail once more at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


def _fail(exit_: Exit, *lines: str) -> Exit:
    with suppress(OSError):  # there is nowhere left to say it
        for line in lines:
            click.echo(f"check-states: {line}", err=True)
    return exit_
