"""How `calexec run` tells what came of it: a table of one run, and a row for each of many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from attrs import define, field
from rich.console import Console

from runtime.clients import Clients
from runtime.executor import DeviceExecutor
from runtime.report import Report
from runtime.seeds import Column
from runtime.tally import Ends
from runtime.weather import Weather

__all__ = ["COLUMNS", "SoFar", "count_of", "interruptible", "rows_of", "tell", "wrong"]


def tell(report: Report) -> None:
    console = Console(highlight=False, markup=False)
    known = "on a device whose accesses are not watched" if report.violations is None else "on a simulated device"
    console.print(f"{report.model} {known}, {report.clients} clients")
    rows = list(rows_of(report))
    width = max(len(name) for name, _, _ in rows) + 2
    for name, value, wrong in rows:
        console.print(f"{name:<{width}}{value}", style="bold red" if wrong else None, soft_wrap=True)
    for finding in report.findings:
        console.print(finding, style="red", soft_wrap=True)


def rows_of(r: Report) -> Iterator[tuple[str, str, bool]]:
    """What it is, its value, and whether that is wrong."""

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
    last = f"{r.tokens_in_last_generation:,} tokens in the last"
    yield "generations", f"{r.generations:,}, {last}", r.too_few_generations
    yield "differences to the oracle", f"{r.differences:,}", r.differences != 0
    yield "violations", "not known" if r.violations is None else f"{r.violations:,}", bool(r.violations)
    yield "failures unexplained", f"{r.unexplained:,}", r.unexplained != 0
    yield "handles unanswered", f"{r.unanswered:,}", r.unanswered != 0
    yield "handles with two answers", f"{r.changed_answers:,}", r.changed_answers != 0
    yield "steps", f"{r.steps:,}, {'not ' if r.wrong_steps else ''}as the rulebook allows", r.wrong_steps != 0
    if r.served_after is not None:
        yield "served after the faults", "yes" if r.served_after else "no", not r.served_after
    yield "leases left", f"{r.leases_left:,}", r.leases_left != 0
    balanced = "not compared" if r.ledger is None else "differs" if r.ledger else "balanced"
    yield "ledger", balanced, bool(r.ledger)
    still = f"what the device might still write is kept in quarantine, {r.quarantined_bytes / (1 << 20):,.0f} MiB"
    kept = "yes" if r.given_back else f"yes; {still}"
    yield "closed", kept if r.closed else "no", not r.closed
    if r.device_failed:
        yield "device", "Failed: nothing more can be served by this process", True


# -- a row for each seed -----------------------------------------------------------------------------------------------
def _share(r: Mapping[str, Any]) -> str:
    wanted = r["prompts"] - r["requests"].get(Ends.CANCELLED, 0)
    return f"{100 * r['requests'].get(Ends.COMPLETED, 0) / wanted:.0f} %" if wanted else "-"


def count_of(key: str) -> Column:
    return Column(key.replace("_", " "), lambda r: "-" if r[key] is None else f"{r[key]:,}")


def wrong(r: Mapping[str, Any]) -> str:
    """What of a report is red, in a few words."""
    counts = [("leases_left", "leases left"), ("wrong_steps", "wrong steps")]
    counts += [(key, key.replace("_", " ")) for key in ("differences", "violations", "unexplained", "unanswered")]
    found = [f"{r[key]:,} {name}" for key, name in counts if r[key]]
    return ", ".join(found + ["ledger differs"] * bool(r["ledger"])) or "nothing"


COLUMNS = (
    Column("completed", _share),
    Column("cancelled", lambda r: str(r["requests"].get(Ends.CANCELLED, 0))),
    Column("failed jobs", lambda r: f"{sum(n for what, n in r['jobs'].items() if what != 'OK'):,}"),
    *map(count_of, ("faults", "resets")),
    Column("steps", lambda r: f"{r['steps']:,}"),
    Column("s", lambda r: f"{r['seconds']:.0f}"),
    Column("wrong", wrong),
)


# -- interrupted -------------------------------------------------------------------------------------------------------
@define(eq=False)
class SoFar:
    """What is told of a run that somebody interrupts: of the clients, what had ended. `before` is for Asked.before."""

    weather: Weather | None = None
    then: Callable[[DeviceExecutor, Clients], None] = lambda executor, clients: None
    clients: Clients | None = field(default=None, init=False)

    def before(self, executor: DeviceExecutor, clients: Clients) -> None:
        self.clients = clients
        self.then(executor, clients)

    def rows(self) -> Iterator[tuple[str, str]]:
        """What it is, and its value."""
        if self.clients is None:
            yield "interrupted", "before anything had ended"
            return
        tally = self.clients.tally
        yield "interrupted", "what had ended by then"
        yield "requests", f"{tally.requests.total():,}"
        for end, n in tally.requests.items():
            yield f"  {end}", f"{n:,}"
        yield "jobs", f"{tally.jobs.total():,}"
        for key, n in tally.jobs.most_common():
            yield f"  {', '.join(filter(None, key))}", f"{n:,}"
        yield "tokens", f"{tally.tokens:,}"
        if self.weather:
            yield "faults injected", f"{self.weather.fired():,}"
            yield "resets", f"{self.weather.resets:,}"
        for finding in tally.findings:
            yield "found", finding


@contextmanager
def interruptible(as_json: bool) -> Iterator[SoFar]:
    """Where what is inside is interrupted, a table of what had ended comes before the end; not where the result is
    wanted as JSON: there is none."""
    so_far = SoFar()
    try:
        yield so_far
    except KeyboardInterrupt:
        rows = [] if as_json else list(so_far.rows())
        width = max((len(name) for name, _ in rows), default=0) + 2
        for name, value in rows:
            click.echo(f"{name:<{width}}{value}")
        raise
