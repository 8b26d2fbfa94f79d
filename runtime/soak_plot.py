"""The plot of a soak: what was measured, lap by lap, over the jobs served so far."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime.plots import Panel, Series, small_multiples
from runtime.soak_report import SoakReport
from runtime.soak_samples import GROWS, MIB, Quantity, Samples

__all__ = ["plot"]

MS = 1000.0


def plot(path: Path, report: SoakReport) -> None:
    """Raises PlotsMissing, OSError, and ValueError for a soak of which nothing was measured."""
    samples, run = report.soak.samples, report.run
    title = f"Soak of {run.model}: {sum(run.jobs.values()):,} jobs, {run.clients} clients, {run.faults:,} faults"
    warm = report.warm_from
    small_multiples(
        path, list(_panels(report)), title=title, x_label="jobs (grey: warm-up)", marks=_recoveries(samples),
        marks_label=f"red: where recoveries began, {run.resets:,} in all" if run.resets else "",
        shaded=None if warm is None else (0.0, float(warm)), columns=3,
    )  # fmt: skip


def _panels(report: SoakReport) -> Iterator[Panel]:
    samples = report.soak.samples
    jobs = samples.column("jobs").tolist()
    for name, about in (("tpot", "each further token, ms"), ("ttft", "first token, ms")):
        quantiles = [_series(samples, jobs, f"{name}_{q}_us", MS, q) for q in ("p50", "p99")]
        yield Panel(about, quantiles, log=all((samples.column(f"{name}_{q}_us") > 0).all() for q in ("p50", "p99")))
    yield Panel("tokens/s", [_series(samples, jobs, "tokens_per_s")], from_zero=True)
    for quantity in GROWS:
        if not np.isnan(samples.column(quantity.name)).any():
            series = _series(samples, jobs, quantity.name, quantity.scale)
            yield Panel(quantity.about, [series], whole=quantity.scale == 1, note=_slope_of(report, quantity))
    yield Panel("leases while at rest", [_series(samples, jobs, "leases")], whole=True, from_zero=True)
    if report.run.resets:
        yield Panel("in quarantine, MiB", [_series(samples, jobs, "quarantined_bytes", MIB)], from_zero=True)
        yield Panel("recoveries so far", [_series(samples, jobs, "recoveries")], whole=True)


def _series(samples: Samples, jobs: list[float], name: str, scale: float = 1.0, label: str = "") -> Series:
    values: NDArray[np.float64] = samples.column(name) / scale
    return Series(jobs, [None if np.isnan(v) else float(v) for v in values], label)


def _slope_of(report: SoakReport, quantity: Quantity) -> str:
    for s in report.slopes:
        if s.quantity is quantity:
            recovery = "".join(
                f", {t.grown / t.recoveries / quantity.scale:+,.2g} a recovery"
                for t in report.tolls
                if t.quantity is quantity
            )
            return f"{s.per_million / quantity.scale:+,.3g} per 10⁶ jobs{recovery}"
    return ""


def _recoveries(samples: Samples) -> list[float]:
    """The ends of laps in which one began."""
    begun = np.diff(samples.column("recoveries"), prepend=0) > 0
    marks: list[float] = samples.column("jobs")[begun].tolist()
    return marks
