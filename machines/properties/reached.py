"""Non-vacuity: what must be possible."""

from machines.expr import count, some
from machines.job import JobState
from machines.properties.words import closed, failed, fresh, ready
from machines.protocol import params as p
from machines.protocol.variables import (
    JobCall,
    Work,
    bypassed,
    job,
    kv_short,
    lost_slots,
    on_device,
    permits,
    recoveries,
    seq,
)
from machines.rulebook import Property, Sometimes
from machines.sequence import SequenceState

_stormy = ~p.CALM.expr
_resets = ~p.EXITS & (p.RECOVERIES.expr > 0) & _stormy & (p.FAULTS.expr > 0)
_overlaps = (p.SLOTS.expr >= 2) & (p.SEQUENCES.expr >= 2) & (p.JOBS.expr >= 2) & (p.KV.expr >= 2)

REACHED: tuple[Property, ...] = (
    Sometimes("reach.succeeded", "A job succeeds.", "§6.5", reached=some(job, job.state == JobState.Succeeded)),
    Sometimes(
        "reach.cancelled", "A job is cancelled while the device has it, and is still waited for.", "FI12",
        applies=_stormy,
        reached=some(job, (job.state == JobState.CancelRequested) & (job.call == JobCall.Wait)),
    ),
    Sometimes(
        "reach.extended", "A second job continues a sequence.", "§7",
        reached=some(job, job.extends & (job.state == JobState.Queued)),
    ),
    Sometimes(
        "reach.two_in_flight", "Two jobs are in flight.", "§6.4",
        applies=(p.INFLIGHT.expr >= 2) & _overlaps,
        reached=count(job, on_device & (job.device_work == Work.Running)) >= 2,
    ),
    Sometimes(
        "reach.overlapped", "A job runs while the output of the one before it is judged.", "FI10", applies=_overlaps,
        reached=some(job, fresh & (job.device_work == Work.Running) & (job.behind > 0)) & (permits == 1),
    ),
    Sometimes(
        "reach.spoiled", "A job is done that looks right and is wrong.", "FI10",
        applies=_overlaps & _stormy & (p.FAULTS.expr > 0), reached=some(job, job.device_work == Work.Wrong),
    ),
    Sometimes(
        "reach.recovered", "After a reset a job of the new generation succeeds.", "§9.2", applies=_resets,
        reached=ready & (recoveries > 0) & some(job, fresh & (job.state == JobState.Succeeded)),
    ),
    Sometimes(
        "reach.lost", "A sequence of an older generation waits to be begun again, while the device serves.", "§7",
        applies=_resets, reached=ready & some(seq, seq.record == SequenceState.Lost),
    ),
    Sometimes(
        "reach.late", "A completion of an old generation arrives while the new one serves.", "FI14",
        applies=_resets & ~p.RESET_STOPS_DMA.expr,
        reached=ready & some(job, job.old & (job.call == JobCall.Wait) & (job.device_work == Work.Done)),
    ),
    Sometimes("reach.failed", "The device fails for good.", "§9.2", applies=_stormy, reached=failed),
    Sometimes(
        "reach.closed", "The executor is closed in good order.", "FI13", applies=_stormy, reached=closed & ready,
    ),
    Sometimes(
        "reach.exhausted", "The quarantine budget is used up while the device is Ready.", "F25",
        applies=_stormy & (p.FAULTS.expr > 0) & (p.SLOTS.expr == 1),
        reached=ready & (lost_slots == p.SLOTS.expr),
    ),
    Sometimes(
        "reach.overtaken", "A job overtakes the head of the admission line.", "F32",
        applies=(p.JOBS.expr >= 2) & (p.SEQUENCES.expr >= 2) & (p.BYPASS.expr > 0), reached=bypassed > 0,
    ),
    Sometimes(
        "reach.refused", "Apply refuses although canAllocate agreed.", "§7",
        applies=_stormy & (p.FAULTS.expr > 0), reached=kv_short,
    ),
)  # fmt: skip
