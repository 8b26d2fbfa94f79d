"""Every job is answered once, and logits go only where they may (§6.5, §9.1)."""

from machines.job import JobState
from machines.properties.words import A, J, K, absent, ended, implies
from machines.protocol.variables import (
    Work,
    job,
    pending,
)
from machines.rulebook import Invariant, Property, Step

ANSWERS: tuple[Property, ...] = (
    Step(
        "answer.once", "An answer that was given is never changed.", "F01", over=J,
        holds=implies(~pending & ~(job.state.next == JobState.Absent), job.answer.next == job.answer),
    ),
    Invariant(
        "answer.given", "A job that has ended, or is in quarantine, has been answered.", "§9.1", over=J,
        holds=implies(ended | (job.state == JobState.Quarantined), ~pending),
    ),
    Invariant(
        "answer.ok", "Logits go to exactly the jobs that succeeded: never to a cancelled or timed-out one.", "FI12",
        over=J, holds=(job.state == JobState.Succeeded) == (job.answer == A.Ok),
    ),
    Step(
        "answer.valid", "Logits are delivered only from a valid output whose KV is committed.", "FI07", over=J,
        holds=implies(
            (job.answer.next == A.Ok) & ~(job.answer == A.Ok),
            (job.device_work == Work.Done) & (job.kv == K.Committed),
        ),
    ),
    Invariant(
        "answer.mirror", "A job that the device has and whose answer is given is marked CancelRequested.", "§5.1-7",
        over=J, holds=implies(job.state == JobState.Submitted, pending)
        & implies(job.state == JobState.CancelRequested, ~pending),
    ),
    Invariant(
        "answer.accepted", "Only accepted jobs are answered.", "§6.2", over=J, holds=implies(absent, pending),
    ),
)  # fmt: skip
