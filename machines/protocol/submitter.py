"""The submitter (§6.4): the only one that calls `infer()`, one call at a time, with a permit.

Between the begin of `infer()` and its return a cancel, a deadline or a drain may arrive, and the device may already
be running. Of its errors only Busy is known to have started nothing (FI05); every other one leaves slot and KV in
doubt. Where that does not drain, the permit stays with the job: the device may be running it, and another would
overload it.
"""

from machines.admission import AdmissionMode
from machines.expr import ite
from machines.job import JobState
from machines.protocol import params as p
from machines.protocol.actors import SUBMITTER
from machines.protocol.common import (
    AT_THE_END,
    DRAIN_ARTIFACT,
    DRAIN_DEVICE,
    DRAIN_LIFECYCLE,
    GIVE_UP,
    JOB,
    LOSE_BOTH,
    QUARANTINE,
    off_the_books,
)
from machines.protocol.effects import INFER, UNDO
from machines.protocol.variables import (
    calls,
    gone,
    idle,
    job,
    lost_permits,
    lost_slots,
    mode,
    pending,
    permits,
    stopped,
    strikes,
    submitting,
    tolerated,
    unjudged,
    work,
)
from machines.rulebook import Rule

_queued = (job.state == JobState.Queued) & idle
_limit = ite(mode == AdmissionMode.Reduced, 1, p.INFLIGHT.expr)
_distrust = ~p.TRUST_SUBMIT.expr
_unsubmitted = {submitting: False, unjudged: unjudged - 1, job.behind: 0, job.suspect: False}
_kept = {
    **_unsubmitted, calls: calls - 1, work: work - 1, job.extends: False, lost_permits: lost_permits + 1,
    **LOSE_BOTH,
}  # fmt: skip
_returned = {**_unsubmitted, permits: permits - 1}
_submitted = {submitting: False, calls: calls - 1, job.extends: False}
_in_doubt = {**_returned, calls: calls - 1, work: work - 1, job.extends: False, **LOSE_BOTH}
_quarantine = {**QUARANTINE, job.answer: "fail"}
_refused = {job.state: "fail", job.slot: "refused", job.answer: "fail"}

RULES = (
    Rule(
        "submitter.infer", SUBMITTER, _queued & ~stopped & (permits < _limit) & ~submitting, JOB, begins=INFER,
        cites="§6.4", fires={job.slot: "submit"},
        then={
            permits: permits + 1, submitting: True, calls: calls + 1, unjudged: unjudged + 1, job.behind: unjudged,
        },
    ),
    Rule(
        "submitter.drop", SUBMITTER, _queued & ~gone & stopped, JOB, begins=UNDO, cites="FI11",
        fires={job.state: "fail", job.slot: "give_back", job.answer: "fail"}, then={calls: calls + 1},
        about="cancelled, past its deadline, draining or closing: it never reaches the device",
    ),
    Rule(
        "submitter.gone", SUBMITTER, _queued & gone, JOB, cites="§5.1-8",
        fires={job.state: "fail", job.kv: "rollback", job.slot: "quarantine", job.answer: "fail"},
        then={job.extends: False, **off_the_books(), lost_slots: ite(job.old, lost_slots, lost_slots + 1)},
        about="its generation has ended: its memory belongs to nobody",
    ),
    Rule(
        "submitter.infer.ok", SUBMITTER, pending, JOB, outcome=(INFER, ("ok",)), cites="§6.4",
        fires={job.state: "submit", job.kv: "submit"}, then=_submitted,
    ),
    Rule(
        "submitter.infer.ok.stopped", SUBMITTER, ~pending, JOB, outcome=(INFER, ("ok",)), cites="§5.1-7",
        fires={job.state: "submit_stopped", job.kv: "submit"}, then=_submitted,
        about="answered while infer() was under way: Wait() is still made",
    ),
    Rule(
        "submitter.infer.busy", SUBMITTER, tolerated, JOB, outcome=(INFER, ("busy",)), begins=UNDO, cites="FI05",
        fires={**_refused, mode: "reduce"}, then={**_returned, strikes: strikes + 1},
    ),
    Rule(
        "submitter.infer.busy.drain", SUBMITTER, ~tolerated, JOB, outcome=(INFER, ("busy",)), begins=UNDO,
        cites="§8", fires={**_refused, **DRAIN_DEVICE}, then=_returned,
        about="the threshold is reached",
    ),
    Rule(
        "submitter.infer.transient", SUBMITTER, _distrust & tolerated, JOB, outcome=(INFER, ("transient",)),
        cites="§8", fires={**_quarantine, mode: "reduce"}, then={**_kept, strikes: strikes + 1},
    ),
    Rule(
        "submitter.infer.transient.drain", SUBMITTER, _distrust & ~tolerated, JOB, outcome=(INFER, ("transient",)),
        cites="§8", fires={**_quarantine, **DRAIN_DEVICE}, then=_in_doubt,
    ),
    Rule(
        "submitter.infer.request", SUBMITTER, _distrust, JOB, outcome=(INFER, ("request",)), cites="§8",
        fires=_quarantine, then=_kept,
        about="a request or programming error: no reset for it, but the slot's state is not known",
    ),
    Rule(
        "submitter.infer.lifecycle", SUBMITTER, _distrust, JOB, outcome=(INFER, ("lifecycle",)), cites="§8",
        fires={**_quarantine, **DRAIN_LIFECYCLE}, then=_in_doubt,
    ),
    Rule(
        "submitter.infer.artifact", SUBMITTER, _distrust, JOB, outcome=(INFER, ("artifact",)), cites="§8",
        fires={**_quarantine, **DRAIN_ARTIFACT}, then=_in_doubt,
    ),
    Rule(
        "submitter.infer.compatibility", SUBMITTER, over=JOB, outcome=(INFER, ("compatibility",)), cites="§8",
        fires={**_quarantine, **GIVE_UP}, then={**_in_doubt, **AT_THE_END},
        about="driver or runtime do not fit: a human repairs, nothing is retried",
    ),
    Rule(
        "submitter.infer.device", SUBMITTER, _distrust, JOB, outcome=(INFER, ("device",)), cites="FI06",
        fires={**_quarantine, **DRAIN_DEVICE}, then=_in_doubt,
    ),
    # Policy trust_submit: an error means that nothing was started, so the job just goes back the way it came.
    Rule(
        "submitter.infer.trusted.request", SUBMITTER, ~_distrust, JOB, outcome=(INFER, ("request",)), begins=UNDO,
        cites="§8", fires=_refused, then=_returned,
    ),
    Rule(
        "submitter.infer.trusted.transient", SUBMITTER, ~_distrust & tolerated, JOB,
        outcome=(INFER, ("transient",)), begins=UNDO, cites="§8",
        fires={**_refused, mode: "reduce"}, then={**_returned, strikes: strikes + 1},
    ),
    Rule(
        "submitter.infer.trusted.transient.drain", SUBMITTER, ~_distrust & ~tolerated, JOB,
        outcome=(INFER, ("transient",)), begins=UNDO, cites="§8", fires={**_refused, **DRAIN_DEVICE}, then=_returned,
    ),
    Rule(
        "submitter.infer.trusted.lifecycle", SUBMITTER, ~_distrust, JOB, outcome=(INFER, ("lifecycle",)), begins=UNDO,
        cites="§8", fires={**_refused, **DRAIN_LIFECYCLE}, then=_returned,
    ),
    Rule(
        "submitter.infer.trusted.artifact", SUBMITTER, ~_distrust, JOB, outcome=(INFER, ("artifact",)), begins=UNDO,
        cites="§8", fires={**_refused, **DRAIN_ARTIFACT}, then=_returned,
    ),
    Rule(
        "submitter.infer.trusted.device", SUBMITTER, ~_distrust, JOB, outcome=(INFER, ("device",)), begins=UNDO,
        cites="§8", fires={**_refused, **DRAIN_DEVICE}, then=_returned,
    ),
)  # fmt: skip
