"""The command `check-states replay`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from checker.conform.judge import LIMIT, Judge
from checker.conform.reading import BadFile, Line
from checker.conform.replaying import Outcome, replay
from checker.conform.reproduce import as_pytest
from checker.conform.telling import as_json, text
from checker.exits import Exit

__all__ = ["EXITS", "NotDone", "command"]

EXITS = {
    Exit.PROVED: "ALLOWED: the rulebook allows every line, and the journal has its end",
    Exit.REFUTED: "REFUTED: a line is not allowed, is not where it was written, or is missing",
    Exit.UNDETERMINED: "UNDETERMINED: more states are possible than the limit, or part of it was not written",
    Exit.USAGE: Exit.USAGE.about,
    Exit.NOT_WRITTEN: Exit.NOT_WRITTEN.about,
    Exit.NO_END: Exit.NO_END.about,
    Exit.NOT_A_JOURNAL: Exit.NOT_A_JOURNAL.about,
}
EPILOG = f"""\b
Examples:
  calexec run --faults 0.05 --journal run.jsonl      a journal of a whole run
  check-states replay run.jsonl                      was every step allowed, and every call of the ABI in its place?
  check-states replay incident-20260101T....json     the last steps before an incident
  check-states replay run.jsonl --pytest test_it.py  what was refused, as a test
  check-states replay damaged.jsonl --no-chain       fields may be missing: every state in which it may have been

\b
Exit codes:
{chr(10).join(f"  {e.value:<4} {about}" for e, about in EXITS.items())}
"""
PROGRESS_MIN = 2 << 20  # bytes


class NotDone(Exception):
    """An exit code and the line that says why."""

    def __init__(self, exit_: Exit, line: str) -> None:
        self.exit = exit_
        super().__init__(line)


@click.command(
    "replay", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--no-chain", is_flag=True, help="Do not judge the digests: fields were removed, or the file was edited.")
@click.option("--no-end", is_flag=True, help="It may end anywhere: its process was killed.")
@click.option("--limit-states", type=click.IntRange(1), default=LIMIT, show_default=True, metavar="N",
              help="Of possible states, where fields are missing.")  # fmt: skip
@click.option("--pytest", "test", type=click.Path(path_type=Path), metavar="FILE",
              help="Write a test that is refused in the same way.")  # fmt: skip
@click.option("--json", "json_file", is_flag=False, flag_value="-", metavar="[FILE]", help="Report as JSON [stdout].")
@click.option("--quiet", is_flag=True, help="No progress and no table, only the verdict.")
def command(
    path: Path, no_chain: bool, no_end: bool, limit_states: int, test: Path | None, json_file: str | None, quiet: bool
) -> Exit:  # fmt: skip
    """Hold a journal against the rulebook, and the calls of the ABI in it against the steps."""
    began_s = time.monotonic()
    try:
        size = path.stat().st_size if path.exists() else 0
        with _progress(size if not quiet and sys.stderr.isatty() else 0) as on_line:
            outcome = replay(path, limit_states, not no_chain, not no_end, on_line)
    except BadFile as error:
        raise NotDone(Exit.NOT_A_JOURNAL, str(error)) from None
    seconds = time.monotonic() - began_s
    said = text(outcome, seconds)
    if json_file != "-":
        click.echo(said[said.rindex("\n\n") + 2 :] if quiet else said)
    if json_file:
        _write(json_file, as_json(outcome, seconds), outcome)
    if test:
        _reproduce(test, outcome, path)
    return outcome.exit


def _reproduce(test: Path, outcome: Outcome, path: Path) -> None:
    if outcome.found is None:
        click.echo(f"{test} is not written: nothing was refused", err=True)
        return
    try:
        content = as_pytest(outcome.found, f"{path.name}, {outcome.why[0]}")
    except ValueError as error:
        click.echo(f"{test} is not written: {error}", err=True)
        return
    _write(str(test), content, outcome)


def _write(path: str, content: str, outcome: Outcome) -> None:
    if path == "-":
        click.echo(content, nl=False)
        return
    try:
        Path(path).write_text(content, encoding="utf-8")
    except OSError as error:
        worst = outcome.exit if outcome.exit is not Exit.PROVED else Exit.NOT_WRITTEN
        raise NotDone(worst, f"cannot write {path}: {error.strerror}") from None


@contextmanager
def _progress(size: int) -> Iterator[Callable[[Line, Judge], None]]:
    if size < PROGRESS_MIN:
        yield lambda line, judge: None
        return
    shown = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[steps]:,} steps"),
        TimeRemainingColumn(), console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with shown:
        task = shown.add_task("replaying", total=size, steps=0)

        def on_line(line: Line, judge: Judge) -> None:
            if line.number % 1000 == 0:
                shown.update(task, completed=line.bytes, steps=judge.steps)

        yield on_line
