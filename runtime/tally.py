"""What clients of the executor saw: how their requests and jobs ended, and what was wrong with it."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from attrs import define, field

from runtime.job import InferenceResult, JobHandle
from runtime.status import Status
from runtime.symptoms import cause_of

__all__ = ["KEPT", "Answers", "Ends", "Tally"]

KEPT = 10  # findings of a kind that are told in words, besides the first of each cause
WATCHED, WATCHED_GOOD = 1024, 8  # handles whose answer is looked at again; good ones hold logits


class Ends:
    """How a request, a whole prompt with its tokens, ends."""

    COMPLETED, CANCELLED, GIVEN_UP, DEVICE_FAILED, INTERRUPTED = (
        "completed", "cancelled", "given up", "device failed", "interrupted",
    )  # fmt: skip


class Answers:
    """Handles and what they answered. A handle is resolved once (§5.1): the first answer must be the last one too.

    Of one thread. It looks again when it forgets a handle, and when it is asked."""

    def __init__(self) -> None:
        self._kept: dict[bool, deque[tuple[JobHandle, InferenceResult]]] = {True: deque(), False: deque()}

    def add(self, handle: JobHandle, answer: InferenceResult) -> list[str]:
        """Watch one more. What was found of those that are forgotten for it."""
        kept = self._kept[answer.status.ok]
        kept.append((handle, answer))
        return _changed([kept.popleft()]) if len(kept) > (WATCHED_GOOD if answer.status.ok else WATCHED) else []

    def look(self) -> list[str]:
        """What is found of all that are watched; then they are not any more."""
        found = [line for kept in self._kept.values() for line in _changed(kept)]
        for kept in self._kept.values():
            kept.clear()
        return found


def _changed(kept: Iterable[tuple[JobHandle, InferenceResult]]) -> list[str]:
    return [
        f"job {handle.job_id}: first {answer.status}, then {second.status}"
        for handle, answer in kept
        if (second := handle.wait_until(0)) is not answer and second
    ]


@define
class Tally:
    """What all clients saw. Thread-safe; read it when they have ended. Findings: the first KEPT of each kind, and the
    first of each cause: of what went wrong first, ten others may be told before, since each client tells its own."""

    jobs: Counter[tuple[str, str]] = field(factory=Counter)  # by status and cause
    requests: Counter[str] = field(factory=Counter)
    good_by_generation: Counter[int | None] = field(factory=Counter)
    differences: int = 0
    unexplained: int = 0
    unanswered: int = 0
    changed_answers: int = 0
    findings: list[str] = field(factory=list)
    ttft_us: list[int] = field(factory=list)
    tpot_us: list[int] = field(factory=list)
    _told: set[tuple[str, str]] = field(factory=set, init=False)  # causes of each kind
    _mu: Any = field(factory=threading.Lock, init=False)

    @property
    def tokens(self) -> int:
        return self.good_by_generation.total()

    def job(self, status: Status) -> None:
        with self._mu:
            self.jobs[status.kind.name, "" if status.ok else cause_of(status)] += 1
            if status.ok:
                self.good_by_generation[status.generation] += 1

    def request(self, end: str) -> None:
        with self._mu:
            self.requests[end] += 1

    def took(self, first: bool, us: int) -> None:
        with self._mu:
            (self.ttft_us if first else self.tpot_us).append(us)

    def finding(self, kind: str, text: str, cause: str = "") -> None:
        """kind: the name of one of the counts. cause: as cause_of() says it, where there are several of a kind."""
        with self._mu:
            found = getattr(self, kind) + 1
            setattr(self, kind, found)
            if found <= KEPT or (kind, cause) not in self._told:
                self.findings.append(f"{kind}: {text}")
            self._told.add((kind, cause))
