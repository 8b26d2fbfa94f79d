"""`calexec vendor-probe`: runs every experiment and writes the evidence file (§14)."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
from attrs import asdict, frozen
from rich.console import Console
from rich.table import Table

from machines.protocol import params as p
from machines.protocol.params import FACTS
from runtime.calbin import sample
from runtime.calrt import Library
from runtime.exits import Exit, Failure
from runtime.manifest import load_manifest, verify_loaded
from runtime.preflight import preflight
from runtime.simulator import NotSimulated, Simulator, SimulatorError
from runtime.vendor_probe.experiments import EXPERIMENTS, OBSERVATIONS, Finding, process_exit_stops_dma
from runtime.vendor_probe.rig import DeviceTrouble, Rig

# Of a simulated device: short jobs, so that the kit is quick; longer ones for a process that leaves, which takes time.
NOT_FOR_THE_KIT = ("clock", "wait_blocks")
LONGER_LATENCY = {"prefill_us": 60_000, "d2h_us": 20_000}
SIMULATED_LATENCY = {"prefill_us": 2000, "decode_us": 1, "d2h_us": 2000}


@frozen
class Evidence:
    """What the kit found out about one device. facts: `holds` None is "not determined", the worst case."""

    calrt_version: str
    calbin_sha256: str
    device: int
    simulated: bool
    made_at: str
    facts: dict[str, Finding]
    observations: dict[str, str]

    def undetermined(self) -> list[str]:
        return [name for name, f in self.facts.items() if f.holds is None and not f.moot]


def probe(library: Library, manifest: Path, index: int, simulate: dict[str, int] | None,
          progress: Callable[[str], None] = lambda name: None) -> Evidence:  # fmt: skip
    """Run every experiment on device `index`. simulate: settings of the simulator, or None for a real device.

    Raises DeviceTrouble when the device is not even well at the start, ManifestError for a wrong manifest.
    """
    arguments = [str(library.path), str(manifest), str(index), json.dumps(simulate)]
    findings: dict[str, Finding] = {}
    observations: dict[str, str] = {}
    with rig_of(arguments) as rig:
        rig.learn()
        for name, experiment in EXPERIMENTS.items():
            progress(name)
            findings[name] = _asked(rig, experiment)
        for name, observe in OBSERVATIONS.items():
            progress(name)
            observations[name] = _observed(rig, observe)
    progress(p.EXIT_STOPS_DMA.name)
    if simulate is not None:
        arguments[-1] = json.dumps({**simulate, **LONGER_LATENCY})
    try:
        findings[p.EXIT_STOPS_DMA.name] = process_exit_stops_dma(rig, arguments)
    except DeviceTrouble as e:
        findings[p.EXIT_STOPS_DMA.name] = Finding(None, str(e))
    version = rig.model.calrt_version
    return Evidence(
        version, rig.model.calbin_sha256, index, simulate is not None, datetime.now(UTC).isoformat(timespec="seconds"),
        {f.name: findings[f.name] for f in FACTS}, observations,
    )  # fmt: skip


def rig_of(arguments: Sequence[str]) -> Rig:
    """The rig for (library, manifest, device, simulator settings as JSON): also what a child process calls."""
    library_path, manifest_path, index, simulate = arguments
    library = Library.load(library_path)
    if (settings := json.loads(simulate)) is not None:
        simulator = Simulator.beside(library, int(index))
        simulator.power_cycle()
        simulator.set(**settings)
    manifest = load_manifest(Path(manifest_path))
    code, calbin = library.calbin(manifest.calbin_path)
    if calbin is None:
        raise DeviceTrouble("load the calbin", code)
    with calbin:
        model = verify_loaded(manifest, calbin)
    return Rig(library, int(index), str(manifest.calbin_path), model)


def _asked(rig: Rig, experiment: Callable[[Rig], Finding]) -> Finding:
    """The finding, on a device that is well before and after."""
    if not rig.recover():
        return Finding(None, "the device did not become well again; switch it off and on")
    try:
        return experiment(rig)
    except DeviceTrouble as e:
        return Finding(None, str(e))


def _observed(rig: Rig, observe: Callable[[Rig], str]) -> str:
    if not rig.recover():
        return "the device did not become well again"
    try:
        return observe(rig)
    except DeviceTrouble as e:
        return str(e)
    finally:
        rig.device.enable_parallel_mode(False)


# -- the command -------------------------------------------------------------------------------------------------------
@click.command("vendor-probe", context_settings={"max_content_width": 120})
@click.option("--manifest", type=click.Path(path_type=Path), metavar="FILE", help="Manifest [the sample tiny].")
@click.option("--library", type=click.Path(path_type=Path), metavar="FILE", help="libcalrt_c.so [the built one].")
@click.option("--device", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, metavar="N", help="Device.")
@click.option("--simulate", "-s", multiple=True, metavar="KEY=VALUE", help="A setting of the simulator (repeat).")
@click.option("--out", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Write the evidence there (JSON).")
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON instead of a table.")
def vendor_probe(
    manifest: Path | None, library: Path | None, device: int, simulate: tuple[str, ...], out: Path | None, as_json: bool
) -> Exit:
    """Ask the device about every vendor fact (§14), one experiment each, through the C ABI.

    The experiments break the device on purpose: run nothing else on it. What gave no occasion to be seen is
    "not determined" and counts as the worst case; "moot" is what another fact makes impossible to happen. That a fact
    does not hold is an answer like any other: the exit code is 0.

    \b
    Examples:
      calexec vendor-probe --out evidence.json
      calexec vendor-probe -s reset_stops_dma=0 -s leftover_harmless=0
      calexec vendor-probe --library sdk/libcalrt_c.so --manifest model.json --device 1
    """
    settings = _settings(simulate)
    if out and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise Failure(Exit.NOT_WRITTEN, [f"--out {out}: it must be a file in a directory that there is"])
    loaded, read = preflight(manifest or sample("tiny").with_suffix(".json"), library, device)
    simulated = _is_simulated(loaded, device)
    if settings and not simulated:
        raise Failure(Exit.USAGE, ["--simulate needs the simulator; this library is another CalRT"])
    try:
        evidence = _with_progress(loaded, read.path, device, {**SIMULATED_LATENCY, **settings} if simulated else None)
    except SimulatorError as e:
        raise Failure(Exit.USAGE, [f"--simulate: {e}"]) from None
    except DeviceTrouble as e:
        raise Failure(Exit.DEVICE, str(e).splitlines()) from None
    text = json.dumps(asdict(evidence), indent=2, ensure_ascii=False)
    if out:
        _write(out, text + "\n")
    if as_json:
        click.echo(text)
    else:
        _print(evidence)
    return Exit.UNDETERMINED if evidence.undetermined() else Exit.OK


def _settings(simulate: Sequence[str]) -> dict[str, int]:
    settings = {}
    for item in simulate:
        key, _, value = item.partition("=")
        if key in NOT_FOR_THE_KIT:
            raise click.UsageError(f"--simulate {key}: the kit needs the clock that runs by itself")
        try:
            settings[key] = int(value)
        except ValueError:
            raise click.UsageError(f"--simulate {item}: expected KEY=VALUE with a whole number as VALUE") from None
    return settings


def _is_simulated(library: Library, device: int) -> bool:
    try:
        Simulator.beside(library, device)
    except NotSimulated:
        return False
    return True


def _with_progress(library: Library, manifest: Path, device: int, simulate: dict[str, int] | None) -> Evidence:
    """`probe` on a thread of its own: a call that does not return must not keep Ctrl-C from ending the command."""
    console = Console(stderr=True)
    outcome: list[Evidence | Exception] = []
    done = threading.Event()
    with console.status("starting") as status:
        names = itertools.count(1)

        def progress(name: str) -> None:
            status.update(f"experiment {next(names)} of {len(FACTS) + len(OBSERVATIONS)}: {name}")

        def work() -> None:
            try:
                outcome.append(probe(library, manifest, device, simulate, progress))
            except Exception as e:
                outcome.append(e)
            done.set()

        threading.Thread(target=work, name="vendor-probe", daemon=True).start()
        done.wait()
    (result,) = outcome
    if isinstance(result, Exception):
        raise result
    return result


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    try:
        temporary = path.with_name(path.name + ".part")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as e:
        raise Failure(Exit.NOT_WRITTEN, [f"--out {path}: {e.strerror}"]) from None


def _print(evidence: Evidence) -> None:
    where = "simulated device" if evidence.simulated else "device"
    table = Table(title=f"{where} {evidence.device}, CalRT {evidence.calrt_version}", title_justify="left")
    for heading in ("vendor fact", "holds", "evidence"):
        table.add_column(heading)
    words = {True: "yes", False: "NO", None: "not determined"}  # worst case
    for name, finding in evidence.facts.items():
        table.add_row(name, "moot" if finding.moot else words[finding.holds], finding.evidence)
    for name, text in evidence.observations.items():
        table.add_row(name, "observed", text)
    Console().print(table)
