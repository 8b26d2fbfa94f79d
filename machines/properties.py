"""What must hold of the joint protocol: each property with its id, its § and a sentence a reviewer can read.

Invariants hold the executor's bookkeeping against the device's truth (world variables), counters against the jobs,
and machines against each other. Step properties judge single steps and may compare before and after. Leads-to
properties assume that our own actors are weakly fair, each for itself and for each job, and nothing else: no client
need act and no call into CalRT, `Wait()` included, need ever return.
"""

from machines.admission import AdmissionMode
from machines.answer import AnswerState
from machines.device import DeviceState
from machines.expr import Expr, count, every, ite, some
from machines.job import JobState
from machines.kv_txn import KvTxnState
from machines.protocol import params as p
from machines.protocol.variables import (
    SEQUENCE_OF,
    Held,
    JobCall,
    LifecycleCall,
    SequenceCall,
    Work,
    broken,
    bypassed,
    calls,
    confirmed,
    device,
    drained,
    fallback,
    free,
    idle,
    job,
    kv_free,
    kv_short,
    leftovers,
    lifecycle_call,
    line,
    lost_kv,
    lost_permits,
    lost_slots,
    mode,
    needs_reset,
    on_device,
    overtaken,
    own_seq,
    pending,
    permits,
    recoveries,
    rung,
    seq,
    serving,
    shutdown,
    strikes,
    submitting,
    touching,
    waits,
    work,
)
from machines.rulebook import Invariant, LeadsTo, Property, Sometimes, Step
from machines.sequence import SequenceState
from machines.shutdown import ShutdownState
from machines.slot import SlotState

J, A, K, B = (job.index,), AnswerState, KvTxnState, SlotState
S = (seq.index,)
other = job.named("other")

fresh = ~job.old
absent = job.state == JobState.Absent
ready, failed = device == DeviceState.Ready, device == DeviceState.Failed
draining = device == DeviceState.Draining
closed = shutdown == ShutdownState.Closed
ended = job.state.isin(JobState.Succeeded, JobState.Failed)
restarting = device.isin(DeviceState.Recovering, DeviceState.Configuring, DeviceState.Warming)
in_call = ~job.call.isin(JobCall.Idle, JobCall.Wait)
past_admission = job.state.isin(
    JobState.Admitted, JobState.Preparing, JobState.Queued, JobState.Submitted, JobState.CancelRequested,
    JobState.Completing,
)  # fmt: skip
unsettled = (
    (job.call == JobCall.Reserve)
    | (past_admission & ~(job.state == JobState.Completing))
    | ((job.state == JobState.Completing) & (job.kv == K.Submitted))
)


def implies(a: Expr, b: Expr) -> Expr:
    return ~a | b


def same(*variables: Expr) -> Expr:
    """None of these changes in the step."""
    result = variables[0].next == variables[0]
    for v in variables[1:]:
        result &= v.next == v
    return result


OWNERSHIP: tuple[Property, ...] = (
    Invariant(
        "I1.exclusive", "While the device is reset, configured or tested, no other call into CalRT is under way.",
        "§5.1-1", holds=implies(restarting, (calls == 0) & every(job, ~in_call)),
    ),
    Invariant(
        "I2.one_infer", "At most one infer() is under way, and none on behalf of an ended generation.", "§5.1-2",
        holds=count(job, job.call == JobCall.Infer) <= 1,
    ),
    Step(
        "I2.wait_after_submit", "Wait() is called for submitted jobs only.", "§5.1-2", over=J,
        holds=implies((job.call.next == JobCall.Wait) & ~(job.call == JobCall.Wait), ~(job.device_work == Work.Idle)),
    ),
    Invariant(
        "I3.slots", "Every slot is in the pool, with exactly one job, or in quarantine: none twice, none lost.",
        "§5.1-3",
        holds=free + count(job, (fresh | p.REUSES) & ~(job.slot == B.Free)) == p.SLOTS.expr,
    ),
    Invariant(
        "I4.memory", "No slot is free, leased or being returned while the device may still read or write it.",
        "§5.1-4", over=J, holds=~(job.slot.isin(B.Free, B.Leased, B.Returning) & touching),
    ),
    Invariant(
        "I4.exit", "When the host may leave the process, the device touches none of its memory.", "§14", over=J,
        holds=~((failed | closed) & touching) | p.EXIT_STOPS_DMA.expr,
    ),
    Invariant(
        "I5.generation", "A job of an ended generation makes no call but the Wait() it may be stuck in.", "§5.1-5",
        over=J, holds=~(job.old & in_call),
    ),
    Step(
        "I6.commit", "KV is committed only when the device has completed and the output was validated.", "§5.1-6",
        over=J, holds=implies((job.kv.next == K.Committed) & ~(job.kv == K.Committed), job.device_work == Work.Done),
    ),
    Step(
        "I6.rollback", "KV is rolled back only when the device has not run.", "§7", over=J,
        holds=implies((job.kv.next == K.RolledBack) & ~(job.kv == K.RolledBack), job.device_work == Work.Idle),
    ),
    Step(
        "I7.cancel", "A cancel or a request's deadline releases nothing.", "§5.1-7",
        over=J, on=("client.cancel", "clock.admission", "clock.queue", "clock.request"),
        holds=same(job.slot, job.kv, job.call, job.device_work, free, permits, kv_free, work, own_seq.record),
    ),
    Step(
        "I8.old_slot", "Memory of an ended generation comes back only from quarantine.", "§5.1-8", over=J,
        holds=implies(job.old & ~(job.slot == B.Free) & (job.slot.next == B.Free), job.slot == B.Quarantined),
    ),
)  # fmt: skip

KV: tuple[Property, ...] = (
    Invariant(
        "kv.truth", "While the device serves, it holds exactly what the record of every usable sequence says.", "§7",
        over=S,
        holds=implies(
            ready,
            implies(seq.record.isin(SequenceState.Empty, SequenceState.Lost), seq.held == Held.Empty)
            & implies(seq.record == SequenceState.Live, seq.held == Held.Match),
        ),
    ),
    Step(
        "kv.submit", "infer() finds the KV that the job was made for: its prefix, or nothing.", "§6.3", over=J,
        on=("submitter.infer",),
        holds=implies(
            (job.call.next == JobCall.Infer) & ~(job.call == JobCall.Infer),
            own_seq.held == ite(job.extends, Held.Match, Held.Empty),
        ),
    ),
    Invariant(
        "kv.units", "Every KV unit is free or held by exactly one sequence.", "§7",
        holds=kv_free
        + count(seq, seq.record.isin(SequenceState.Live, SequenceState.Busy, SequenceState.Unknown))
        == p.KV.expr,
    ),
    Invariant(
        "kv.serial", "A sequence has at most one unsettled job.", "§7", over=S,
        holds=count(job, (SEQUENCE_OF.index() == seq.index) & fresh & unsettled) <= 1,
    ),
    Invariant(
        "kv.unknown", "A sequence with KV in doubt has no job before a new generation.", "§6.5", over=S,
        holds=implies(
            seq.record == SequenceState.Unknown,
            every(job, ~((SEQUENCE_OF.index() == seq.index) & fresh & unsettled)),
        ),
    ),
    Invariant(
        "kv.doubt", "KV in doubt closes its sequence.", "§6.5", over=J,
        holds=implies((job.kv == K.Unknown) & fresh & ~failed, own_seq.record == SequenceState.Unknown),
    ),
    Invariant(
        "kv.owner", "A sequence is Busy only while a job of this generation or a removal owns it.", "§7", over=S,
        holds=implies(
            (seq.record == SequenceState.Busy) & ~failed,
            (seq.call == SequenceCall.Remove)
            | some(
                job,
                (SEQUENCE_OF.index() == seq.index) & fresh
                & ((job.call == JobCall.Reserve) | job.kv.isin(K.Reserved, K.Submitted)),
            ),
        ),
    ),
    Step(
        "kv.wake", "Whatever frees KV lets the line try again.", "§7",
        holds=implies(kv_free.next > kv_free, ~kv_short.next) | (kv_short.next & ~kv_short),
    ),
    Step(
        "kv.patience", "After a refused Apply nobody tries before something is freed or the back-off is over.", "F31",
        over=J, on=("admission.reserve.prefill", "admission.reserve.extend"),
        holds=implies(~(job.call.next == job.call), ~kv_short),
    ),
    Invariant(
        "kv.lost", "Sequences in doubt are counted.", "§7",
        holds=lost_kv == count(seq, seq.record == SequenceState.Unknown),
    ),
    Step(
        "kv.generation", "When a generation ends, no sequence keeps KV.", "§9.2", over=S,
        on=("lifecycle.recover", "clock.grace.recover", "lifecycle.reconfigure", "lifecycle.rollback",
            "lifecycle.golden.failed"),
        holds=seq.record.next.isin(SequenceState.Empty, SequenceState.Lost),
    ),
)  # fmt: skip

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

SUBMISSION: tuple[Property, ...] = (
    Step(
        "submit.live", "Nothing is submitted that has been answered: cancelled, past its deadline, failed.", "FI11",
        over=J, on=("submitter.infer",),
        holds=implies((job.call.next == JobCall.Infer) & ~(job.call == JobCall.Infer), pending),
    ),
    Step(
        "submit.serving", "Nothing is submitted unless the device is Ready and the executor open.", "FI06",
        over=J, on=("submitter.infer",),
        holds=implies((job.call.next == JobCall.Infer) & ~(job.call == JobCall.Infer), serving & fresh),
    ),
    Step(
        "submit.admitted", "Nothing is reserved or prepared for a job that is answered, or while not serving.", "§6.2",
        over=J, on=("admission.reserve.prefill", "admission.reserve.extend", "admission.prepare"),
        holds=implies(~(job.call.next == job.call), pending & serving & fresh),
    ),
    Invariant(
        "load.device", "The device works on at most max_inflight jobs of this generation.", "§6.4",
        holds=count(job, touching & fresh) <= p.INFLIGHT.expr,
    ),
    Invariant(
        "load.reduced", "After a transient error one job at a time is admitted; a second is a leftover.", "§8",
        holds=implies(ready & (mode == AdmissionMode.Reduced), permits <= p.INFLIGHT.expr),
    ),
    Step(
        "load.one_at_a_time", "After a transient error a job is admitted only when nothing else is at work.", "§8",
        over=J, on=("admission.reserve.prefill", "admission.reserve.extend"),
        holds=implies(~(job.call.next == job.call) & (mode == AdmissionMode.Reduced), work == 0),
    ),
    Invariant(
        "load.bypass", "The head of the admission line is overtaken at most so often.", "F32",
        holds=overtaken <= p.BYPASS.expr,
    ),
    Invariant(
        "load.permits", "A permit is held from the begin of infer() until the device is done, or is in doubt.", "§6.4",
        holds=permits == lost_permits + count(job, fresh & ((job.call == JobCall.Infer) | on_device)),
    ),
)  # fmt: skip

BOOKS: tuple[Property, ...] = (
    Invariant(
        "books.calls", "The count of calls under way is right.", "§5.2",
        holds=calls == count(job, in_call) + count(seq, ~(seq.call == SequenceCall.Idle)),
    ),
    Invariant(
        "books.waits", "The count of Wait calls is right.", "§6.5",
        holds=waits == count(job, job.call == JobCall.Wait),
    ),
    Invariant(
        "books.submitting", "The submitter is busy exactly while an infer() of this generation is under way.", "§6.4",
        holds=submitting == some(job, fresh & (job.call == JobCall.Infer)),
    ),
    Invariant(
        "books.settled", "A job that has ended and makes no call has settled its KV.", "§7", over=J,
        holds=implies(ended & idle, ~job.kv.isin(K.Reserved, K.Submitted)),
    ),
    Invariant(
        "books.quarantined", "A job in quarantine has its slot there too, and its KV is in doubt.", "§9.1", over=J,
        holds=implies(
            job.state == JobState.Quarantined, (job.slot == B.Quarantined) & (job.kv == K.Unknown)
        ),
    ),
    Invariant(
        "books.extends", "Whether a job extends is kept only while it may still matter.", "§7", over=J,
        holds=implies(
            job.extends,
            job.state.isin(JobState.Created, JobState.Admitted, JobState.Preparing, JobState.Queued)
            | job.call.isin(JobCall.Undo, JobCall.Unreserve),
        ),
    ),
    Invariant(
        "books.work", "The count of jobs of this generation that hold something is right.", "§9.2",
        holds=work
        == count(job, fresh & (past_admission | job.call.isin(JobCall.Reserve, JobCall.Undo, JobCall.Unreserve))),
    ),
    Invariant(
        "books.leftovers", "The count of jobs of ended generations that still hold something is right.", "FI14",
        holds=leftovers == count(job, job.old & past_admission),
    ),
    Invariant(
        "books.lost", "Slots lost in this generation are counted.", "F25",
        holds=lost_slots == count(job, fresh & (job.slot == B.Quarantined)),
    ),
    Invariant(
        "books.line", "Exactly the jobs that wait for admission are in the line.", "§6.2", over=J,
        holds=((job.turn > 0) == (job.state == JobState.Created)) & (job.turn <= line),
    ),
    Invariant(
        "books.turns", "No two jobs have the same place in the line.", "F32", over=(job.index, other),
        holds=(other == job.index) | (job.turn == 0) | ~(job.at(other).turn == job.turn),
    ),
    Invariant(
        "books.slot", "A job that has ended holds no slot but one in quarantine or on its way back.", "§5.1-3",
        over=J, holds=~(ended & job.slot.isin(B.Leased, B.InFlight)),
    ),
    Invariant(
        "books.stale", "A job that is on the device has an InFlight slot and a submitted reservation.", "§6.4",
        over=J, holds=implies(on_device, (job.slot == B.InFlight) & (job.kv == K.Submitted)),
    ),
    Step(
        "stale.harmless", "What an old job still does changes no count, slot or KV of the new generation.", "FI14",
        over=J, on=("admission.*", "submitter.*", "completion.*", "unwind.*"),
        holds=implies(
            job.old & ~same(job.state, job.slot, job.kv, job.call),
            same(permits, work, free, lost_slots, lost_kv, kv_free, own_seq.record),
        ),
    ),
)  # fmt: skip

LIFE: tuple[Property, ...] = (
    Step(
        "life.golden", "A device that is broken never becomes Ready.", "F40", on=("lifecycle.golden.passed",),
        holds=~broken,
    ),
    Step(
        "life.fence", "A generation ends in the step that leaves Draining, with no call under way.", "§9.2",
        holds=implies(
            (device == DeviceState.Draining) & (device.next == DeviceState.Recovering),
            every(job, implies(past_admission, job.old.next) & ~in_call),
        ),
    ),
    Step(
        "life.budget", "Every reset is on the recovery budget.", "§9.2",
        holds=((device.next == DeviceState.Recovering) & ~(device == DeviceState.Recovering))
        == (recoveries.next > recoveries),
    ),
    Step(
        "life.ladder", "A rung that did not help is not tried again in the same recovery.", "§8",
        on=("lifecycle.reset.failed", "lifecycle.golden.failed"), holds=rung.next > rung,
    ),
    Invariant(
        "life.rung", "The ladder starts anew for every recovery.", "§8", holds=implies(ready, rung == 0),
    ),
    Invariant(
        "life.strikes", "Admission is reduced exactly while transient errors are remembered.", "§8",
        holds=implies(ready, (strikes > 0) == (mode == AdmissionMode.Reduced)),
    ),
    Invariant(
        "life.failed", "Failed is at rest: nothing is let in and no counter of a recovery is left.", "§9.2",
        holds=implies(
            failed,
            (mode == AdmissionMode.Stopped) & (rung == 0) & (recoveries == 0) & ~fallback,
        ),
    ),
    Step(
        "life.no_call_when_failed", "On a Failed device no call is begun; those under way may be unwound.", "§9.2",
        over=J, holds=implies(failed & idle, job.call.next == JobCall.Idle),
    ),
    Step(
        "life.remove_when_serving", "A sequence is removed only while the executor serves.", "§3", over=S,
        on=("client.remove",), holds=implies(~(seq.call.next == seq.call), serving),
    ),
    Step(
        "life.new_generation", "A new generation starts with no strike and no memory of a refused Apply.", "§9.2",
        holds=implies(
            ~restarting & device.next.isin(DeviceState.Recovering, DeviceState.Configuring),
            (strikes.next == 0) & ~kv_short.next & (lost_slots.next == 0) & (lost_kv.next == 0)
            & (lost_permits.next == 0),
        ),
    ),
    Invariant(
        "life.confirmed", "Between a reset and the next passed golden run nothing counts as confirmed.", "§9.2",
        holds=implies(ready, confirmed) & implies(device == DeviceState.Recovering, ~confirmed),
    ),
    Step(
        "life.quarantine_ends", "A job leaves quarantine only after a reset was confirmed.", "§5.1-7", over=J,
        holds=implies(
            (job.state == JobState.Quarantined) & ~(job.state.next == JobState.Quarantined),
            job.old & ~(device == DeviceState.Recovering),
        ),
    ),
    Step(
        "life.refused", "A refused Apply is remembered: nobody tries again at once.", "F31",
        on=("admission.reserve.refused.*",), holds=kv_short.next,
    ),
    Step(
        "life.no_reset_when_closing", "Closing never starts a reset.", "FI13",
        on=("lifecycle.reset", "lifecycle.recover", "clock.grace.recover"), holds=shutdown == ShutdownState.Open,
    ),
    Step(
        "life.watchdog", "A watchdog bites only while a call is under way.", "§9.1",
        on=("clock.stuck", "clock.stuck.remove"), holds=calls > 0,
    ),
    Step(
        "life.clean", "A clean planned drain is neither reset nor given up.", "§9.2",
        on=("lifecycle.recover", "clock.grace.recover", "lifecycle.give_up"), holds=needs_reset & draining,
    ),
    Step(
        "life.reconfigure", "A planned drain ends in a new configuration only when it is clean and complete.", "§9.2",
        on=("lifecycle.reconfigure", "lifecycle.rollback", "lifecycle.no_fallback"),
        holds=draining & ~needs_reset & drained & (waits == 0) & (shutdown == ShutdownState.Open),
    ),
    Step(
        "life.rollback", "A rollback uses up the model that was known to be good.", "§8",
        on=("lifecycle.rollback", "lifecycle.configure.artifact"),
        holds=fallback & ~fallback.next & (device.next == DeviceState.Configuring)
        & mode.next.isin(AdmissionMode.Rejected, AdmissionMode.Stopped),
    ),
    Step(
        "life.switch", "A planned switch keeps the present model as the one known to be good.", "§9.2",
        on=("client.switch",), holds=fallback.next & (shutdown == ShutdownState.Open),
    ),
    Step(
        "life.last", "What the last rung, the last model or a broken configuration ends in is Failed.", "§9.2",
        on=("*.last", "lifecycle.no_fallback", "lifecycle.configure.failed", "lifecycle.give_up", "lifecycle.abort"),
        holds=device.next == DeviceState.Failed,
    ),
    Step(
        "life.closing", "Closing gives a device up only when it is overdue, or the device is being restarted.", "FI13",
        on=("clock.grace.close", "lifecycle.abort"),
        holds=(shutdown == ShutdownState.Closing) & (restarting | (ready & ~(drained & (waits == 0)))),
    ),
    Step(
        "life.reuse", "Quarantined memory is reused only after a golden run has passed.", "§5.1-8",
        on=("lifecycle.reap.reuse", "lifecycle.rebuild"), holds=confirmed,
    ),
    Step(
        "life.strict", "Admission opens only in Ready; until then it only becomes stricter.", "§8",
        holds=implies(
            (mode.next < mode) & ~(mode == AdmissionMode.Reduced), device.next == DeviceState.Ready
        ),
    ),
    Invariant(
        "life.open", "Jobs are admitted exactly while the device is Ready.", "§9.2",
        holds=ready == mode.isin(AdmissionMode.Open, AdmissionMode.Reduced),
    ),
    Invariant(
        "life.call", "A lifecycle call is under way only while the device is being restarted, or came too late.",
        "§9.2", holds=(lifecycle_call == LifecycleCall.Idle) | restarting | failed,
    ),
    Invariant(
        "life.closed", "A closed executor has nothing in flight, no call, and every promise set.", "FI13",
        holds=implies(
            closed, (lifecycle_call == LifecycleCall.Idle) & every(seq, seq.call == SequenceCall.Idle)
            & every(job, idle & (absent | ~pending) & ~past_admission),
        ),
    ),
    Invariant(
        "calm.jobs", "In fair weather no admitted job fails: whoever is let in succeeds.", "§13.2", over=J,
        applies=p.CALM.expr,
        holds=~job.state.isin(JobState.Quarantined, JobState.CancelRequested)
        & implies(job.state == JobState.Failed, (job.kv == K.Absent)),
    ),
    Invariant(
        "calm.device", "In fair weather the device is never drained.", "§13.2", applies=p.CALM.expr,
        holds=device.isin(DeviceState.Configuring, DeviceState.Warming, DeviceState.Ready),
    ),
)  # fmt: skip

_stormy = ~p.CALM.expr
_resets = ~p.EXITS & (p.RECOVERIES.expr > 0) & _stormy & (p.FAULTS.expr > 0)

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
        applies=(p.INFLIGHT.expr >= 2) & (p.SLOTS.expr >= 2) & (p.SEQUENCES.expr >= 2) & (p.JOBS.expr >= 2)
        & (p.KV.expr >= 2),
        reached=count(job, on_device & (job.device_work == Work.Running)) >= 2,
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

_quiet = failed | closed
_capacity = (kv_free > 0) & serving & ~kv_short & (mode == AdmissionMode.Open) & (own_seq.record == SequenceState.Empty)
_head = (job.state == JobState.Created) & (job.turn == 1) & pending & ~job.extends

PROGRESS: tuple[Property, ...] = (
    LeadsTo(
        "live.answered", "Every accepted job is answered, whatever the device does.", "§9.1", over=J,
        when=~absent & pending, then=~pending,
    ),
    LeadsTo(
        "live.device", "A device that is not serving becomes Ready or Failed.", "§9.2",
        when=~ready & ~_quiet, then=ready | _quiet,
    ),
    LeadsTo(
        "live.closed", "A closing executor ends: Closed, or Failed.", "FI13",
        when=(shutdown == ShutdownState.Closing) & ~failed, then=_quiet,
    ),
    LeadsTo(
        "live.in_flight", "What is in flight comes off the books, whether or not the device returns.", "F35", over=J,
        when=((job.call == JobCall.Infer) | on_device) & ~failed,
        then=~((job.call == JobCall.Infer) | on_device) | failed,
    ),
    LeadsTo(
        "live.leased", "A slot that is taken is given back or quarantined.", "F25", over=J,
        when=job.slot.isin(B.Leased, B.InFlight, B.Returning) & ~failed,
        then=job.slot.isin(B.Free, B.Quarantined) | failed,
    ),
    LeadsTo(
        "live.drained", "When all capacity is lost, the device is drained: no silent stall.", "F25",
        when=ready & ~closed & ((lost_slots == p.SLOTS.expr) | (lost_permits == p.INFLIGHT.expr)),
        then=~ready | closed,
    ),
    LeadsTo(
        "live.reaped", "A quarantined job of an ended generation is reaped.", "§5.1-8", over=J,
        applies=~p.EXITS,
        when=(job.state == JobState.Quarantined) & job.old & ~_quiet,
        then=~(job.state == JobState.Quarantined) | _quiet,
    ),
    LeadsTo(
        "live.retry", "After a refused Apply the line may try again.", "F27",
        when=kv_short & ready, then=~kv_short | ~ready,
    ),
    LeadsTo(
        "live.admitted", "The head of the line is tried while there is capacity for it.", "F27", over=J,
        when=_head & _capacity, then=(job.call == JobCall.Reserve) | ~_head | ~_capacity,
    ),
)  # fmt: skip

PROPERTIES: tuple[Property, ...] = (
    *OWNERSHIP, *KV, *ANSWERS, *SUBMISSION, *BOOKS, *LIFE, *REACHED, *PROGRESS,
)  # fmt: skip
__all__ = ["PROPERTIES"]
