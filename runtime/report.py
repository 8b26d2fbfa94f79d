"""What came of `calexec run`, and which exit code that is."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from runtime.exits import Exit
from runtime.tally import Ends

__all__ = ["Report", "percentile"]

COMPLETED_MIN = 0.9  # of the requests that were not cancelled


@frozen
class Report:
    """What came of it. requests: by how they ended; jobs: by status and cause; us: microseconds, None without a sample.

    ledger: what the executor's books say and what is, where they differ; None where the device Failed, or a handle was
    not answered, before they could be compared. closed: close() returned, and nothing was under way; given_back:
    nothing is in quarantine either, where faults leave memory that the device might still write. violations: None where
    the device is not simulated. steps: those that were held against the rulebook; wrong_steps: 1 if one was not
    allowed, or how many variables differed in the end. served_after: whether a prompt was served when the faults were
    over; None: there were none.
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
    changed_answers: int
    steps: int
    wrong_steps: int
    served_after: bool | None
    leases_left: int
    ledger: tuple[str, ...] | None
    closed: bool
    given_back: bool
    device_failed: bool
    findings: tuple[str, ...]
    quarantined_bytes: int = 0  # of host memory, by what every generation left
    too_few_generations: bool = False
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
        if self.differences or self.violations or self.wrong_steps or self.changed_answers:
            return Exit.DIFFERENT
        if self.unexplained or self.unanswered:
            return Exit.UNEXPLAINED
        if self.abandoned:
            return Exit.ABANDONED
        if self.leases_left or self.ledger or self.served_after is False:
            return Exit.UNEXPLAINED
        if self.device_failed:
            return Exit.FAILED
        if self.too_few_generations:
            return Exit.UNEXPLAINED
        enough = self.requests.get(Ends.COMPLETED, 0) >= (COMPLETED_MIN if self.faults else 1) * self.wanted
        return Exit.OK if enough and self.closed and (self.given_back or self.faults) else Exit.UNEXPLAINED


def percentile(values: list[int], percent: int) -> int | None:
    """The nearest rank."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)] if values else None
