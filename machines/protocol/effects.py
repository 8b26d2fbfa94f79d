"""The calls into CalRT: what each may bring back, when the world can produce it, and what is then true.

The classes of `infer()` and of the preparing calls are those of §8. Every return other than the good one costs a
fault of the world's budget, unless the device's own state explains it.
"""

from machines.expr import TRUE, Expr, ite
from machines.protocol import params as p
from machines.protocol.variables import (
    Held,
    JobCall,
    LifecycleCall,
    SequenceCall,
    Work,
    broken,
    faults,
    job,
    lifecycle_call,
    miscomputes,
    own_seq,
    seq,
    touching,
)
from machines.rulebook import Each, Effect, Return

_started = job.device_work != Work.Idle
ERRORS = ("transient", "request", "lifecycle", "artifact", "compatibility", "device")  # the classes of §8


def _fault(observed: str, when: Expr = TRUE, variant: str = "") -> Return:
    return Return(observed, when=(faults > 0) & when, truth={faults: faults - 1}, variant=variant)


def _job_effect(name: str, call: JobCall, returns: list[Return], cites: str, about: str, vendor: bool = True) -> Effect:
    return Effect(name, job.call, call, JobCall.Idle, returns, over=job, cites=cites, about=about, vendor=vendor)


def _lifecycle_effect(name: str, call: LifecycleCall, returns: list[Return], about: str) -> Effect:
    return Effect(name, lifecycle_call, call, LifecycleCall.Idle, returns, cites="§9.2", about=about)


RESERVE = _job_effect(
    "reserve",
    JobCall.Reserve,
    [Return("ok"), _fault("refused"), _fault("failed")],
    "§7",
    "KvManager::Apply(sequence, target length)",
)
UNRESERVE = _job_effect(
    "unreserve", JobCall.Unreserve, [Return("ok"), _fault("failed")], "§7", "KvManager::Apply(sequence, old length)"
)
PREPARE = _job_effect(
    "prepare",
    JobCall.Prepare,
    [Return("ok"), *(_fault(name) for name in ERRORS)],
    "§6.3",
    "SetCsrByName, MapBuf, SliceTensor",
)
_not_clean = ~_started | ~p.SUBMIT_ERROR_STARTS_NOTHING.expr
INFER = _job_effect(
    "infer",
    JobCall.Infer,
    [
        Return("ok", when=_started),
        _fault("busy", ~_started | ~p.BUSY_STARTS_NOTHING.expr),
        *(_fault(name, _not_clean) for name in ERRORS),
    ],
    "§6.4",
    "infer() or infer_with_fixed_task_type()",
)
WAIT = _job_effect(
    "wait",
    JobCall.Wait,
    [
        Return("ok", when=job.device_work.isin(Work.Done, Work.Invalid, Work.Wrong)),
        Return("ok", when=job.old & ~_started & ~p.NO_LATE_COMPLETION.expr, variant="late"),
        Return("timeout", when=job.device_work == Work.Hung),
        _fault("timeout", job.device_work.isin(Work.Running, Work.Spoiled), variant="slow"),
        Return("exception", when=job.device_work.isin(Work.Raised, Work.RaisedRunning)),
        *(_fault(name, _started) for name in ("error", "artifact", "compatibility")),
        Return("error", when=job.old & ~_started, variant="killed"),
    ],
    "§6.5",
    "OutputBuf::Wait() and GetStatus(), judged together",
)
CONVERT = _job_effect(
    "convert",
    JobCall.Convert,
    [
        Return("valid", when=job.device_work.isin(Work.Done, Work.Wrong)),
        Return("invalid", when=job.device_work == Work.Invalid),
    ],
    "§6.5",
    "shape, size and finite check, BF16 to FP32: our own code, so it returns",
    vendor=False,
)
COMMIT = _job_effect(
    "commit",
    JobCall.Commit,
    [
        Return("ok", truth={own_seq.held: ite(job.device_work == Work.Done, Held.Match, own_seq.held)}),
        _fault("failed"),
    ],
    "§7",
    "KvManager::Apply after the device has completed",
)
UNDO = _job_effect("undo", JobCall.Undo, [Return("ok"), _fault("failed")], "FI15", "UndoSlice, checked")
REMOVE = Effect(
    "remove",
    seq.call,
    SequenceCall.Remove,
    SequenceCall.Idle,
    [Return("ok", truth={seq.held: Held.Empty}), _fault("failed")],
    over=seq,
    cites="§3",
    about="KvManager::Apply(sequence, 0)",
)
# Without reuse a new generation uses fresh sequence ids, so nothing old can disagree with a record.
_cleared = ~p.REUSES | (seq.held == Held.Empty)
_killed = touching & p.RESET_STOPS_DMA.expr
RESET = _lifecycle_effect(
    "reset",
    LifecycleCall.Reset,
    [
        Return(
            "ok",
            truth={broken: False, miscomputes: False},
            each=(
                Each(job.index, truth={job.device_work: ite(_killed, Work.Idle, job.device_work)}),
                Each(seq.index, truth={seq.held: ite(_cleared | p.RESET_CLEARS_KV.expr, Held.Empty, Held.Differs)}),
            ),
        ),
        Return(
            "ok",
            when=(faults > 0) & ~p.RESET_IS_HONEST.expr,
            truth={faults: faults - 1},
            each=(Each(seq.index, truth={seq.held: ite(_cleared, Held.Empty, Held.Differs)}),),
            variant="lie",
        ),
        _fault("failed"),
        _fault("compatibility"),
    ],
    "the present rung of the reset ladder: ResetCCU, ResetConfiguration, Reset",
)
CONFIGURE = _lifecycle_effect(
    "configure",
    LifecycleCall.Configure,
    [Return("ok"), _fault("artifact"), _fault("compatibility"), _fault("failed")],
    "a new Calbin, KvManager and pool",
)
GOLDEN = _lifecycle_effect(
    "golden",
    LifecycleCall.Golden,
    [
        Return("passed", when=~broken | ~p.GOLDEN_SEES.expr),
        Return("failed", when=broken, variant="broken"),
        _fault("failed", ~broken),
        _fault("artifact"),
        _fault("compatibility"),
    ],
    "fixed prefill and decode compared with their golden digest",
)

EFFECTS = (RESERVE, PREPARE, INFER, WAIT, CONVERT, COMMIT, UNDO, UNRESERVE, REMOVE, RESET, CONFIGURE, GOLDEN)
