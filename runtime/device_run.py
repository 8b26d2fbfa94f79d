"""`calexec run-device`: decodes prompts through binding, shim and device, and compares every token.

Theory. The straight code (runtime/straight.py) is driven greedily: prefill of the prompt, the first maximum of the
logits, decode of it, and so on. Two references say what must come out: the oracle, which computes the simulated model
from its definition, and the baseline, which drives a second device as the product did before. No token may differ, and
the simulator, which watches every access to memory in flight, must have seen no violation.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import click
import numpy as np
from attrs import asdict, field, frozen
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from runtime.calbin import sample
from runtime.calrt import Library, NativeMissing
from runtime.exits import Exit, Failure
from runtime.legacy import Legacy, LegacyFailed
from runtime.manifest import Manifest
from runtime.oracle import Oracle
from runtime.preflight import preflight
from runtime.prompts import PROMPTS, TOKENS_MAX, Prompt, PromptError, read_prompts
from runtime.simulator import NotSimulated, Simulator, SimulatorError
from runtime.straight import DeviceFailed, Refused, Straight

__all__ = ["Difference", "Report", "greedy", "run", "run_device"]

DEVICE, LEGACY_DEVICE = 0, 1
SEQUENCE = 0
REFERENCES = ("oracle", "legacy")
FAILURES: dict[type[Exception], Exit] = {
    NativeMissing: Exit.NO_LIBRARY,
    PromptError: Exit.USAGE,
    Refused: Exit.USAGE,
    DeviceFailed: Exit.DEVICE,
    LegacyFailed: Exit.DEVICE,
}

Reference = Callable[[Items[int], int], list[int]]


class LanguageModel(Protocol):
    """What Straight and Legacy have in common."""

    def prefill(self, sequence: int, tokens: Items[int]) -> NDArray[np.float32]: ...
    def decode(self, sequence: int, token: int) -> NDArray[np.float32]: ...
    def forget(self, sequence: int) -> None: ...


@frozen
class Difference:
    """A token that is not the reference's. line: the prompt's; index: of the answer's tokens, from 0."""

    reference: str
    line: int
    index: int
    token: int
    expected: int

    def __str__(self) -> str:
        return f"prompt {self.line}, token {self.index}: {self.token}, {self.reference} {self.expected}"


@frozen
class Report:
    """seconds: on our side alone, the references are not timed. violations: None where the device is not simulated."""

    model: str
    calrt_version: str
    simulated: bool
    prompts: int
    tokens: int
    seconds: float
    differences: Mapping[str, int]  # tokens that differ, by reference
    violations: int | None
    first: tuple[Difference, ...] = field(default=())  # the first difference of each prompt

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def good(self) -> bool:
        return not any(self.differences.values()) and not self.violations


def greedy(
    model: LanguageModel, prompt: Items[int], count: int, on_token: Callable[[], None] = lambda: None
) -> list[int]:
    """The `count` tokens (at least one) that greedy decoding appends to the prompt; ties go to the lowest id."""
    answer = [int(np.argmax(model.prefill(SEQUENCE, prompt)))]
    on_token()
    while len(answer) < count:
        answer.append(int(np.argmax(model.decode(SEQUENCE, answer[-1]))))
        on_token()
    model.forget(SEQUENCE)
    return answer


def run(
    model: LanguageModel,
    prompts: Items[Prompt],
    count: int,
    references: Mapping[str, Reference],
    on_token: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, float, list[Difference]]]:
    """For each prompt: (tokens, seconds on the device, every difference to a reference)."""
    for prompt in prompts:
        begin_ns = time.perf_counter_ns()
        answer = greedy(model, prompt.tokens, count, on_token)
        seconds = (time.perf_counter_ns() - begin_ns) / 1e9
        differences = [
            Difference(name, prompt.line, i, token, expected)
            for name, reference in references.items()
            for i, (token, expected) in enumerate(zip(answer, reference(prompt.tokens, count), strict=True))
            if token != expected
        ]
        yield len(answer), seconds, differences


# -- the command -------------------------------------------------------------------------------------------------------


def opened(model: str, device: int = DEVICE) -> tuple[Library, Manifest]:
    """The library and a manifest: that of a sample model, by its name, or the file with this path. Raises Failure."""
    try:
        path = sample(model).with_suffix(".json")
    except LookupError as error:
        path = Path(model)
        if not path.is_file():
            raise Failure(Exit.USAGE, [f"{error}; and {model!r} is no file"]) from None
    return preflight(path, None, device)


def manifest_of(model: str) -> Manifest:
    """The manifest alone, after the same questions. Raises Failure."""
    return opened(model)[1]


def simulators_of(library: Library) -> list[Simulator]:
    """The panels of our device and the baseline's; none when CalRT is not the simulator."""
    try:
        return [Simulator.beside(library, index) for index in (DEVICE, LEGACY_DEVICE)]
    except NotSimulated:
        return []


def failure_of(error: Exception) -> Failure:
    """How the command ends for one of FAILURES."""
    exit_ = next(code for kind, code in FAILURES.items() if isinstance(error, kind))
    return Failure(exit_, str(error).splitlines())


@contextmanager
def decode_latency(simulators: list[Simulator], us: int | None) -> Iterator[None]:
    """Sets the device's latency of a decode, and puts it back: the card outlives its handles."""
    if us is not None and not simulators:
        raise Failure(Exit.USAGE, ["--latency-decode-us is for the simulator, and this CalRT is not one"])
    before = [(s, s.get("decode_us")) for s in simulators] if us is not None else []
    try:
        try:
            for simulator, _ in before:
                simulator.set(decode_us=us or 0)
        except SimulatorError as error:
            raise Failure(Exit.USAGE, [f"--latency-decode-us: {error}"]) from None
        yield
    finally:
        for simulator, value in before:
            simulator.set(decode_us=value)


def report_of(
    library: Library,
    manifest: Manifest,
    prompts: Items[Prompt],
    count: int,
    compare: Items[str],
    progress: Progress | None,
) -> Report:
    """Opens the devices and runs all prompts. Raises one of FAILURES."""
    simulators = simulators_of(library)
    seen = sum(len(s.violations()) for s in simulators)
    with ExitStack() as stack:
        model = stack.enter_context(Straight(library, manifest, DEVICE))
        references: dict[str, Reference] = {}
        if "oracle" in compare:
            references["oracle"] = Oracle.of_calbin(manifest.calbin_path).tokens
        if "legacy" in compare:
            legacy = stack.enter_context(Legacy(library, manifest, LEGACY_DEVICE))
            references["legacy"] = lambda tokens, n: greedy(legacy, tokens, n)
        task = progress.add_task("decoding", total=len(prompts) * count) if progress else None
        on_token = (lambda: progress.advance(task)) if progress and task is not None else (lambda: None)
        results = list(run(model, prompts, count, references, on_token))
    found = [d for _, _, differences in results for d in differences]
    return Report(
        manifest.path.stem, manifest.calrt_version, bool(simulators), len(prompts),
        sum(tokens for tokens, _, _ in results), sum(seconds for _, seconds, _ in results),
        {name: sum(d.reference == name for d in found) for name in references},
        sum(len(s.violations()) for s in simulators) - seen if simulators else None,
        tuple(differences[0] for _, _, differences in results if differences),
    )  # fmt: skip


class Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f} tokens/s")


def table_of(report: Report) -> Table:
    """The result, short."""
    table = Table(show_header=False, box=None)
    bad = report.violations is not None and report.violations != 0
    rows: list[tuple[str, str, bool]] = [
        ("prompts", f"{report.prompts:,}", False),
        ("tokens", f"{report.tokens:,}", False),
        ("tokens/s", f"{report.tokens_per_s:,.0f}", False),
        *((f"differences to {name}", f"{n:,}", n != 0) for name, n in report.differences.items()),
        ("violations", "not known" if report.violations is None else f"{report.violations:,}", bad),
    ]
    for name, value, wrong in rows:
        table.add_row(name, f"[bold red]{value}[/]" if wrong else value)
    return table


def _references(context: click.Context, option: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(n.strip() for n in value.split(",") if n.strip()))
    if unknown := [n for n in names if n not in REFERENCES]:
        raise click.BadParameter(f"{unknown[0]!r} is no reference; there are {', '.join(REFERENCES)}")
    return names


@click.command("run-device")
@click.option(
    "--prompts", "path", type=click.Path(path_type=Path), default=PROMPTS, help="UTF-8 file, one prompt a line."
)
@click.option("--model", default="qwen3-tile16", show_default=True, metavar="NAME|MANIFEST", help="The model to run.")
@click.option(
    "--tokens", "count", type=click.IntRange(1), default=32, show_default=True, help="Tokens for each prompt."
)
@click.option("--limit", type=click.IntRange(1), help="Only so many prompts.")
@click.option(
    "--compare", default="oracle,legacy", show_default=True, callback=_references, help='References; "" for none.'
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
@click.option("--latency-decode-us", type=click.IntRange(0), help="What a decode takes on the simulated device.")
def run_device(
    path: Path,
    model: str,
    count: int,
    limit: int | None,
    compare: tuple[str, ...],
    as_json: bool,
    latency_decode_us: int | None,
) -> Exit:
    """Decode prompts on the device and compare every token.

    Ends with 0 only if no token differs and the simulator saw no violation.
    """
    shown = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    library, manifest = opened(model)
    room = min(s.max_seq for s in manifest.submodels) - (count - 1)
    if room < 1:
        raise click.UsageError(f"--tokens {count} leaves no room for a prompt: max_seq is {room + count - 1}")
    try:
        prompts = read_prompts(path, min(room, TOKENS_MAX))[:limit]
        with decode_latency(simulators_of(library), latency_decode_us), nullcontext() if as_json else shown:
            report = report_of(library, manifest, prompts, count, compare, None if as_json else shown)
    except tuple(FAILURES) as error:
        raise failure_of(error) from error
    if as_json:
        click.echo(json.dumps({**asdict(report), "tokens_per_s": report.tokens_per_s, "good": report.good}, indent=2))
    else:
        _tell(report)
    return Exit.OK if report.good else Exit.DIFFERENT


def _tell(report: Report) -> None:
    console = Console(highlight=False)
    device = "simulated device" if report.simulated else "device (not the simulator: violations are not known)"
    console.print(f"{report.model} on a {device}, CalRT {report.calrt_version}")
    console.print(table_of(report))
    for difference in report.first[:5]:
        console.print(f"[red]{difference}[/]")


if __name__ == "__main__":
    from runtime import cli

    sys.exit(int(cli.run(["run-device", *sys.argv[1:]])))
