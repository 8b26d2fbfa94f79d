"""Drain, reset, configure, golden (§9.2), and what the clock observes about jobs and about the device.

The generation ends in the same step that leaves Draining, when no call but Wait is under way: asking "is there a
call?" first and ending it later would be no fence. A call that is still stuck after the grace period leads to Failed,
never to a reset. Every reset is on the recovery budget.
"""

from machines.admission import AdmissionMode
from machines.device import DeviceState
from machines.expr import ite
from machines.job import JobState
from machines.protocol import params as p
from machines.protocol.actors import CLOCK, LIFECYCLE
from machines.protocol.common import (
    AT_THE_END,
    DRAIN_DEVICE,
    GIVE_UP,
    JOB,
    LOSE_BOTH,
    QUARANTINE,
    SEQ,
    end_of_generation,
    judged,
)
from machines.protocol.effects import CONFIGURE, GOLDEN, RESET
from machines.protocol.variables import (
    Held,
    JobCall,
    LifecycleCall,
    SequenceCall,
    calls,
    confirmed,
    device,
    drained,
    fallback,
    free,
    job,
    kv_short,
    leftovers,
    lifecycle_call,
    line,
    lost_kv,
    lost_permits,
    lost_slots,
    may_reset,
    mode,
    needs_reset,
    on_device,
    pending,
    permits,
    recoveries,
    refused,
    rung,
    seq,
    shutdown,
    strikes,
    waits,
    work,
)
from machines.rulebook import Each, Rule
from machines.shutdown import ShutdownState
from machines.slot import SlotState

D = DeviceState
_new, _aging = end_of_generation()
_leaves, _bad = judged(False)
_open = shutdown == ShutdownState.Open
_ready = device == D.Ready
_draining = device == D.Draining
_failed = device == D.Failed
_no_call = lifecycle_call == LifecycleCall.Idle
_last_rung = rung == p.RUNGS.expr - 1
_planned = _draining & ~needs_reset
_kept = p.REUSES & ~p.RESET_CLEARS_KV.expr & ~(seq.held == Held.Empty)
_fresh_kv = Each(seq.index, truth={seq.held: ite(_kept, Held.Differs, Held.Empty)})
_stuck = job.call.isin(JobCall.Reserve, JobCall.Prepare, JobCall.Infer, JobCall.Commit, JobCall.Undo, JobCall.Unreserve)
_could_drain = _ready | _planned
_restarting = device.isin(D.Recovering, D.Configuring, D.Warming)
_confirmed = device.isin(D.Configuring, D.Warming, D.Ready, D.Draining)
# Asking for Ready alone would starve reuse behind a host that switches models for ever.
_reusable = confirmed & ~_failed
_may_step_up = ~_last_rung & may_reset
_may_recover = may_reset & ~refused
_rejected = mode == AdmissionMode.Rejected
_recovering = {
    **_new, recoveries: recoveries + 1, confirmed: False, fallback: ite(_rejected, False, fallback),
}  # fmt: skip
_stepping_up = {**_new, rung: rung + 1, recoveries: recoveries + 1, confirmed: False}

DEADLINES = (
    Rule(
        "clock.admission",
        CLOCK,
        job.state.isin(JobState.Created, JobState.Admitted, JobState.Preparing) & pending,
        JOB,
        cites="§9.1",
        fires={job.answer: "expire"},
        about="admission deadline: the device is not touched",
    ),
    Rule(
        "clock.queue",
        CLOCK,
        (job.state == JobState.Queued) & pending,
        JOB,
        cites="§9.1",
        fires={job.answer: "expire"},
        about="queue deadline; inside infer() it acts like a cancel",
    ),
    Rule(
        "clock.request",
        CLOCK,
        job.state.isin(JobState.Submitted, JobState.Completing) & pending,
        JOB,
        cites="§4.2",
        fires={job.state: "cancel", job.answer: "expire"},
        about="the request's own deadline: like a cancel, the device is left alone",
    ),
    Rule(
        "clock.execution",
        CLOCK,
        on_device & ~job.old,
        JOB,
        cites="§9.1",
        fires={**QUARANTINE, job.answer: "expire", **DRAIN_DEVICE},
        then={permits: permits - 1, work: work - 1, **LOSE_BOTH, **_leaves},
        each=_bad,
        about="execution deadline: the buffers stay, the device drains",
    ),
    Rule(
        "clock.stuck",
        CLOCK,
        _stuck & _could_drain,
        JOB,
        cites="§9.1",
        fires=DRAIN_DEVICE,
        about="a call other than Wait has not returned in time",
    ),
    Rule(
        "clock.stuck.remove",
        CLOCK,
        (seq.call == SequenceCall.Remove) & _could_drain,
        SEQ,
        cites="§9.1",
        fires=DRAIN_DEVICE,
    ),
    Rule(
        "clock.stuck.lifecycle",
        CLOCK,
        ~_no_call & ~_failed,
        cites="§9.2",
        fires=GIVE_UP,
        then=AT_THE_END,
        fair="clock.lifecycle",
        about="reset, configure or golden has not returned in time",
    ),
    Rule(
        "clock.backoff",
        CLOCK,
        _ready & (mode == AdmissionMode.Reduced),
        cites="§8",
        fires={mode: "relax"},
        then={strikes: 0},
        fair="clock.backoff",
    ),
    Rule(
        "clock.kv_retry",
        CLOCK,
        kv_short,
        cites="§7",
        then={kv_short: False},
        fair="clock.kv_retry",
        about="bounded back-off after a refused Apply",
    ),
    Rule(
        "clock.grace.recover",
        CLOCK,
        _draining & needs_reset & _may_recover & (calls == 0) & (work > 0),
        cites="§9.1",
        fires={device: "recover"},
        then=_recovering,
        each=_aging,
        fair="clock.grace",
        about="the grace period is over; what is still on the device is abandoned",
    ),
    Rule(
        "clock.grace.give_up",
        CLOCK,
        _draining & needs_reset & ((calls > 0) | ((work > 0) & ~_may_recover)),
        cites="§9.2",
        fires=GIVE_UP,
        then=AT_THE_END,
        fair="clock.grace",
    ),
    Rule(
        "clock.grace.overdue",
        CLOCK,
        _planned & ~(drained & (waits == 0)),
        cites="§9.2",
        fires={mode: "stop"},
        fair="clock.grace",
        about="a planned drain that does not end becomes a fault",
    ),
    Rule(
        "clock.grace.close",
        CLOCK,
        (shutdown == ShutdownState.Closing) & _ready & ~(drained & (waits == 0)),
        cites="FI13",
        fires=GIVE_UP,
        then=AT_THE_END,
        fair="clock.close",
        about="closing did not end in time",
    ),
)

RULES = (
    *DEADLINES,
    Rule(
        "lifecycle.exhausted", LIFECYCLE, _ready
        & ((lost_slots == p.SLOTS.expr) | (lost_kv == p.KV.expr) | (lost_permits == p.INFLIGHT.expr)),
        cites="§9.2", fires=DRAIN_DEVICE, about="the quarantine budget is used up: nothing could be served any more",
    ),
    Rule(
        "lifecycle.recover", LIFECYCLE, _draining & needs_reset & _may_recover & drained, cites="§9.2",
        fires={device: "recover"}, then=_recovering, each=_aging,
        about="with the last model known to be good, if the present one was rejected",
    ),
    Rule(
        "lifecycle.give_up", LIFECYCLE, _draining & needs_reset & ~_may_recover & drained, cites="§9.2", fires=GIVE_UP,
        then=AT_THE_END, about="policy, budget or shutdown allow no reset, or no model is left",
    ),
    Rule(
        "lifecycle.reconfigure", LIFECYCLE, _planned & drained & (waits == 0) & _open
        & (mode == AdmissionMode.Paused), cites="§9.2",
        fires={device: "reconfigure"}, then=_new, each=(*_aging, _fresh_kv),
        about="planned switch, or a lifecycle error that touched nothing",
    ),
    Rule(
        "lifecycle.rollback", LIFECYCLE, _planned & drained & (waits == 0) & _open
        & (mode == AdmissionMode.Rejected) & fallback, cites="§8",
        fires={device: "reconfigure"}, then={**_new, fallback: False}, each=(*_aging, _fresh_kv),
        about="back to the last model known to be good",
    ),
    Rule(
        "lifecycle.no_fallback", LIFECYCLE, _planned & drained & (waits == 0) & _open
        & (mode == AdmissionMode.Rejected) & ~fallback, cites="§8", fires=GIVE_UP, then=AT_THE_END,
    ),
    Rule(
        "lifecycle.reset", LIFECYCLE, (device == D.Recovering) & _open, cites="§9.2", begins=RESET,
    ),
    Rule(
        "lifecycle.reset.ok", LIFECYCLE, device == D.Recovering, outcome=(RESET, ("ok",)), cites="§9.2",
        fires={device: "reset"},
    ),
    Rule(
        "lifecycle.reset.failed", LIFECYCLE, (device == D.Recovering) & ~_last_rung, outcome=(RESET, ("failed",)),
        cites="§8", then={rung: rung + 1}, about="the next rung of the ladder",
    ),
    Rule(
        "lifecycle.reset.failed.last", LIFECYCLE, (device == D.Recovering) & _last_rung,
        outcome=(RESET, ("failed",)), cites="§8", fires=GIVE_UP, then=AT_THE_END,
    ),
    Rule(
        "lifecycle.reset.incompatible", LIFECYCLE, device == D.Recovering, outcome=(RESET, ("compatibility",)),
        cites="§8", fires=GIVE_UP, then=AT_THE_END, about="a human repairs; nothing is retried",
    ),
    Rule(
        "lifecycle.reset.late", LIFECYCLE, _failed, outcome=(RESET, RESET.classes), cites="§9.2",
        about="it returned after its watchdog",
    ),
    Rule(
        "lifecycle.configure", LIFECYCLE, (device == D.Configuring) & _open, cites="§9.2", begins=CONFIGURE,
    ),
    Rule(
        "lifecycle.configure.ok", LIFECYCLE, device == D.Configuring, outcome=(CONFIGURE, ("ok",)), cites="§9.2",
        fires={device: "configured"},
    ),
    Rule(
        "lifecycle.configure.artifact", LIFECYCLE, (device == D.Configuring) & fallback,
        outcome=(CONFIGURE, ("artifact",)), cites="§8", fires={device: "rollback", mode: "reject"},
        then={fallback: False}, about="configure the last model known to be good instead",
    ),
    Rule(
        "lifecycle.configure.artifact.last", LIFECYCLE, (device == D.Configuring) & ~fallback,
        outcome=(CONFIGURE, ("artifact",)), cites="§8", fires=GIVE_UP, then=AT_THE_END,
    ),
    Rule(
        "lifecycle.configure.failed", LIFECYCLE, (device == D.Configuring) & _may_step_up,
        outcome=(CONFIGURE, ("failed",)), cites="§8", fires={device: "retry"}, each=_aging, then=_stepping_up,
        about="the next rung of the ladder, in one more generation",
    ),
    Rule(
        "lifecycle.configure.failed.last", LIFECYCLE, (device == D.Configuring) & ~_may_step_up,
        outcome=(CONFIGURE, ("failed",)), cites="§8", fires=GIVE_UP, then=AT_THE_END,
    ),
    Rule(
        "lifecycle.configure.incompatible", LIFECYCLE, device == D.Configuring,
        outcome=(CONFIGURE, ("compatibility",)), cites="§8", fires=GIVE_UP, then=AT_THE_END,
    ),
    Rule(
        "lifecycle.configure.late", LIFECYCLE, _failed, outcome=(CONFIGURE, CONFIGURE.classes), cites="§9.2",
    ),
    Rule("lifecycle.golden", LIFECYCLE, (device == D.Warming) & _open, cites="§9.2", begins=GOLDEN),
    Rule(
        "lifecycle.golden.passed", LIFECYCLE, device == D.Warming, outcome=(GOLDEN, ("passed",)), cites="§9.2",
        fires={device: "golden", mode: "open"}, then={rung: 0, confirmed: True},
    ),
    Rule(
        "lifecycle.golden.failed", LIFECYCLE, (device == D.Warming) & _may_step_up, outcome=(GOLDEN, ("failed",)),
        cites="§9.2", fires={device: "retry"}, each=_aging,
        then=_stepping_up, about="the next rung of the ladder, in one more generation",
    ),
    Rule(
        "lifecycle.golden.failed.last", LIFECYCLE, (device == D.Warming) & ~_may_step_up,
        outcome=(GOLDEN, ("failed",)), cites="§9.2", fires=GIVE_UP, then=AT_THE_END,
    ),
    Rule(
        "lifecycle.golden.artifact", LIFECYCLE, (device == D.Warming) & fallback, outcome=(GOLDEN, ("artifact",)),
        cites="§8", fires={device: "rollback", mode: "reject"}, then={**_new, fallback: False},
        each=(*_aging, _fresh_kv), about="configure the last model known to be good instead",
    ),
    Rule(
        "lifecycle.golden.artifact.last", LIFECYCLE, (device == D.Warming) & ~fallback,
        outcome=(GOLDEN, ("artifact",)), cites="§8", fires=GIVE_UP, then=AT_THE_END,
    ),
    Rule(
        "lifecycle.golden.incompatible", LIFECYCLE, device == D.Warming, outcome=(GOLDEN, ("compatibility",)),
        cites="§8", fires=GIVE_UP, then=AT_THE_END,
    ),
    Rule("lifecycle.golden.late", LIFECYCLE, _failed, outcome=(GOLDEN, GOLDEN.classes), cites="§9.2"),
    Rule(
        "lifecycle.abort", LIFECYCLE, ~_open & _restarting & _no_call, cites="FI13", fires=GIVE_UP, then=AT_THE_END,
        about="closing while the device is not Ready",
    ),
    Rule(
        "lifecycle.answer", LIFECYCLE, _failed & ~(job.state == JobState.Absent) & pending, JOB, cites="§5.1-7",
        fires={job.state: "cancel", job.answer: "fail"},
        about="a Failed executor keeps nobody waiting, whatever its calls do",
    ),
    Rule(
        "lifecycle.reap", LIFECYCLE, (job.state == JobState.Quarantined) & job.old & _confirmed & ~p.REUSES, JOB,
        cites="§5.1-8", fires={job.state: "reap"}, about="its memory stays in quarantine for ever",
    ),
    Rule(
        "lifecycle.reap.reuse", LIFECYCLE, (job.state == JobState.Quarantined) & job.old & _reusable & p.REUSES, JOB,
        cites="§5.1-8", fires={job.state: "reap", job.slot: "rebuild"}, then={free: free + 1},
        about="policy reuse: after a passed golden run",
    ),
    Rule(
        "lifecycle.rebuild", LIFECYCLE,
        job.state.isin(JobState.Succeeded, JobState.Failed) & (job.slot == SlotState.Quarantined) & job.old & _reusable
        & p.REUSES, JOB, cites="§5.1-8", fires={job.slot: "rebuild"}, then={free: free + 1},
        about="policy reuse: the slot of a finished job",
    ),
    Rule(
        "lifecycle.closed", LIFECYCLE,
        (shutdown == ShutdownState.Closing) & (_ready | _planned) & drained & (waits == 0) & (line == 0)
        & (leftovers == 0),
        cites="FI13", fires={shutdown: "closed"},
    ),
)  # fmt: skip
