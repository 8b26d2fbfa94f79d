"""`calexec supervise -- run ...`: a small parent that starts a command again where only a new process can go on.

Theory. When nobody may reset the device, the last means of recovery is that the process ends and a supervisor starts
another one (§9.1); with policy *exit* it is the only one. All that the parent knows is how the child ended; what was
finished is in the child's file (runtime/finished.py). It starts again after the ends in AGAIN, and after a child that
was killed; every other end is the command's own, and final. Starts are bounded, and the pause before the next one
doubles as long as children do not live long. Told to stop, the parent tells the child, waits, and kills it in the end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import click
from attrs import frozen

from runtime.exits import Exit, Failure, exit_of
from runtime.status import now_us
from runtime.stopping import stoppable

__all__ = ["AGAIN", "Pauses", "supervise_command"]

AGAIN = (Exit.FAILED, Exit.ABANDONED)
STEADY_S = 30.0  # a child that lived so long was well: the next pause is the first one again
STOP_S = 60.0  # for a child to close its executor
LONGEST_MS = 3_600_000
EPILOG = """\b
Examples:
  calexec supervise -- run --policy exit --faults 0.001 --resume done.jsonl
  calexec supervise --restarts 3 --backoff-ms 1000 -- run --policy exit --resume done.jsonl
"""


@frozen
class Pauses:
    """Before each start but the first, in seconds: doubled from one to the next, up to the longest."""

    first_s: float
    longest_s: float

    def after(self, pause_s: float | None, lived_s: float) -> float:
        """The next pause, after the last one (None: there was none) and a child that lived so long."""
        if pause_s is None or lived_s >= STEADY_S:
            return min(self.first_s, self.longest_s)
        return min(2 * pause_s, self.longest_s)


@click.command("supervise", epilog=EPILOG, context_settings={"ignore_unknown_options": True})
@click.option(
    "--restarts", type=click.IntRange(0, 1_000_000), default=100, show_default=True, help="At most so many, in all."
)
@click.option(
    "--backoff-ms", type=click.IntRange(0, LONGEST_MS), default=100, show_default=True, help="The first pause."
)
@click.option(
    "--backoff-ms-max", type=click.IntRange(0, LONGEST_MS), default=10_000, show_default=True, help="The longest one."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def supervise_command(restarts: int, backoff_ms: int, backoff_ms_max: int, command: tuple[str, ...]) -> Exit:
    """Run `calexec COMMAND`, and start it again where the device Failed.

    Ends as the last COMMAND did. SIGTERM and Ctrl-C stop it in an orderly way.
    """
    if not command:
        raise click.UsageError("what is to be run? Give a command after --")
    if command[0] == "run" and not any(word.partition("=")[0] == "--resume" for word in command):
        raise click.UsageError("run without --resume FILE would begin from the start each time")
    line = [sys.executable, "-m", "runtime", *command]
    with stoppable():
        return supervise(line, restarts, Pauses(backoff_ms / 1000, backoff_ms_max / 1000))


def supervise(line: Sequence[str], restarts: int, pauses: Pauses) -> Exit:
    """Raises Failure where restarts are used up."""
    pause_s = None
    for nth in range(restarts + 1):
        code, lived_s = _child(line)
        if code >= 0 and code not in AGAIN:
            return exit_of(code)
        why = exit_of(code).about if code >= 0 else f"it was killed by {signal.Signals(-code).name}"
        if nth < restarts:
            pause_s = pauses.after(pause_s, lived_s)
            click.echo(f"calexec: start {nth + 2} in {pause_s:g} s: {why}", err=True)
            threading.Event().wait(pause_s)
    raise Failure(Exit.FAILED, [f"{restarts} restarts were not enough: {why}"])


def _child(line: Sequence[str]) -> tuple[int, float]:
    """One child from its start to its end: its code, negative for a signal, and how long it lived.

    In a process group of its own: Ctrl-C at the terminal is for the parent, which passes it on, once."""
    began_us = now_us()
    child = subprocess.Popen(line, process_group=0)
    try:
        child.wait()
    except KeyboardInterrupt:
        _stop(child)
        if child.returncode != Exit.INTERRUPTED:  # else it has said so itself, and once is enough
            raise
    return child.returncode, (now_us() - began_us) / 1e6


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()
        child.wait()
