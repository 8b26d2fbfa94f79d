"""`calexec run`: decodes prompts for many clients through the executor, with faults and cancels on demand.

Theory. What the executor promises is held against something that does not depend on it: every token against the oracle,
every access to memory against the simulator, every failed job against the faults that were injected, its books against
those of the pool and of the KV, and what is left when it has closed against nothing. One of them wrong, and the command
is red. Its clients (runtime/clients.py) do what a server does when a sequence is lost; the faults (runtime/weather.py)
are the simulator's, by a seed.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click
from attrs import asdict, evolve, frozen
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from machines.protocol.actors import CLIENT
from machines.protocol.host import READY
from machines.protocol.params import FACTS
from machines.protocol.variables import drained, leftovers, line, waits
from machines.rulebook import Rule
from runtime.calls import ExecutorError
from runtime.calrt import Library, NativeMissing
from runtime.clients import KEPT, Clients, Ends, Order, Tally
from runtime.config import POLICIES, WAYS, Config
from runtime.device_run import DEVICE, Rate, opened
from runtime.engine import Waiter
from runtime.executor import DeviceExecutor
from runtime.exits import Exit, Failure
from runtime.manifest import Manifest, ManifestError
from runtime.oracle import Oracle
from runtime.prompts import PROMPTS, TOKENS_MAX, Prompt, PromptError, read_prompts
from runtime.simulator import NotSimulated, Simulator, Violation
from runtime.weather import Weather

__all__ = ["Report", "run_command"]

COMPLETED_MIN = 0.9  # of the requests that were not cancelled
LATENCY = click.IntRange(0, 1_000_000)
START_S, IDLE_S, CLOSE_S = 60.0, 20.0, 60.0
SHORT = {
    "jobs_max": 256, "recoveries_max": 1 << 16, "admission_ms": 10_000, "queue_ms": 10_000, "execution_ms": 500,
    "request_ms_max": 30_000, "grace_ms": 200, "close_ms": 5_000, "stuck_ms": 5_000, "reset_ms": 5_000,
    "configure_ms": 30_000, "golden_ms": 30_000, "backoff_ms": 5, "kv_retry_ms": 5,
}  # fmt: skip
"""For the simulated device, which takes no time but what it is told to."""
IDLE = Rule(
    "run.idle", CLIENT, READY.guard & drained & (waits == 0) & (line == 0) & (leftovers == 0),
    about="the device is Ready, and nothing is under way",
)  # fmt: skip


@frozen
class Report:
    """What came of it. requests: by how they ended; jobs: by status and cause; us: microseconds, None without a sample.

    ledger: what the executor's books say and what is, where they differ; None where the device Failed before they could
    be compared. closed: close() returned, and nothing was under way; given_back: nothing is in quarantine either, where
    faults leave memory that the device might still write. violations: None where the device is not simulated.
    """

    model: str
    prompts: int
    clients: int
    requests: Mapping[str, int]
    jobs: Mapping[str, int]
    tokens: int
    seconds: float
    ttft_p50_us: int | None
    ttft_p99_us: int | None
    tpot_p50_us: int | None
    tpot_p99_us: int | None
    faults: int
    resets: int
    drains: Mapping[str, int]
    generations: int
    tokens_in_last_generation: int
    differences: int
    violations: int | None
    unexplained: int
    unanswered: int
    leases_left: int
    ledger: tuple[str, ...] | None
    closed: bool
    given_back: bool
    device_failed: bool
    findings: tuple[str, ...]
    abandoned: bool = False  # closing did not end by itself (F49)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def wanted(self) -> int:
        """Requests that were not cancelled."""
        return self.prompts - self.requests.get(Ends.CANCELLED, 0)

    @property
    def exit(self) -> Exit:
        """The worst of what was found."""
        if self.differences or self.violations:
            return Exit.DIFFERENT
        if self.abandoned:
            return Exit.ABANDONED
        if self.unexplained or self.unanswered or self.leases_left or self.ledger:
            return Exit.UNEXPLAINED
        if self.device_failed:
            return Exit.FAILED
        enough = self.requests.get(Ends.COMPLETED, 0) >= (COMPLETED_MIN if self.faults else 1) * self.wanted
        return Exit.OK if enough and self.closed and (self.given_back or self.faults) else Exit.UNEXPLAINED


def percentile(values: list[int], percent: int) -> int | None:
    """The nearest rank."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)] if values else None


# -- running -----------------------------------------------------------------------------------------------------------
def config_of(manifest: Manifest, device: int, clients: int, policy: str, simulated: bool, latency_us: int) -> Config:
    """Raises Failure when the policy is not proved under the facts: of the simulator all hold."""
    facts = {fact.name: True for fact in FACTS} if simulated else {}
    patience: dict[str, Any] = dict(SHORT) if simulated else {}
    for name, jobs in (("execution_ms", 4), ("admission_ms", clients), ("queue_ms", 4), ("request_ms_max", 4)):
        if simulated:
            patience[name] += jobs * latency_us // 1000
    config = Config(
        manifest=str(manifest.path),
        device=device,
        policy=policy,
        facts=facts,
        sequences_max=2 * clients + 4,
        **patience,
    )
    if lines := config.unproved():
        raise Failure(Exit.USAGE, lines)
    return config


def stands_on(policy: str) -> frozenset[str]:
    """The facts that every proof of the policy needs (machines/protocol/runs.py)."""
    return frozenset.intersection(*(frozenset(way.facts) for way in WAYS if way.policy == policy))


@contextmanager
def settings(simulator: Simulator | None, wanted: Mapping[str, int | None]) -> Iterator[None]:
    """Sets keys of the device, and puts them back: the card outlives its handles."""
    given = {key: value for key, value in wanted.items() if value is not None}
    if given and simulator is None:
        raise Failure(Exit.USAGE, ["latencies are for the simulator, and this CalRT is not one"])
    before = {key: simulator.get(key) for key in given} if simulator else {}
    try:
        if simulator:
            simulator.set(**given)
        yield
    finally:
        if simulator:
            simulator.set(**before)


def books(executor: DeviceExecutor) -> tuple[str, ...]:
    """Where the rulebook's counters are not what pool and KV say. One slot more is there, for golden runs."""
    pool, kv = executor.calls.pool, executor.calls.kv
    if pool is None or kv is None:
        return ()
    found = {**pool.abstract(), **kv.abstract()}
    written = executor.engine.read(lambda s: {name: int(getattr(s, name)) for name in found})
    written["free"] += 1
    return tuple(f"{n}: the books say {written[n]}, there are {found[n]}" for n in found if written[n] != found[n])


def idle(executor: DeviceExecutor) -> bool:
    """Wait until nothing is under way."""
    waiter = Waiter()
    if executor.engine.take((executor.program.compiled(IDLE),), None, waiter):
        return True
    if not waiter.token.acquire(timeout=IDLE_S):
        executor.engine.send_away(waiter)
        waiter.token.acquire()
    return waiter.result is not None


def close(executor: DeviceExecutor) -> tuple[bool, bool]:
    """Whether close() returned with nothing under way, and whether everything was given back. Ctrl-C on the way ends it
    the hard way (F48)."""
    said: list[bool] = []
    thread = threading.Thread(target=lambda: said.append(executor.close()), name="close", daemon=True)
    thread.start()
    try:
        thread.join(CLOSE_S)
    except KeyboardInterrupt:
        executor.abandon()
        raise
    left = int(executor.engine.read(lambda s: s.work + s.waits + s.leftovers))
    return bool(said) and not left, said == [True]


def run(
    config: Config, simulator: Simulator | None, prompts: tuple[Prompt, ...], order: Order, clients: int,
    weather: Weather, progress: Progress | None,
) -> Report:  # fmt: skip
    """Raises Failure when the executor does not start."""
    seen = len(simulator.violations()) if simulator else 0
    weather.before_start()
    faults_before = weather.fired()
    try:
        executor = DeviceExecutor(config)
    except NativeMissing as error:
        raise Failure(Exit.NO_LIBRARY, [str(error)]) from error
    except ManifestError as error:
        raise Failure(Exit.MODELS, error.lines) from error
    except ExecutorError as error:
        raise Failure(Exit.DEVICE, [str(error)]) from error
    weather.follow(executor)
    oracle = Oracle.of_calbin(executor.calls.manifest.calbin_path)
    expected = {p.line: oracle.tokens(p.tokens, order.count) for p in prompts}
    task = progress.add_task("decoding", total=len(prompts) * order.count) if progress else None
    on_token = (lambda: progress.advance(task)) if progress and task is not None else (lambda: None)
    answer_s = (config.admission_ms + config.queue_ms + config.request_ms_max + config.grace_ms) / 1000
    at_work = Clients(executor, prompts, order, expected, weather, answer_s, on_token)
    ledger: tuple[str, ...] | None = None
    try:
        executor.wait_ready(START_S)
        began_us = executor.engine.now_us()
        at_work.serve(clients)
        seconds = (executor.engine.now_us() - began_us) / 1e6
        weather.end()
        failed = at_work.device_failed()
        if not failed:
            ledger = books(executor) if idle(executor) else ("jobs are under way that never end",)
            failed = at_work.device_failed()
            ledger = None if failed else ledger
        leased = executor.calls.pool.counts().leased if executor.calls.pool and not failed else 0
    finally:
        weather.end()
        closed = close(executor)
    report = _report(
        config,
        at_work.tally,
        prompts,
        clients,
        seconds,
        weather,
        weather.fired() - faults_before,
        executor,
        ledger,
        leased,
        closed,
        failed,
        simulator.violations()[seen:] if simulator else None,
    )
    return evolve(report, abandoned=executor.abandoned)


def _report(
    config: Config, tally: Tally, prompts: tuple[Prompt, ...], clients: int, seconds: float, weather: Weather,
    faults: int, executor: DeviceExecutor, ledger: tuple[str, ...] | None, leased: int, closed: tuple[bool, bool],
    failed: bool, violations: tuple[Violation, ...] | None,
) -> Report:  # fmt: skip
    findings = [*tally.findings, *(f"ledger: {text}" for text in ledger or ())]
    findings += [f"violation: {v.kind}: {v.text}" for v in (violations or ())[:KEPT]]
    if not closed[0]:
        findings.append(f"close: it has not ended after {CLOSE_S:g} s, or jobs are under way")
    last = executor.calls.generation_id
    jobs = {", ".join(p for p in key if p): n for key, n in sorted(tally.jobs.items(), key=lambda item: -item[1])}
    return Report(
        Path(config.manifest).stem, len(prompts), clients, dict(tally.requests), jobs, tally.tokens, seconds,
        percentile(tally.ttft_us, 50), percentile(tally.ttft_us, 99), percentile(tally.tpot_us, 50),
        percentile(tally.tpot_us, 99), faults, weather.resets, dict(weather.causes.most_common()), last,
        tally.good_by_generation[last], tally.differences, None if violations is None else len(violations),
        tally.unexplained, tally.unanswered, leased,
        ledger, *closed, failed, tuple(findings),
    )  # fmt: skip


# -- the command -------------------------------------------------------------------------------------------------------
@click.command("run")
@click.option(
    "--prompts", "path", type=click.Path(path_type=Path), default=PROMPTS, help="UTF-8 file, one prompt a line."
)
@click.option("--model", default="qwen3-tile16", show_default=True, metavar="NAME|MANIFEST", help="The model to run.")
@click.option("--tokens", "count", type=click.IntRange(1), default=64, show_default=True, help="For each prompt.")
@click.option("--limit", type=click.IntRange(1), help="Only so many prompts.")
@click.option("--clients", type=click.IntRange(1, 64), default=4, show_default=True, help="Threads that want tokens.")
@click.option(
    "--faults", type=click.FloatRange(0, 1), default=0.0, show_default=True, metavar="RATE",
    help="Chance of a fault at each infer, Wait, Apply and canAllocate while the device serves.",
)  # fmt: skip
@click.option("--faults-everywhere", is_flag=True, help="Also at start-up and in recoveries, also fatal ones.")
@click.option(
    "--cancel", type=click.FloatRange(0, 1), default=0.0, show_default=True, metavar="RATE",
    help="Share of the requests that are cancelled, at a random token and moment.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True, help="Of faults and cancels.")
@click.option(
    "--policy", type=click.Choice(list(POLICIES)), default="rebuild", show_default=True, help="See docs/config.md."
)
@click.option("--device", type=click.IntRange(0, 2**32 - 1), default=DEVICE, show_default=True, metavar="N")
@click.option("--latency-decode-us", type=LATENCY, help="What a decode takes on the simulated device.")
@click.option("--latency-prefill-us", type=LATENCY, help="What a prefill takes there.")
@click.option("--log", type=click.Path(path_type=Path), metavar="FILE", help="Write the executor's log there.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def run_command(
    path: Path, model: str, count: int, limit: int | None, clients: int, faults: float, faults_everywhere: bool,
    cancel: float, seed: int, policy: str, device: int, latency_decode_us: int | None, latency_prefill_us: int | None,
    log: Path | None, as_json: bool,
) -> Exit:  # fmt: skip
    """Decode prompts for several clients through the executor; compare every token.

    Ends with 0 only if no token differs, the simulator saw no violation, every failed job has a cause, everything was
    given back, and of the requests that were not cancelled all completed (90 % where there are faults).
    """
    library, manifest = opened(model, device)
    room = min(s.max_seq for s in manifest.submodels) - (count - 1)
    if room < 1:
        raise click.UsageError(f"--tokens {count} leaves no room for a prompt: max_seq is {room + count - 1}")
    try:
        prompts = read_prompts(path, min(room, TOKENS_MAX))[:limit]
        simulator = simulator_of(library, device)
    except PromptError as error:
        raise Failure(Exit.USAGE, str(error).splitlines()) from None
    if faults and simulator is None:
        raise Failure(Exit.USAGE, ["--faults is for the simulator, and this CalRT is not one"])
    latency_us = max(latency_decode_us or 0, latency_prefill_us or 0)
    config = config_of(manifest, device, clients, policy, simulator is not None, latency_us)
    weather = Weather(simulator, seed, faults, faults_everywhere, stands_on(policy))
    order = Order(count, cancel, seed)
    shown = None if as_json else Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    latencies = {"decode_us": latency_decode_us, "prefill_us": latency_prefill_us}
    with settings(simulator, latencies), logged(log), shown or nullcontext():
        report = run(config, simulator, prompts, order, clients, weather, shown)
    if as_json:
        click.echo(
            json.dumps({**asdict(report), "tokens_per_s": report.tokens_per_s, "exit": report.exit.name}, indent=2)
        )
    else:
        _tell(report)
    return report.exit


def simulator_of(library: Library, device: int) -> Simulator | None:
    """None: CalRT is not the simulator."""
    try:
        return Simulator.beside(library, device)
    except NotSimulated:
        return None


@contextmanager
def logged(path: Path | None) -> Iterator[None]:
    """The executor's log goes to a file, or nowhere: what it says of failed jobs is counted here."""
    logger = logging.getLogger("calexec")
    try:
        handler = logging.FileHandler(path, "w", encoding="utf-8") if path else logging.NullHandler()
    except OSError as error:
        raise Failure(Exit.NOT_WRITTEN, [f"cannot write {path}: {error.strerror}"]) from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(threadName)s: %(message)s"))
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = before
        logger.removeHandler(handler)
        handler.close()


def _tell(report: Report) -> None:
    console = Console(highlight=False, markup=False)
    known = "on a device whose accesses are not watched" if report.violations is None else "on a simulated device"
    console.print(f"{report.model} {known}, {report.clients} clients")
    rows = list(_rows(report))
    width = max(len(name) for name, _, _ in rows) + 2
    for name, value, wrong in rows:
        console.print(f"{name:<{width}}{value}", style="bold red" if wrong else None, soft_wrap=True)
    for finding in report.findings:
        console.print(finding, style="red", soft_wrap=True)


def _rows(r: Report) -> Iterator[tuple[str, str, bool]]:
    def ms(us: int | None) -> str:
        return "-" if us is None else f"{us / 1000:,.2f}"

    yield "requests", f"{r.prompts:,}", False
    for end, n in r.requests.items():
        yield f"  {end}", f"{n:,}", end not in (Ends.COMPLETED, Ends.CANCELLED)
    yield "jobs", f"{sum(r.jobs.values()):,}", False
    for what, n in r.jobs.items():
        yield f"  {what}", f"{n:,}", False
    yield "tokens", f"{r.tokens:,}, {r.tokens_per_s:,.0f}/s", False
    yield "first token", f"p50 {ms(r.ttft_p50_us)} ms, p99 {ms(r.ttft_p99_us)} ms", False
    yield "each further token", f"p50 {ms(r.tpot_p50_us)} ms, p99 {ms(r.tpot_p99_us)} ms", False
    yield "faults injected", f"{r.faults:,}", False
    yield "resets", f"{r.resets:,}", False
    for rule, n in r.drains.items():
        yield f"  {rule}", f"{n:,}", False
    yield "generations", f"{r.generations:,}, {r.tokens_in_last_generation:,} tokens in the last", False
    yield "differences to the oracle", f"{r.differences:,}", r.differences != 0
    yield "violations", "not known" if r.violations is None else f"{r.violations:,}", bool(r.violations)
    yield "failures unexplained", f"{r.unexplained:,}", r.unexplained != 0
    yield "handles unanswered", f"{r.unanswered:,}", r.unanswered != 0
    yield "leases left", f"{r.leases_left:,}", r.leases_left != 0
    balanced = "not compared" if r.ledger is None else "differs" if r.ledger else "balanced"
    yield "ledger", balanced, bool(r.ledger)
    kept = "yes" if r.given_back else "yes; what the device might still write is kept in quarantine"
    yield "closed", kept if r.closed else "no", not r.closed
    if r.device_failed:
        yield "device", "Failed: nothing more can be served by this process", True
