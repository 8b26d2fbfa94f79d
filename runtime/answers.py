"""What a job's client is told (§5.1, §8): the status that a claimed answer means.

Theory. The rulebook says that an answer was claimed, by which rule, and of which kind it is. A reader wants more: for a
deadline which of four very different things has happened (F37) and in which call it was, for an error what CalRT said.
All of it is read from the rule and from the job's failure; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import evolve

from machines.answer import AnswerState
from machines.protocol.variables import JobCall
from runtime.job import JobContext
from runtime.status import Status, StatusKind

__all__ = ["ANSWERS", "VERDICTS", "status_of", "told"]

ANSWERS = {
    AnswerState.Ok: StatusKind.OK,
    AnswerState.Cancelled: StatusKind.CANCELLED,
    AnswerState.DeadlineExceeded: StatusKind.DEADLINE_EXCEEDED,
    AnswerState.Error: None,  # what the job's failure means
}
VERDICTS = {  # of a deadline, by its rule (F37)
    "clock.admission": "never started: KV and a prepared slot were not had by the admission deadline",
    "clock.queue": "starved: prepared, and not submitted by the queue deadline",
    "clock.request": "slow: on the device when the request's own deadline passed; the device goes on",
    "clock.execution": "hung: on the device beyond the execution deadline; the device is drained",
}


def told(rule: str, job: Any) -> Status | None:
    """What the job's client was told, or is to be told now; the first claim never changes (answer.once). rule: the id
    of the present step. None: nothing was claimed yet."""
    context: JobContext = job.tag
    if result := context.handle.settled:
        return result.status
    answer = list(AnswerState)[job.answer]
    return status_of(context, ANSWERS[answer], rule) if answer in ANSWERS else None


def status_of(context: JobContext, kind: StatusKind | None, rule: str) -> Status:
    """kind: what was claimed; None: an error, which is what the job's failure means. rule: who claimed it, or why."""
    request = context.request
    ids: dict[str, Any] = {
        "job_id": context.job_id, "request_id": request.request_id, "seq_id": request.seq_id,
        "generation": context.generation_id,
    }  # fmt: skip
    if kind is StatusKind.OK:
        return Status(kind=kind, **ids)
    status = Status(kind=kind or StatusKind.UNAVAILABLE, stage=rule)
    if context.failure:
        status = Status.of(context.failure, kind)
    return evolve(status, text="; ".join([*_verdict(context, rule), *filter(None, [status.text])]), **ids)


def _verdict(context: JobContext, rule: str) -> Iterator[str]:
    """Of a deadline: what it says of the job, and in which call it was."""
    if rule in VERDICTS:
        yield VERDICTS[rule]
        call = list(JobCall)[context.record.call]
        if call.code:
            yield f"{call.name} has not returned"
