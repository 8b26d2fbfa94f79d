"""Metrics for Prometheus, in a registry of their own (§10.3).

Theory. Numbers that are kept twice drift apart. So a gauge is no number here: when somebody asks, the executor's own
ledger is read (F53). A job is counted twice in its life, when it is accepted and when it has reached a final state, so
what was accepted is always what ended and what is still there. An interval is observed only if both its ends were
reached (F51); one that is negative is a bug, and is counted as that and not as a time.

Of a job that has ended for good nothing changes any more, so it need not be counted in the moment in which its client
waits: it is put aside, and counted while the device works on the next one, or when somebody asks (`count`).

A label takes few values: names of enums and codes, or texts of ours of which only so many are kept apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import attrs
from attrs import field, fields, frozen
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from machines.errors import CODES, SHIM_CODES, classify
from machines.job import JOB, JobState
from runtime.status import JobTimings, Status

__all__ = ["CONTENT_TYPE", "Ledger", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS_MAX = 64
PUT_ASIDE_MAX = 256  # ended jobs that are not counted yet
OTHER = "other"

BUCKETS_S = (
    0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
    60.0, 120.0,
)  # fmt: skip

# What is observed of a job: the interval's name, its attribute of JobTimings, and how many of its unit make a second.
INTERVALS = {
    "admission": ("admission_us", 1e6),
    "prepare": ("prepare_us", 1e6),
    "queue": ("queue_us", 1e6),
    "execution": ("execution_us", 1e6),
    "total": ("total_us", 1e6),
    "h2d": ("h2d_ms", 1e3),
    "device_wait": ("device_wait_ms", 1e3),
    "d2h": ("d2h_ms", 1e3),
    "postprocess": ("postprocess_ms", 1e3),
    "gil_wait": ("gil_wait_us", 1e6),
}

ENDS = JOB.final | {JobState.Quarantined}  # its memory may never come back


def _gauge(about: str) -> int | None:
    value: int | None = field(default=0, metadata={"about": about})
    return value


@frozen(kw_only=True)
class Ledger:
    """What there is at this moment. Every field is a gauge; None where that could not be asked."""

    ready: int | None = _gauge("1 while jobs are served")
    live: int | None = _gauge("0 when the process must be started anew")
    slots_free: int | None = _gauge("buffer slots in the pool, with the one for golden runs")
    slots_leased: int | None = _gauge("buffer slots that a job has")
    slots_quarantined: int | None = _gauge("buffer slots that may still be written by the device, of any generation")
    quarantined_bytes: int | None = _gauge("host memory of those slots")
    sequences_free: int | None = _gauge("sequences that could still get KV")
    sequences_in_doubt: int | None = _gauge("sequences of which nobody knows what KV the device holds")
    jobs: int | None = _gauge("jobs that were accepted and have not ended")
    jobs_in_flight: int | None = _gauge("submit permits taken: jobs on the device")
    waits: int | None = _gauge("Wait() calls under way, of any generation")
    admission_line: int | None = _gauge("jobs that wait for KV and buffers")
    generation: int | None = _gauge("number of the present generation")


@frozen
class _LedgerCollector:
    """Counts what was put aside and reads the ledger, when the registry is asked."""

    count: Callable[[], None]
    read: Callable[[], Ledger]

    def collect(self) -> Iterator[Metric]:
        self.count()
        now = self.read()
        for a in fields(Ledger):
            if (value := getattr(now, a.name)) is not None:
                yield GaugeMetricFamily(f"calexec_{a.name}", a.metadata["about"], value=value)


@attrs.define
class _Labels:
    """A label whose values are texts: after LABELS_MAX different ones the rest are one."""

    known: set[str] = field(factory=set)

    def __call__(self, value: str) -> str:
        if value not in self.known and len(self.known) >= LABELS_MAX:
            return OTHER
        self.known.add(value)
        return value


class Metrics:
    """The metrics of one executor. Thread-safe.

    ledger: says what there is; it is called when somebody asks for the metrics, and must not block for long.
    """

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._aside: deque[tuple[str, Status, JobTimings]] = deque()
        self.registry.register(_LedgerCollector(self.count, ledger))  # first: what it finds wrong is in the same text
        self._accepted = self._counter("jobs_accepted", "jobs that enqueue() took")
        self._refused = self._counter("requests_refused", "requests that enqueue() did not take", "kind")
        self._ended = self._counter(
            "jobs_ended",
            "jobs by final state, by what the client was told, and by CalRT's code",
            "state",
            "cause",
            "code",
        )
        self._recoveries = self._counter("recoveries", "resets of the device, by what began the drain", "cause")
        self._generations = self._counter("generations", "generations that were begun")
        self._violations = self._counter("violations", "what must never be: bugs of ours, or of the vendor", "kind")
        self._not_written = self._counter("not_written", "files that could not be written, or were left out", "kind")
        seconds = Histogram(
            "calexec_job_seconds", "how long jobs took, interval by interval", ["interval"], buckets=BUCKETS_S,
            registry=self.registry,
        )  # fmt: skip
        self._seconds = {name: seconds.labels(name) for name in INTERVALS}
        self._cause, self._kind = _Labels(), _Labels()

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"calexec_{name}", about, labels, registry=self.registry)

    # -- what happened -------------------------------------------------------------------------------------------------
    def accepted(self) -> None:
        """enqueue() took a job: from now on it is in the ledger, until `ended`."""
        self._accepted.inc()

    def refused(self, status: Status) -> None:
        """enqueue() did not take a request."""
        self._refused.labels(status.kind.name).inc()

    def ended(self, state: JobState, status: Status, timings: JobTimings) -> None:
        """A job has reached a final state, or is Quarantined. Once for each `accepted`, whatever became of it.

        status: what its client was told, which may be CANCELLED for a job that Succeeded. Raises ValueError for a state
        in which a job goes on."""
        if state not in ENDS:
            raise ValueError(
                f"a job has not ended in {state.name}; final are {', '.join(sorted(s.name for s in ENDS))}"
            )
        if state not in JOB.final:
            self._count(state.name, status, timings)
            return
        self._aside.append((state.name, status, timings))
        if len(self._aside) > PUT_ASIDE_MAX:
            self.count()

    def count(self) -> None:
        """Count the jobs that were put aside."""
        while True:
            try:
                ended = self._aside.popleft()
            except IndexError:
                return
            self._count(*ended)

    def abandoned(self, status: Status, timings: JobTimings) -> None:
        """A job will never end, because a call made for it has not returned and nobody waits for it any more."""
        self._count("Abandoned", status, timings)

    def _count(self, state: str, status: Status, timings: JobTimings) -> None:
        self._ended.labels(state, status.kind.name, _code_label(status.code)).inc()
        for name, (attribute, per_second) in INTERVALS.items():
            took = getattr(timings, attribute)
            if took is None:
                continue
            if took < 0:
                self.violation(f"negative {name}")
            else:
                self._seconds[name].observe(took / per_second)

    def recovery(self, cause: str) -> None:
        """A reset of the device. cause: the rule that began the drain."""
        self._recoveries.labels(self._cause(cause)).inc()

    def generation(self) -> None:
        """A generation was begun."""
        self._generations.inc()

    def violation(self, kind: str) -> None:
        """Something that must never be: an illegal transition, a dropped lease, a write into quarantined memory."""
        self._violations.labels(self._kind(kind)).inc()

    def not_written(self, kind: str) -> None:
        """A file, of an incident or a dump, was not written; no job is concerned."""
        self._not_written.labels(kind).inc()

    # -- who asks ------------------------------------------------------------------------------------------------------
    def text(self) -> str:
        """All of it, in Prometheus' text format (CONTENT_TYPE)."""
        return generate_latest(self.registry).decode()


_NAMED = {code.number for code in (*CODES, *SHIM_CODES)}


def _code_label(code: int) -> str:
    """The code's name, "" without one; of codes that have none there are too many."""
    if not code:
        return ""
    return classify(code).name if code in _NAMED else OTHER
