"""What the device may do, and the one modelling step: a finished job's record is used again."""

from machines.expr import ite
from machines.job import JobState
from machines.kv_txn import KvTxnState
from machines.protocol import params as p
from machines.protocol.actors import DEVICE, RECORDS
from machines.protocol.common import JOB
from machines.protocol.variables import (
    Held,
    JobCall,
    Work,
    broken,
    faults,
    idle,
    job,
    miscomputes,
    on_device,
    own_seq,
    pending,
    touching,
)
from machines.rulebook import Rule
from machines.slot import SlotState

_work = job.device_work
_running = _work == Work.Running
_goes_on = ite(miscomputes, Work.Spoiled, Work.Running)
_as_begun = ite(_work == Work.Spoiled, Work.Wrong, Work.Done)
# How its work ended is read by the call that is still to return; afterwards it is Idle, so that states do not multiply.
_read = on_device | job.call.isin(JobCall.Infer, JobCall.Wait)
_misbehaves = {faults: faults - 1, broken: True}
_seen = on_device & ~job.old  # a device that computes wrongly without any sign is beyond every protocol
_holds_nothing = (job.slot == SlotState.Free) | (job.old & ~p.REUSES)
_in_no_doubt = ~(job.kv == KvTxnState.Unknown) | job.old

RULES = (
    Rule(
        "device.accept", DEVICE, over=JOB, world=(job.call == JobCall.Infer) & (_work == Work.Idle), cites="§6.4",
        truth={_work: _goes_on, own_seq.held: Held.Differs},
        about="it begins to run, whatever infer() is going to return",
    ),
    Rule(
        "device.done", DEVICE, over=JOB, world=_work.isin(Work.Running, Work.Spoiled), cites="§6.5",
        truth={_work: ite(_read, _as_begun, Work.Idle)},
    ),
    Rule(
        "device.invalid", DEVICE, over=JOB, world=_running & (faults > 0), cites="FI10",
        truth={_work: Work.Invalid, miscomputes: ite(_seen, True, miscomputes), **_misbehaves},
        about="it completes with NaN, Inf or a short tensor; what it is given from now on may look right and be wrong",
    ),
    Rule(
        "device.exception", DEVICE, over=JOB, world=_running & (faults > 0), cites="FI08",
        truth={_work: ite(p.EXCEPTION_STOPS_DMA.expr, Work.Raised, Work.RaisedRunning), **_misbehaves},
    ),
    Rule(
        "device.hang", DEVICE, over=JOB, world=_running & (faults > 0), truth={_work: Work.Hung, **_misbehaves},
        cites="FI07",
    ),
    Rule(
        "device.late", DEVICE, over=JOB, world=_work.isin(Work.Hung, Work.RaisedRunning), cites="FI14",
        truth={_work: ite(_read, ite(_work == Work.Hung, Work.Done, Work.Raised), Work.Idle)},
        about="it finishes after all: after a timeout, a cancel, a reset",
    ),
    Rule(
        "device.leftover", DEVICE, over=JOB, cites="§14",
        world=job.old & touching & ~p.LEFTOVER_HARMLESS.expr & ~(own_seq.held == Held.Differs),
        truth={own_seq.held: Held.Differs},
        about="a job that a reset did not stop writes KV of the new generation",
        unreachable="where it can happen no reset policy is sound: it fires only in runs to be refuted",
    ),
    Rule(
        "records.forget", RECORDS, job.state.isin(JobState.Succeeded, JobState.Failed) & idle & ~pending
        & _holds_nothing & _in_no_doubt, JOB, world=~touching, cites="§5.1-3",
        fires={job.state: "forget", job.kv: "forget", job.slot: "forget", job.answer: "forget"},
        then={job.old: False}, truth={_work: Work.Idle},
        about="a later job may use this record: any number of jobs, `jobs` at a time",
    ),
)  # fmt: skip
