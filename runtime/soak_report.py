"""What came of a soak, and which exit code that is."""

from __future__ import annotations

from typing import Any

from attrs import asdict, evolve, frozen

from runtime.exits import Exit
from runtime.report import Report
from runtime.soak import Soak
from runtime.soak_samples import Histogram
from runtime.soak_verdict import BOUNDS, Slope, Toll, slopes_of, tolls_of
from runtime.storm import ended_rightly
from runtime.weather import Weather

__all__ = ["SoakReport", "ended_by"]


@frozen
class SoakReport:
    """run: what `run` says of the same. slopes: empty where there was too little to tell. tolls: empty where there was
    no recovery. ended_by: the rules by which the device Failed, and what of the faults explains it; empty where it did
    not. served: requests that completed after the faults, of so many."""

    run: Report
    soak: Soak
    slopes: tuple[Slope, ...]
    tolls: tuple[Toll, ...]
    ended_by: str

    @classmethod
    def of(cls, report: Report, soak: Soak, ended_by: str) -> SoakReport:
        requests = sum(report.requests.values())
        tolls = tolls_of(soak.samples, soak.pool) if soak.pool else ()
        return cls(evolve(report, prompts=requests), soak, slopes_of(soak.samples), tolls, ended_by)

    @property
    def growing(self) -> tuple[str, ...]:
        """Which quantities grow with the jobs, or by more than a pool for each recovery."""
        found = [s.quantity.name for s in self.slopes if not s.flat]
        return tuple(dict.fromkeys(found + [t.quantity.name for t in self.tolls if not t.kept]))

    @property
    def undecided(self) -> bool:
        """There was too little to tell whether anything grows, though the device did not fail."""
        return not self.slopes and not self.run.device_failed

    @property
    def failed_unexplained(self) -> bool:
        return self.run.device_failed and not self.ended_by

    @property
    def served_all(self) -> bool:
        """After the faults every request completed."""
        completed, of = self.soak.served
        return completed == of

    @property
    def findings(self) -> tuple[str, ...]:
        found = [*self.run.findings, *(f"it grows: {s}" for s in self.slopes if not s.flat)]
        found += [f"it grows over recoveries: {t}" for t in self.tolls if not t.kept]
        if self.failed_unexplained:
            found.append("unexplained: the device Failed, and no injected fault leads there")
        if self.undecided:
            found.append("too short: too few calm laps came after the warm-up to tell what grows")
        if not self.served_all and not self.run.device_failed:
            found.append(f"after the faults {self.soak.served[0]} of {self.soak.served[1]} requests completed")
        return tuple(found)

    @property
    def exit(self) -> Exit:
        """The worst of what was found."""
        if self.run.exit not in (Exit.OK, Exit.FAILED):
            return self.run.exit
        if self.failed_unexplained:
            return Exit.UNEXPLAINED
        if self.growing or self.undecided:
            return Exit.GROWING
        if self.run.exit is Exit.OK and not self.served_all:
            return Exit.UNEXPLAINED
        return self.run.exit

    def as_json(self) -> dict[str, Any]:
        tally = self.soak.tally
        return {
            "exit": self.exit.name,
            "findings": list(self.findings),
            "growing": list(self.growing),
            "jobs": self.run.jobs,
            "seconds": self.run.seconds,
            "tokens_per_s": self.run.tokens_per_s,
            "cpu_seconds": self.soak.samples.last("cpu_seconds"),
            "ttft_us": _quantiles(tally.ttft_of_all),
            "tpot_us": _quantiles(tally.tpot_of_all),
            "slopes": {s.quantity.name: _without_quantity(s) | {"grown": s.grown, "flat": s.flat} for s in self.slopes},
            "recoveries": {t.quantity.name: _without_quantity(t) | {"kept": t.kept} for t in self.tolls},
            "bounds": {name: asdict(bound) for name, bound in BOUNDS.items()},
            "pool": asdict(self.soak.pool) if self.soak.pool else None,
            "warm_from_job": self.warm_from,
            "healed_laps": self.soak.healed,
            "served_after_the_faults": list(self.soak.served),
            "ended_by": self.ended_by,
            "run": {**asdict(self.run), "exit": self.run.exit.name},
            "samples": self.soak.samples.as_columns(),
        }

    @property
    def warm_from(self) -> int | None:
        """After how many jobs the warm-up ended."""
        jobs = self.soak.samples.column("jobs", warm=True)
        return int(jobs[0]) if len(jobs) else None


def _without_quantity(found: Slope | Toll) -> dict[str, Any]:
    return {name: value for name, value in asdict(found, recurse=False).items() if name != "quantity"}


def _quantiles(of: Histogram) -> dict[str, float | None]:
    return {f"p{p:g}": round(of.percentile(p), 1) if of.total else None for p in (50, 90, 99, 99.9)}


def ended_by(weather: Weather, recoveries_max: int, never_resets: bool) -> str:
    """What ended a device that Failed, in words: an injected fault, or the budget for recoveries; "" if neither did."""
    faults, rules = weather.since(0), weather.failed_by
    if rules and faults and (never_resets or weather.resets >= recoveries_max):
        why = "the policy never resets" if never_resets else f"all {recoveries_max} recoveries are used up"
        return f"{' then '.join(rules)}: {why}; the last fault was {faults[-1]}"
    return ended_rightly(rules, "", faults)
