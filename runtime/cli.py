"""The command `calexec`: a group to which each part adds its own command.

Whatever is wrong with the input ends in one clear line for each finding and an exit code of its own (runtime/exits.py),
never in a traceback.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runtime import doctor, exits
from runtime.bench import bench
from runtime.calbin import sample
from runtime.calrt import Library, ModelInfo
from runtime.device_run import run_device
from runtime.draft import Roles, draft
from runtime.exits import Exit, Failure
from runtime.manifest import CalTaskKind, ManifestError, refused_names
from runtime.names import listed, plain, shown
from runtime.run_command import run_command
from runtime.soak_command import soak_command
from runtime.storm_command import storm_command
from runtime.strict_json import dumps
from runtime.supervise import supervise_command
from runtime.vendor_probe.command import vendor_probe

EPILOG = f"""\b
Examples:
  calexec doctor                                     the library, the shipped sample and device 0
  calexec doctor --manifest my.json --json           your manifest, as JSON
  calexec models my.calbin                           what a calbin says of its submodels
  calexec models my.calbin --kind big_prefill=PrefillIds --kind big_decode=Decode --position position_ids
          --csr cur_seq,total_seq --manifest-out my.json
                                                     a manifest for it
  calexec run --faults 0.05 --cancel 0.1 --seed 7    decode prompts through the executor, and let things go wrong
  calexec storm --seeds 1-10                         a thousand random events for each seed
  calexec soak --jobs 100000 --faults 0.01           very many jobs, with faults and then without: nothing may grow

\b
Exit codes:
{exits.table()}
"""
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
LIBRARY = click.option(
    "--library",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="libcalrt_c.so [CALRT_LIBRARY, or the built one].",
)


@click.group(epilog=EPILOG, context_settings=SETTINGS)
@click.version_option(package_name="calexec")
def group() -> None:
    """Examine and drive a Calculet NPU through CalRT."""


@click.command("doctor", context_settings=SETTINGS)
@click.option("--manifest", type=click.Path(path_type=Path), metavar="FILE", help="Manifest [the sample qwen3-tile16].")
@LIBRARY
@click.option("--device", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, metavar="N", help="Device.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def doctor_command(manifest: Path | None, library: Path | None, device: int, as_json: bool) -> Exit:
    """Check library, manifest, calbin and device, in the order of start-up. Nothing is configured."""
    checks = doctor.examine(manifest or sample("qwen3-tile16").with_suffix(".json"), library, device)
    if as_json:
        click.echo(doctor.as_json(checks), nl=False)
    else:
        print_table(doctor.as_table(checks))
    if lines := [line for c in checks for line in c.findings]:
        raise Failure(doctor.exit_of(checks), lines)
    return Exit.OK


@click.command("models", context_settings=SETTINGS)
@click.argument("calbin", type=click.Path(path_type=Path), metavar="CALBIN")
@LIBRARY
@click.option("--kind", "kinds", multiple=True, metavar="NAME=KIND", help="What a submodel is for; one for each.")
@click.option("--position", metavar="TENSOR", help="The input that carries the positions.")
@click.option("--csr", metavar="CUR,TOTAL", help="The CSRs of this call's tokens and of the length after it.")
@click.option(
    "--manifest-out", type=click.Path(path_type=Path), metavar="FILE", help="Write a manifest, beside CALBIN."
)
def models_command(
    calbin: Path,
    library: Path | None,
    kinds: tuple[str, ...],
    position: str | None,
    csr: str | None,
    manifest_out: Path | None,
) -> Exit:
    """Print what a calbin says of its submodels, or write a manifest for it.

    The metadata does not say what a submodel is for, which input carries the positions, or which CSR is which: a
    manifest needs --kind for each submodel, --position and --csr.
    """
    roles = _roles(calbin, kinds, position, csr, manifest_out)
    loaded = doctor.load_library(library)
    if isinstance(loaded, str):
        raise Failure(Exit.NO_LIBRARY, [loaded])
    models = doctor.load_models(loaded, calbin)
    if isinstance(models, str):
        raise Failure(Exit.CALBIN, [models])
    if roles is None or manifest_out is None:
        for m in models:
            click.secho(_contract_heading(m), bold=True)
            print_table(_contract_table(m))
        if lines := [f"{calbin}: {line}" for line in refused_names(models)]:
            raise Failure(Exit.MODELS, lines)
        return Exit.OK
    _write_manifest(loaded, calbin, models, roles, manifest_out)
    click.echo(f"wrote {manifest_out}: {len(models)} submodels of {calbin.name}")
    return Exit.OK


# One line for each command, whoever makes it.
group.add_command(doctor_command)
group.add_command(models_command)
group.add_command(run_device)
group.add_command(run_command)
group.add_command(storm_command)
group.add_command(soak_command)
group.add_command(supervise_command)
group.add_command(bench)
group.add_command(vendor_probe)


# -- models ----------------------------------------------------------------------------------------------------------
def _roles(calbin: Path, kinds: Sequence[str], position: str | None, csr: str | None, out: Path | None) -> Roles | None:
    if out is None:
        if kinds or position or csr:
            raise click.UsageError("--kind, --position and --csr are for a manifest: give --manifest-out FILE too")
        return None
    if not kinds or not position or not csr:
        raise click.UsageError("--manifest-out needs --kind NAME=KIND for each submodel, --position and --csr")
    if out.absolute().parent.resolve() != calbin.absolute().parent.resolve():
        raise click.UsageError(
            f"--manifest-out {out} is in another directory than {calbin}; a manifest lies beside its calbin"
        )
    cur, comma, total = csr.partition(",")
    if not comma or not cur or not total:
        raise click.UsageError(f"--csr {csr!r} is not CUR,TOTAL")
    if cur == total:
        raise click.UsageError(f"--csr {csr!r} names one CSR twice; expected two")
    return Roles(_kinds(kinds), position, cur, total)


def _kinds(texts: Sequence[str]) -> dict[str, CalTaskKind]:
    """By the submodel's name, which may be given once: of two kinds none is to be preferred."""
    kinds: dict[str, CalTaskKind] = {}
    for name, kind in map(_kind, texts):
        if name in kinds:
            raise click.UsageError(f"--kind is given twice for {name!r}; expected one for each submodel")
        kinds[name] = kind
    return kinds


def _kind(text: str) -> tuple[str, CalTaskKind]:
    name, equals, kind = text.rpartition("=")
    names = [k.name for k in CalTaskKind]
    if not equals or not name or kind not in names:
        raise click.UsageError(f"--kind {text!r} is not NAME=KIND; kinds are {', '.join(names)}")
    return name, CalTaskKind[kind]


def _write_manifest(library: Library, calbin: Path, models: Sequence[ModelInfo], roles: Roles, out: Path) -> None:
    code, version = library.version()
    if code:
        raise Failure(Exit.NO_LIBRARY, [doctor.refusal(library, "the library's version", code)])
    try:
        text = dumps(draft(calbin, models, version, roles))
    except ManifestError as e:
        raise Failure(Exit.MODELS, e.lines) from None
    try:
        with out.open("x", encoding="utf-8") as f:
            f.write(text)
    except (OSError, ValueError) as e:
        reason = (e.strerror if isinstance(e, OSError) else None) or str(e)
        raise Failure(Exit.NOT_WRITTEN, [f"cannot write {out}: {reason}"]) from None


def _contract_heading(model: ModelInfo) -> str:
    sizes = f"max_batch {model.max_batch}, max_seq {model.max_seq}, logits_tile_d0 {model.logits_tile_d0}"
    return f"{shown(model.name)}: {sizes}, CSRs {listed(model.csr_names)}"


def _contract_table(model: ModelInfo) -> Table:
    table = Table(box=None)
    for column, justify in (("tensor", "left"), ("", "left"), ("dtype", "left"), ("shape", "left"), ("bytes", "right")):
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for t in model.tensors:
        direction = ("output" if t.is_output else "input") + (", sliceable" if t.sliceable else "")
        dtype = getattr(t.dtype, "name", str(t.dtype))
        table.add_row(Text(shown(t.name)), direction, dtype, Text(str(list(t.shape))), str(t.byte_size))
    return table


# -- the whole command -----------------------------------------------------------------------------------------------
def print_table(table: Table) -> None:
    """On stdout, as it is now (tests replace it)."""
    Console(file=sys.stdout, highlight=False, markup=False, emoji=False).print(table)


def run(args: Sequence[str] | None = None) -> Exit:
    """The command with every failure turned into its exit code and its lines on stderr."""
    try:
        _prepare_streams()
        done = group.main(args, prog_name="calexec", standalone_mode=False)
        sys.stdout.flush()  # what cannot be written must be known before the exit code is
        return done if isinstance(done, Exit) else Exit.OK  # --help and --version end with 0
    except Failure as e:
        return _fail(e.exit, *e.lines)
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.format_message(), err=True)
        return Exit.USAGE
    except click.UsageError as e:
        return _fail(Exit.USAGE, f"{e.format_message()} (see {e.ctx.command_path if e.ctx else 'calexec'} --help)")
    except (BrokenPipeError, SystemExit):  # SystemExit: how click ends when nobody reads what it prints
        _discard_output()
        return Exit.NOT_WRITTEN
    except OSError as e:
        _discard_output()
        return _fail(Exit.NOT_WRITTEN, f"cannot write: {e}")
    except (click.Abort, KeyboardInterrupt):
        return _fail(Exit.INTERRUPTED, "interrupted")


def main() -> None:
    """The console script."""
    sys.exit(int(run()))


def _prepare_streams() -> None:
    """A stream that was closed before we began is None. A letter that the terminal does not have is shown as `?`."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (it is open as long as we live)
    if sys.stdout is None:
        raise Failure(Exit.NOT_WRITTEN, ["cannot write: stdout is closed"])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """What stdout still holds must not fail once more at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


def _fail(exit_: Exit, *lines: str) -> Exit:
    with suppress(OSError):  # there is nowhere left to say it
        for line in lines:
            click.echo(f"calexec: {plain(line)}", err=True)
    return exit_


if __name__ == "__main__":
    main()
