"""Completion (§6.5): one wait agent per submitted job; nothing is held while it blocks.

The permit is free as soon as the device is done, so the next job may run while an output is still being judged. A
device whose output is invalid computes wrongly, perhaps without any sign: so outputs are judged in the order in which
jobs were submitted, and what was submitted behind a job that failed on the device is suspect and never delivered.

A return that comes when the job is no longer this agent's (timed out, of an older generation) is stale: it ends the
call and changes nothing else (FI14).
"""

from machines.device import DeviceState
from machines.expr import ite
from machines.job import JobState
from machines.kv_txn import KvTxnState
from machines.protocol import params as p
from machines.protocol.actors import COMPLETION, LIFECYCLE
from machines.protocol.common import (
    AT_THE_END,
    DRAIN_ARTIFACT,
    DRAIN_DEVICE,
    GIVE_UP,
    JOB,
    LOSE_BOTH,
    NOTHING_TO_READ,
    QUARANTINE,
    judged,
    off_the_books,
)
from machines.protocol.effects import COMMIT, CONVERT, UNDO, WAIT
from machines.protocol.variables import (
    calls,
    device,
    gone,
    idle,
    job,
    lost_kv,
    lost_slots,
    on_device,
    own_seq,
    pending,
    permits,
    unread,
    waits,
    work,
)
from machines.rulebook import Rule

_mine = on_device & ~job.old
_fault = {**QUARANTINE, job.answer: "fail", **DRAIN_DEVICE}
_leaves, _good = judged(True)
_, _bad = judged(False)
_off_device = {waits: waits - 1, permits: permits - 1, work: work - 1, **LOSE_BOTH, **_leaves}
_undone = {calls: calls - 1, work: work - 1, **LOSE_BOTH, **_leaves}
_first = ~job.suspect & (job.behind == 0)
_abandoned = {**off_the_books(), lost_slots: ite(job.old, lost_slots, lost_slots + 1), **_leaves}
_failed = device == DeviceState.Failed
_settled = (job.state == JobState.Completing) & idle & ~(job.kv == KvTxnState.Submitted)

RULES = (
    Rule(
        "completion.wait", COMPLETION, on_device & ~gone, JOB, begins=WAIT, cites="§6.5", then={waits: waits + 1},
    ),
    Rule(
        "completion.wait.ok", COMPLETION, _mine & _first, JOB, outcome=(WAIT, ("ok",)), begins=CONVERT, cites="§6.5",
        fires={job.state: "complete", job.slot: "done"},
        then={waits: waits - 1, permits: permits - 1, calls: calls + 1},
        about="the permit is free as soon as the device is done",
    ),
    Rule(
        "completion.wait.ok.behind", COMPLETION, _mine & ~job.suspect & (job.behind > 0), JOB,
        outcome=(WAIT, ("ok",)), cites="FI10", fires={job.state: "complete", job.slot: "done"},
        then={waits: waits - 1, permits: permits - 1}, about="an output before it has not been judged yet",
    ),
    Rule(
        "completion.judge", COMPLETION, unread & ~gone & _first, JOB, begins=CONVERT, cites="FI10",
        then={calls: calls + 1}, about="every output before it was good",
    ),
    Rule(
        "completion.wait.ok.suspect", COMPLETION, _mine & job.suspect, JOB, outcome=(WAIT, ("ok",)), cites="FI10",
        fires=_fault, then=_off_device, each=_bad, truth=NOTHING_TO_READ,
        about="computed by a device that had been shown to be broken",
    ),
    Rule(
        "completion.suspect", COMPLETION, unread & ~gone & job.suspect, JOB, cites="FI10",
        fires=_fault, then={work: work - 1, **LOSE_BOTH, **_leaves}, each=_bad, truth=NOTHING_TO_READ,
        about="the output before it was invalid: this one is not looked at",
    ),
    Rule(
        "completion.wait.timeout", COMPLETION, _mine, JOB, outcome=(WAIT, ("timeout",)), cites="FI07",
        fires=_fault, then=_off_device, each=_bad, truth=NOTHING_TO_READ,
    ),
    Rule(
        "completion.wait.exception", COMPLETION, _mine & ~p.TRUST_EXCEPTION.expr, JOB,
        outcome=(WAIT, ("exception",)), cites="FI08", fires=_fault, then=_off_device, each=_bad,
        truth=NOTHING_TO_READ,
    ),
    Rule(
        "completion.wait.exception.trusted", COMPLETION, _mine & p.TRUST_EXCEPTION.expr, JOB,
        outcome=(WAIT, ("exception",)), begins=UNDO, cites="§14",
        fires={
            job.state: "complete", job.kv: "unknown", job.slot: "done", own_seq.record: "unknown",
            **DRAIN_DEVICE,
        },
        then={waits: waits - 1, permits: permits - 1, calls: calls + 1, lost_kv: lost_kv + 1, **_leaves}, each=_bad,
        about="policy trust_exception: the device no longer touches the slot",
    ),
    Rule(
        "completion.wait.error", COMPLETION, _mine, JOB, outcome=(WAIT, ("error",)), cites="§6.5",
        fires=_fault, then=_off_device, each=_bad, truth=NOTHING_TO_READ,
    ),
    Rule(
        "completion.wait.artifact", COMPLETION, _mine, JOB, outcome=(WAIT, ("artifact",)), cites="§8",
        fires={**QUARANTINE, job.answer: "fail", **DRAIN_ARTIFACT}, then=_off_device, each=_bad, truth=NOTHING_TO_READ,
        about="the artifact is wrong: its generation is rejected; the job may still be running",
    ),
    Rule(
        "completion.wait.compatibility", COMPLETION, _mine, JOB, outcome=(WAIT, ("compatibility",)), cites="§8",
        fires={**QUARANTINE, job.answer: "fail", **GIVE_UP}, then={**_off_device, **AT_THE_END}, each=_bad,
        truth=NOTHING_TO_READ,
    ),
    Rule(
        "completion.wait.stale", COMPLETION, ~_mine, JOB, outcome=(WAIT, WAIT.classes), cites="FI14",
        then={waits: waits - 1}, truth=NOTHING_TO_READ, about="a late return: nothing of a newer generation is touched",
    ),
    Rule(
        "completion.convert.valid", COMPLETION, ~_failed, JOB, outcome=(CONVERT, ("valid",)), begins=COMMIT,
        cites="§6.5", then=_leaves, each=_good,
    ),
    Rule(
        "completion.convert.invalid", COMPLETION, ~_failed, JOB, outcome=(CONVERT, ("invalid",)), cites="FI10",
        fires=_fault, then=_undone, each=_bad, truth=NOTHING_TO_READ,
        about="NaN, Inf, wrong size or shape: never delivered, never committed",
    ),
    Rule(
        "completion.convert.failed_device", COMPLETION, _failed, JOB, outcome=(CONVERT, CONVERT.classes),
        cites="§9.2", fires={**QUARANTINE, job.answer: "fail"}, then=_undone, each=_bad, truth=NOTHING_TO_READ,
    ),
    Rule(
        "completion.commit.ok", COMPLETION, over=JOB, outcome=(COMMIT, ("ok",)), begins=UNDO, cites="§5.1-6",
        fires={job.kv: "commit", own_seq.record: "commit"},
    ),
    Rule(
        "completion.commit.failed", COMPLETION, over=JOB, outcome=(COMMIT, ("failed",)), begins=UNDO, cites="§7",
        fires={job.kv: "unknown", own_seq.record: "unknown"}, then={lost_kv: lost_kv + 1},
    ),
    Rule(
        "completion.deliver", COMPLETION, _settled & (job.kv == KvTxnState.Committed) & pending, JOB, cites="§6.5",
        fires={job.state: "succeed", job.answer: "deliver"}, then={**off_the_books()}, truth=NOTHING_TO_READ,
    ),
    Rule(
        "completion.discard", COMPLETION, _settled & (~(job.kv == KvTxnState.Committed) | ~pending), JOB, cites="FI12",
        fires={job.state: "fail", job.answer: "fail"}, then={**off_the_books()}, truth=NOTHING_TO_READ,
        about="answered already, or its KV is in doubt: the result is dropped",
    ),
    Rule(
        "completion.abandon", LIFECYCLE, on_device & gone, JOB, cites="§9.1",
        fires={job.state: "quarantine", job.kv: "unknown", job.slot: "quarantine", job.answer: "fail"},
        then={permits: ite(job.old, permits, permits - 1), **_abandoned}, each=_bad,
        about="its generation has ended while the device had it",
    ),
    Rule(
        "completion.abandon.unread", LIFECYCLE, unread & gone, JOB, cites="§9.1",
        fires={job.state: "quarantine", job.kv: "unknown", job.slot: "quarantine", job.answer: "fail"},
        then=_abandoned, each=_bad, about="its generation has ended before its output could be judged",
    ),
)  # fmt: skip
