"""How `calexec run` tells what came of it: a table of one run, and a row for each of many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from runtime.report import Report
from runtime.seeds import Column
from runtime.tally import Ends

__all__ = ["COLUMNS", "count_of", "rows_of", "tell"]


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


COLUMNS = (
    Column("completed", _share),
    Column("cancelled", lambda r: str(r["requests"].get(Ends.CANCELLED, 0))),
    Column("failed jobs", lambda r: f"{sum(n for what, n in r['jobs'].items() if what != 'OK'):,}"),
    *map(count_of, ("faults", "resets", "generations")),
    Column("in the last", lambda r: f"{r['tokens_in_last_generation']:,}"),
    *map(count_of, ("differences", "violations", "unexplained", "unanswered")),
    Column("leases", lambda r: str(r["leases_left"])),
    Column("ledger", lambda r: "-" if r["ledger"] is None else "differs" if r["ledger"] else "balanced"),
    Column("steps", lambda r: f"{r['steps']:,}{' WRONG' if r['wrong_steps'] else ''}"),
    Column("MiB kept", lambda r: f"{r['quarantined_bytes'] / (1 << 20):,.0f}"),
    Column("s", lambda r: f"{r['seconds']:.0f}"),
)
