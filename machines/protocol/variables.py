"""The state of the joint protocol, and the words in which rules and properties speak of it.

Own variables are what the running executor knows; each is in one of the lock domains of §5.2. World variables are the
device's truth. Counters that repeat what the jobs already say (free, permits, work, ...) are there because the
executor has them; properties hold them against the jobs.
"""

from machines.admission import ADMISSION, AdmissionMode
from machines.answer import ANSWER, AnswerState
from machines.device import DEVICE, DeviceState
from machines.expr import Domain, Map, Param, Sort, State, Var
from machines.job import JOB, JobState
from machines.kv_txn import KV_TXN, KvTxnState
from machines.protocol import params as p
from machines.rulebook import variable
from machines.sequence import SEQUENCE
from machines.shutdown import SHUTDOWN, ShutdownState
from machines.slot import SLOT

LOCKS = ("lifecycle", "admission", "pool", "submit", "completion")


class JobCall(State):
    """The CalRT call being made for a job."""

    Idle, Reserve, Prepare, Infer, Wait, Convert, Commit, Undo, Unreserve = range(9)


class SequenceCall(State):
    """The CalRT call being made for a sequence outside any job."""

    Idle, Remove = range(2)


class LifecycleCall(State):
    """The CalRT call being made for the device as a whole."""

    Idle, Reset, Configure, Golden = range(4)


class Work(State):
    """The truth about the device and one job's buffers. Raised: exception, DMA stopped; RaisedRunning: DMA goes on.
    Spoiled: running, on a device that computes wrongly; Wrong: done there, and it looks right."""

    Idle, Running, Done, Invalid, Hung, Raised, RaisedRunning, Spoiled, Wrong = range(9)


class Held(State):
    """The truth about the KV that the device holds for a sequence, against the executor's record."""

    Empty, Match, Differs = range(3)


job = Sort("job", p.JOBS.expr)
seq = Sort("seq", p.SEQUENCES.expr)
SEQUENCE_OF = Map("seq_of", job, seq, lambda i, values: i % values["sequences"])

flag = Domain.boolean()


def upto(limit: Param) -> Domain:
    """From 0 to a parameter of the scope."""
    return Domain(limit.expr)


VARIABLES: tuple[Var, ...] = (
    # the device and its generation
    variable("device", DEVICE, lock="lifecycle"),
    variable("shutdown", SHUTDOWN, lock="lifecycle"),
    variable("lifecycle_call", Domain.of(LifecycleCall), lock="lifecycle", about="reset, configure or golden"),
    variable("rung", Domain(p.RUNGS.expr - 1), lock="lifecycle", about="rung of the reset ladder"),
    variable("recoveries", upto(p.RECOVERIES), lock="lifecycle", about="resets so far in this process"),
    variable("fallback", flag, lock="lifecycle", about="another model is known to be good"),
    variable("confirmed", flag, lock="lifecycle", about="a golden run has passed since the last reset"),
    variable("calls", Domain(p.JOBS.expr + p.SEQUENCES.expr), lock="lifecycle", about="calls under way, but for Wait"),
    variable("work", upto(p.JOBS), lock="lifecycle", about="jobs of this generation that hold something"),
    variable("leftovers", upto(p.JOBS), lock="lifecycle", about="jobs of ended generations that still hold something"),
    variable("waits", upto(p.JOBS), lock="lifecycle", about="Wait calls under way, of any generation"),
    # admission
    variable("mode", ADMISSION, lock="admission"),
    variable("strikes", upto(p.STRIKES), lock="admission", about="transient errors since the last back-off"),
    variable("line", upto(p.JOBS), lock="admission", about="jobs in the admission line"),
    variable("bypassed", upto(p.BYPASS), lock="admission", about="how often the head of the line was overtaken"),
    variable("kv_free", upto(p.KV), p.KV.expr, lock="admission", about="KV units that no sequence holds"),
    variable("kv_short", flag, lock="admission", about="Apply refused; nobody tries before something is freed"),
    variable("lost_kv", upto(p.KV), lock="admission", about="KV units of sequences Unknown in this generation"),
    # pool and submit
    variable("free", upto(p.SLOTS), p.SLOTS.expr, lock="pool", about="slots in the pool"),
    variable("lost_slots", upto(p.SLOTS), lock="pool", about="slots quarantined in this generation"),
    variable("permits", upto(p.INFLIGHT), lock="submit", about="submit permits taken"),
    variable("lost_permits", upto(p.INFLIGHT), lock="submit", about="permits of jobs in doubt, until a new generation"),
    variable("submitting", flag, lock="submit", about="the submitter is inside infer()"),
    variable("unjudged", upto(p.JOBS), lock="completion", about="jobs submitted whose output has not been judged"),
    # the world
    variable("faults", upto(p.FAULTS), p.FAULTS.expr, world=True, about="misbehaviour left"),
    variable("overtaken", Domain(p.BYPASS.expr + 1), world=True, about="how often the present head was overtaken"),
    variable("broken", flag, world=True, about="the device is broken until a real reset"),
    variable("miscomputes", flag, world=True, about="what the broken device is given comes out wrong"),
    # one job
    variable("state", JOB, sort=job, lock="completion"),
    variable("kv", KV_TXN, sort=job, lock="admission"),
    variable("slot", SLOT, sort=job, lock="pool"),
    variable("answer", ANSWER, sort=job, lock="completion"),
    variable("call", Domain.of(JobCall), sort=job, lock="completion"),
    variable("old", flag, sort=job, lock="lifecycle", about="its generation is not the current one"),
    variable("extends", flag, sort=job, lock="admission", about="it continues its sequence (past_len > 0)"),
    variable("turn", upto(p.JOBS), sort=job, lock="admission", about="place in the admission line, 0: not in it"),
    variable("behind", upto(p.JOBS), sort=job, lock="completion", about="jobs submitted before it and not yet judged"),
    variable("suspect", flag, sort=job, lock="completion", about="a job before it showed that the device is broken"),
    variable("device_work", Domain.of(Work), sort=job, world=True, about="what the device does with its buffers"),
    # one sequence
    variable("record", SEQUENCE, sort=seq, lock="admission"),
    variable("call", Domain.of(SequenceCall), sort=seq, lock="admission"),
    variable("held", Domain.of(Held), sort=seq, world=True, about="what the device holds for it"),
)  # fmt: skip
_shared = {v.name: v.ref for v in VARIABLES if v.sort is None}

device, shutdown, lifecycle_call = _shared["device"], _shared["shutdown"], _shared["lifecycle_call"]
rung, recoveries, fallback = _shared["rung"], _shared["recoveries"], _shared["fallback"]
confirmed = _shared["confirmed"]
calls, work, leftovers, waits = _shared["calls"], _shared["work"], _shared["leftovers"], _shared["waits"]
mode, strikes, line, bypassed = _shared["mode"], _shared["strikes"], _shared["line"], _shared["bypassed"]
kv_free, kv_short, lost_kv = _shared["kv_free"], _shared["kv_short"], _shared["lost_kv"]
lost_permits = _shared["lost_permits"]
free, lost_slots, permits, submitting = (
    _shared["free"],
    _shared["lost_slots"],
    _shared["permits"],
    _shared["submitting"],
)
unjudged = _shared["unjudged"]
faults, overtaken = _shared["faults"], _shared["overtaken"]
broken, miscomputes = _shared["broken"], _shared["miscomputes"]
own_seq = SEQUENCE_OF.of()

# -- words --------------------------------------------------------------------------------------------------------
pending = job.answer == AnswerState.Pending
gone = job.old | (device == DeviceState.Failed)  # no call may be begun for this job any more
serving = (device == DeviceState.Ready) & (shutdown == ShutdownState.Open)
stopped = ~(pending & serving) | job.old  # this job shall not be submitted
on_device = job.state.isin(JobState.Submitted, JobState.CancelRequested)
touching = job.device_work.isin(Work.Running, Work.Hung, Work.RaisedRunning, Work.Spoiled)
idle = job.call == JobCall.Idle
unread = (job.state == JobState.Completing) & idle & (job.kv == KvTxnState.Submitted)  # done, and not yet judged
# Only a golden run that sees tells whether a device that was not reset still works.
needs_reset = (mode == AdmissionMode.Stopped) | (lost_slots > 0) | (lost_kv > 0) | ~p.GOLDEN_SEES.expr
tolerated = strikes < p.STRIKES.expr  # one more transient error
refused = (mode == AdmissionMode.Rejected) & ~fallback  # no model is left that could be configured
may_reset = ~p.EXITS & (shutdown == ShutdownState.Open) & (recoveries < p.RECOVERIES.expr) & (waits <= p.ABANDONED.expr)
drained = (work == 0) & (calls == 0)
