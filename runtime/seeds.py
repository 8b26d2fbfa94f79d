"""One command for many seeds: a process of its own for each, and one table of what came of them.

Theory. A process for each seed, because what a device's faults leave behind, memory in quarantine above all, lasts as
long as the process; and because a seed that ends its process is a result like the others. Every child prints JSON, from
which the table is made. The parent ends with the worst of their exit codes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import click
from attrs import define, field, frozen
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from runtime.exits import Exit, exit_of
from runtime.stopping import stoppable

__all__ = ["Column", "Outcome", "each_seed", "given_options", "seeds_of"]

SEEDS_MAX = 10_000
SEED_MAX = 2**32 - 1
CHILD_S_MAX = 3_600.0
WIDTH = 100  # of a table that is no terminal's
WORST_FIRST = (
    Exit.BUG, Exit.DIFFERENT, Exit.UNEXPLAINED, Exit.FAILED, *(e for e in Exit if e is not Exit.OK), Exit.OK,
)  # fmt: skip


def seeds_of(context: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Numbers and ranges, as 7,1-20: each once, in this order. None: no seeds. For click, whose error it raises."""
    found: dict[int, None] = {}
    for part in value.split(",") if value is not None else ():
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            text = f"{part!r} is neither a number nor a range; expected something like 7,1-20"
            raise click.BadParameter(text, context, param)
        low, high = int(first), int(last or first)
        if not low <= high <= SEED_MAX or high - low + len(found) >= SEEDS_MAX:
            text = f"{part!r}: seeds are 0 to {SEED_MAX}, the lower one first, and at most {SEEDS_MAX} of them"
            raise click.BadParameter(text, context, param)
        found.update(dict.fromkeys(range(low, high + 1)))
    return tuple(found)


@frozen
class Column:
    """Of the table: what it says of a report."""

    title: str
    of: Callable[[Mapping[str, Any]], str]


@frozen
class Outcome:
    """What came of one seed. report: None where the child printed none; then `said` is its last word."""

    seed: int
    exit: Exit
    report: Mapping[str, Any] | None
    said: str = ""

    @property
    def findings(self) -> list[str]:
        return [*(self.report or {}).get("findings", ())]

    @property
    def line(self) -> str:
        """As long as it runs: how it ended, and the last thing that was found."""
        return ": ".join([f"seed {self.seed}", self.exit.name, *([self.said] if self.said else self.findings[-1:])])


@define(eq=False)
class Children:
    """The processes that are running, so that they can be ended together."""

    stopped: bool = False
    _running: set[subprocess.Popen[str]] = field(factory=set, init=False)
    _mu: Any = field(factory=threading.Lock, init=False)

    def run(self, arguments: Sequence[str], seed: int) -> Outcome:
        command = [sys.executable, "-m", "runtime", *arguments, "--seed", str(seed), "--json"]
        with self._mu:
            if self.stopped:
                return Outcome(seed, Exit.INTERRUPTED, None, "was not begun")
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
            )  # of its own group: Ctrl-C at the terminal is for us, who tell it once
            self._running.add(child)
        try:
            out, err = child.communicate(timeout=CHILD_S_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
            err = f"did not end within {CHILD_S_MAX:g} s"
        finally:
            with self._mu:
                self._running.discard(child)
        if self.stopped and child.returncode == -signal.SIGTERM:  # it had not come so far that it could say so itself
            return Outcome(seed, Exit.INTERRUPTED, None, "was stopped when it began")
        return outcome(seed, child.returncode, out, err)

    def stop(self) -> None:
        """Orderly: each closes its executor."""
        with self._mu:
            self.stopped = True
            for child in self._running:
                child.terminate()


def outcome(seed: int, code: int, out: str, err: str) -> Outcome:
    """What a child's end means."""
    try:
        report = json.loads(out)
    except ValueError:
        report = None
    known = exit_of(code)
    if report is None and known is Exit.OK:
        known = Exit.BUG
    last = (err.strip().splitlines() or [f"ended with {code} and printed nothing"])[-1]
    return Outcome(seed, known, report, "" if report else last)


def given_options(context: click.Context, but: Sequence[str]) -> list[str]:
    """What the command line had, without some parameters."""
    found: list[str] = []
    for param in context.command.params:
        name = param.name or ""
        if name in but or context.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        found += [param.opts[-1]] if isinstance(value, bool) else [param.opts[-1], str(value)]
    return found


def each_seed(
    arguments: Sequence[str], seeds: Sequence[int], processes: int, columns: Sequence[Column], as_json: bool,
    failed_max: float = 0.0,
) -> Exit:  # fmt: skip
    """Run `calexec` with these arguments for each seed, and print what came of it. The worst exit, where a share of
    failed_max may end with FAILED."""
    children = Children()
    shown = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True, disable=as_json,
    )  # fmt: skip
    with stoppable(), shown, ThreadPoolExecutor(processes) as pool:
        task = shown.add_task("seeds", total=len(seeds))

        def one(seed: int) -> Outcome:
            done = children.run(arguments, seed)
            if not as_json:
                shown.console.print(done.line, highlight=False, markup=False, soft_wrap=True)
            shown.advance(task)
            return done

        coming = [pool.submit(one, seed) for seed in seeds]
        try:
            wait(coming)
        except KeyboardInterrupt:  # what has ended is told all the same
            children.stop()
        outcomes = [future.result() for future in coming]
    worst = worst_of([o.exit for o in outcomes], failed_max)
    if as_json:
        by_seed = {str(o.seed): o.report or {"exit": o.exit.name, "said": o.said} for o in outcomes}
        click.echo(json.dumps({"exit": worst.name, "seeds": by_seed}, indent=2))
    else:
        tell(outcomes, columns, failed_max)
    return worst


def worst_of(exits: Sequence[Exit], failed_max: float = 0.0) -> Exit:
    """Of all of them; FAILED does not count up to that share."""
    tolerated = exits.count(Exit.FAILED) <= failed_max * len(exits)
    return min((e for e in (*exits, Exit.OK) if not (tolerated and e is Exit.FAILED)), key=WORST_FIRST.index)


def tell(outcomes: Sequence[Outcome], columns: Sequence[Column], failed_max: float = 0.0) -> None:
    """The table, and below it every finding. failed_max: as each_seed's."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("seed", justify="right", no_wrap=True)
    table.add_column("exit", no_wrap=True)
    for column in columns[:-1]:
        table.add_column(column.title, justify="right", no_wrap=True)
    table.add_column(columns[-1].title)  # what is in words
    for o in outcomes:
        style = None if o.exit is Exit.OK else "bold red"
        cells = [c.of(o.report) for c in columns] if o.report else ()
        table.add_row(str(o.seed), o.exit.name, *cells, style=style)
    console = Console(highlight=False, markup=False)
    console = console if console.is_terminal else Console(highlight=False, markup=False, width=WIDTH)
    console.print(table)
    for o in outcomes:
        for finding in o.findings:
            console.print(f"seed {o.seed}: {finding}", style="red" if o.exit is not Exit.OK else None, soft_wrap=True)
        if o.said:
            console.print(f"seed {o.seed}: {o.said}", style="red", soft_wrap=True)
    console.print(ends_of([o.exit for o in outcomes], failed_max))


def ends_of(exits: Sequence[Exit], failed_max: float = 0.0) -> str:
    """How many seeds ended well; where some may end with FAILED, also how many did, and how many may."""
    good, failed = exits.count(Exit.OK), exits.count(Exit.FAILED)
    said = f"{good} of {len(exits)} seeds ended with 0"
    if not failed or not failed_max:
        return said
    may = int(failed_max * len(exits)) or "none"
    said += f", {failed} rightly with {Exit.FAILED}"
    return f"{said}: of {len(exits)} {may} may (one in {1 / failed_max:.0f})"
