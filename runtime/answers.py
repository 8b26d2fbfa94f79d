"""What a job's client is told (§5.1, §8): the status that a claimed answer means.

Theory. The rulebook says that an answer was claimed, by which rule, and of which kind it is. A reader wants more: for a
deadline which of four very different things has happened (F37) and in which call it was, for an error what CalRT said.
All of it is read from the rule that claimed it, remembered in the moment of its step, and from the job's failure;
nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import evolve

from machines.answer import AnswerState
from machines.protocol.variables import JobCall
from runtime.job import Claim, JobContext
from runtime.status import Status, StatusKind

__all__ = ["ANSWERS", "VERDICTS", "claims", "status_of", "told"]

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


def claims(rule: Any, job: Any) -> None:
    """In the moment of a step that writes an answer: the first one claims it, and no other ever does (answer.once).

    What follows the step comes later, and perhaps after what follows the next one: by then it must be known."""
    if job.tag.claim is None:
        job.tag.claim = Claim(rule.id, job.call, job.tag.failure)


def told(job: Any) -> Status | None:
    """What the job's client was told, or is to be told now. None: nothing was claimed yet."""
    context: JobContext = job.tag
    if result := context.handle.settled:
        return result.status
    answer = list(AnswerState)[job.answer]
    if answer not in ANSWERS or context.claim is None:
        return None
    return status_of(context, ANSWERS[answer], context.claim)


def status_of(context: JobContext, kind: StatusKind | None, claim: Claim) -> Status:
    """kind: what was claimed; None: an error, which is what the failure means. claim: by whom, or why."""
    request = context.request
    ids: dict[str, Any] = {
        "job_id": context.job_id, "request_id": request.request_id, "seq_id": request.seq_id,
        "generation": context.generation_id,
    }  # fmt: skip
    if kind is StatusKind.OK:
        return Status(kind=kind, **ids)
    status = Status(kind=kind or StatusKind.UNAVAILABLE, stage=claim.rule)
    if claim.failure:
        status = Status.of(claim.failure, kind)
    return evolve(status, text="; ".join([*_verdict(claim), *filter(None, [status.text])]), **ids)


def _verdict(claim: Claim) -> Iterator[str]:
    """Of a deadline: what it says of the job, and in which call it was."""
    if claim.rule in VERDICTS:
        yield VERDICTS[claim.rule]
        if claim.call:
            yield f"{list(JobCall)[claim.call].name} has not returned"
