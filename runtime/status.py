"""What a job ended with, and when it was where (§4.2, §6.1, §8).

Theory. Two different questions. What failed (`Failure`): which call, what CalRT said, raw. What the client is told
(`Status`): one of eight kinds, which an HTTP or gRPC server can pass on, with everything that §6.1 wants kept in the
log: job, request, sequence, generation, stage and raw code. The kind follows from the code (§8) unless the answer was
something else: a job whose client cancelled is CANCELLED, whatever the device said afterwards.
"""

from __future__ import annotations

import enum
import time
from operator import attrgetter, index
from typing import Any

from attrs import define, field, fields_dict, frozen

from machines.errors import CODES, Code, classify
from runtime.calrt import Library
from runtime.names import plain

__all__ = ["Failure", "JobTimings", "Status", "StatusKind", "failed", "not_a_deadline", "now_us"]


@frozen
class Failure:
    """A call that did not succeed, or a check of ours.

    stage: which call, on what. code: what CalRT or the shim returned, 0 where the check is our own. text: one line."""

    stage: str
    code: int = 0
    text: str = ""

    @property
    def known(self) -> Code:
        """The code's entry in §8."""
        return classify(self.code)

    def __str__(self) -> str:
        said = [f"{self.code} {self.known.name} ({self.known.kind.name})"] if self.code else []
        return ": ".join([self.stage, *said, *([plain(self.text)] if self.text else [])])


def failed(stage: str, code: int, library: Library) -> Failure | None:
    """The failure of a call that returned `code`; None for success. The shim's own codes come with its sentence, so
    this must be called in the thread that made the call, before its next one."""
    if code == 0:
        return None
    return Failure(stage, code, library.last_error() if code < 0 else classify(code).about)


# -- what the client is told -------------------------------------------------------------------------------------------
class StatusKind(enum.Enum):
    """The values are gRPC's names."""

    OK = "OK"
    CANCELLED = "CANCELLED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"
    NOT_SUPPORTED = "UNIMPLEMENTED"

    @property
    def grpc(self) -> str:
        """The name of gRPC's status code."""
        return self.value

    @property
    def http(self) -> int:
        """The status code of an HTTP answer (§8, last paragraph)."""
        return _HTTP[self.value]


# No code of CalRT means a cancel, or that we do not offer something (§3).
_HTTP = {c.grpc: c.http for c in CODES} | {"CANCELLED": 499, "UNIMPLEMENTED": 501}


@frozen(kw_only=True)
class Status:
    """How a job ended (§6.1). stage, code, text: those of its failure. An id is None where there is none yet.

    Raises ValueError for an OK that carries a code or a stage."""

    kind: StatusKind
    stage: str = ""
    code: int = 0
    text: str = ""
    job_id: int | None = None
    request_id: int | None = None
    seq_id: int | None = None
    generation: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.ok and (self.code or self.stage):
            raise ValueError(f"a status that is OK has no failure, but {self.stage!r} returned {self.code}")

    @staticmethod
    def of(failure: Failure, kind: StatusKind | None = None, **ids: int | None) -> Status:
        """The status of a failure. kind: what the client was told, where that is not what the code means; without a
        code and a kind it is INTERNAL. ids: job_id, request_id, seq_id, generation."""
        meant = StatusKind(failure.known.grpc) if failure.code else StatusKind.INTERNAL
        return Status(kind=kind or meant, stage=failure.stage, code=failure.code, text=failure.text, **ids)

    @property
    def ok(self) -> bool:
        return self.kind is StatusKind.OK

    @property
    def http(self) -> int:
        return self.kind.http

    @property
    def grpc(self) -> str:
        return self.kind.grpc

    @property
    def code_name(self) -> str:
        """The raw code's name (§8); empty where the failure is our own check."""
        return classify(self.code).name if self.code else ""

    def __str__(self) -> str:
        """One line, for the log: `INTERNAL: job 5, request 7, sequence 3, generation 1: submit: 4 IllegalValue ...`."""
        ids = {"job": self.job_id, "request": self.request_id, "sequence": self.seq_id, "generation": self.generation}
        who = ", ".join(f"{name} {number}" for name, number in ids.items() if number is not None)
        why = str(Failure(self.stage, self.code, self.text)) if self.stage else plain(self.text)
        return ": ".join(part for part in (self.kind.name, who, why) if part)


# -- when --------------------------------------------------------------------------------------------------------------
DEADLINE_MAX_US = 2**63 - 1


def now_us() -> int:
    """Microseconds on the monotonic clock, which all milestones and deadlines share."""
    return time.monotonic_ns() // 1000


def not_a_deadline(value: Any) -> str:
    """Why this is no deadline, in words; "" if it is one, or None, which is none at all (F39)."""
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if value is None or (whole and 0 <= index(value) <= DEADLINE_MAX_US):
        return ""
    said = plain(repr(value)) if isinstance(value, float | bool | str | int) else type(value).__name__
    return f"deadline_us is {said}; expected whole microseconds of the monotonic clock, 0 to {DEADLINE_MAX_US}"


def _milestone(about: str) -> Any:
    return field(default=None, metadata={"about": about})


def _measured(about: str) -> Any:
    return field(default=None, metadata={"measures": about})


@define
class JobTimings:
    """When a job was where, on the monotonic clock (§4.2). What was not reached, or not measured, is None (F51).

    One thread at a time has the job, so there is no lock.
    """

    accepted_us: int | None = _milestone("the request entered")
    admitted_us: int | None = _milestone("KV and buffers were obtained")
    queued_us: int | None = _milestone("prepared; waiting for a permit to submit")
    submitted_us: int | None = _milestone("infer() returned success")
    completed_us: int | None = _milestone("Wait() returned, well or not, by the clock in C")
    h2d_ms: float | None = _measured("copy into mapped memory, bind, slices, CSRs; MapBuf itself is made once (S07)")
    device_wait_ms: float | None = _measured("inside CalRT's Wait(), stamped in C")
    d2h_ms: float | None = _measured(
        "the device's copy to the host; CalRT 0.7.6 does not report it, so it is not known"
    )
    postprocess_ms: float | None = _measured("size and finite check, BF16 to FP32 (§10.1)")
    gil_wait_us: float | None = _measured("from Wait()'s return in C until Python ran again")

    def copy(self) -> JobTimings:
        """As they are now."""
        return JobTimings(*_all_of(self))

    def reach(self, name: str, at_us: int | None = None) -> None:
        """Sets the milestone `name` ("accepted", ...) to `at_us`, or to now. Raises KeyError for a name there is not,
        ValueError when it was reached before."""
        if name not in MILESTONES:
            raise KeyError(f"no milestone is called {name!r}; there are {', '.join(MILESTONES)}")
        if (before := self.at_us(name)) is not None:
            raise ValueError(f"milestone {name} was reached already, at {before} us")
        setattr(self, f"{name}_us", now_us() if at_us is None else at_us)

    def waited(self, begin_ns: int, end_ns: int, now_ns: int) -> None:
        """Wait() returned. begin_ns, end_ns: its stamps in C. now_ns: when Python runs again, on the same clock."""
        self.reach("completed", end_ns // 1000)
        self.device_wait_ms = (end_ns - begin_ns) / 1e6
        self.gil_wait_us = (now_ns - end_ns) / 1000

    def at_us(self, name: str) -> int | None:
        at: int | None = getattr(self, f"{name}_us")
        return at

    def between_us(self, start: str, end: str) -> int | None:
        """From one milestone to another; None unless both were reached."""
        from_us, to_us = self.at_us(start), self.at_us(end)
        return None if from_us is None or to_us is None else to_us - from_us

    @property
    def admission_us(self) -> int | None:
        """What the admission deadline bounds (§9.1)."""
        return self.between_us("accepted", "admitted")

    @property
    def prepare_us(self) -> int | None:
        return self.between_us("admitted", "queued")

    @property
    def queue_us(self) -> int | None:
        """What the queue deadline bounds (§9.1)."""
        return self.between_us("queued", "submitted")

    @property
    def execution_us(self) -> int | None:
        """What the execution deadline bounds (§9.1)."""
        return self.between_us("submitted", "completed")

    @property
    def total_us(self) -> int | None:
        return self.between_us("accepted", "completed")


_all_of = attrgetter(*fields_dict(JobTimings))
MILESTONES = tuple(name.removesuffix("_us") for name, a in fields_dict(JobTimings).items() if a.metadata.get("about"))
