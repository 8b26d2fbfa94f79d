"""The command `python -m diagrams`: draws the committed pictures, checks them, or draws one counterexample."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from checker.campaign import SelectionError
from checker.cli import DEFAULT_TARGET, Failure, load
from checker.engines import ENGINES, EngineError
from checker.exits import Exit
from checker.result import Limits
from diagrams import gallery
from diagrams.counterexample import NothingFound, counterexample_picture, refute
from diagrams.dot import to_dot
from diagrams.render import RenderError, to_svg

NOT_DONE = 1  # exit code: --check found a picture that is not current, or there is no counterexample to draw


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--check", is_flag=True, help="Draw nothing; name what is stale, missing or surplus, and exit 1.")
@click.pass_context
def command(context: click.Context, check: bool) -> int:
    """Draw every committed picture that is not current into diagrams/rendered."""
    if context.invoked_subcommand is not None:
        if check:
            raise click.UsageError("--check is about the committed pictures and takes no command")
        return 0
    pictures = gallery.drawings(gallery.EXHIBITS)
    found = (gallery.problems if check else gallery.write)(pictures, gallery.RENDERED)
    for line in found:
        click.echo(line)
    if check and found:
        click.echo(f"diagrams: {len(found)} not current; run `python -m diagrams`", err=True)
        return NOT_DONE
    click.echo(f"{len(pictures)} pictures, {'all current' if not found else f'{len(found)} changed'}")
    return 0


@command.command()
@click.argument("target", default=DEFAULT_TARGET, metavar="[MODULE:RULEBOOK]")
@click.option("--run", required=True, metavar="NAME", help="A declared run of the rulebook.")
@click.option("--property", "prop", default="", metavar="ID", help="Which property [the one the run declares].")
@click.option("-o", "--output", required=True, metavar="FILE", help="Ends in .svg, or in .dot for the text.")
@click.option("--engine", type=click.Choice(ENGINES), default="auto", show_default=True)
@click.option("--limit-seconds", type=click.FloatRange(0, min_open=True), metavar="S", help="Bound of the run.")
def counterexample(target: str, run: str, prop: str, output: str, engine: str, limit_seconds: float | None) -> int:
    """Draw the counterexample that a run finds as a sequence diagram."""
    file = Path(output)
    if file.suffix not in (".svg", ".dot"):
        raise click.UsageError(f"-o {output}: the file must end in .svg or .dot")
    found = refute(load(target), run, prop, engine=engine, limits=Limits(seconds=limit_seconds))
    dot = to_dot(counterexample_picture(found))
    file.write_text(dot if file.suffix == ".dot" else to_svg(dot, pinned=True), encoding="utf-8")
    click.echo(f"{output}: counterexample to {found.finding.prop}, {found.finding.length} steps")
    return 0


def run(args: Sequence[str] | None = None) -> int:
    """The command with every failure turned into its exit code and its lines on stderr."""
    try:
        return int(command.main(args, prog_name="python -m diagrams", standalone_mode=False) or 0)
    except Failure as e:
        return _fail(e.exit, *e.lines)
    except click.UsageError as e:
        return _fail(Exit.USAGE, e.format_message())
    except SelectionError as e:
        return _fail(Exit.USAGE, str(e))
    except NothingFound as e:
        return _fail(NOT_DONE, str(e))
    except EngineError as e:
        return _fail(Exit.NO_ENGINE, str(e))
    except RenderError as e:
        return _fail(Exit.NOT_WRITTEN, str(e))
    except OSError as e:
        return _fail(Exit.NOT_WRITTEN, f"cannot write {e.filename}: {e.strerror}")
    except (click.Abort, KeyboardInterrupt):
        return _fail(Exit.INTERRUPTED, "interrupted")


def _fail(code: int, *lines: str) -> int:
    for line in lines:
        click.echo(f"diagrams: {line}", err=True)
    return int(code)


if __name__ == "__main__":
    sys.exit(run())
