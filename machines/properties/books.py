"""Every count repeats what the jobs say; what is old changes nothing new (FI14)."""

from machines.expr import count, ite, some
from machines.job import JobState
from machines.properties.words import B, J, K, ended, fresh, implies, in_call, in_order, other, past_admission, same
from machines.protocol.variables import (
    JobCall,
    SequenceCall,
    calls,
    free,
    idle,
    job,
    kv_free,
    leftovers,
    line,
    lost_kv,
    lost_slots,
    on_device,
    own_seq,
    permits,
    seq,
    submitting,
    unjudged,
    waits,
    work,
)
from machines.rulebook import Invariant, Property, Step

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
        "books.unjudged", "The count of submitted jobs whose output has not been judged is right.", "FI10",
        holds=unjudged == count(job, in_order),
    ),
    Invariant(
        "books.order", "Every submitted job that is not yet judged has a place of its own.", "FI10",
        over=(job.index, other),
        holds=implies(in_order, job.behind < unjudged)
        & ((other == job.index) | (job.behind == 0) | ~(job.at(other).behind == job.behind)),
    ),
    Invariant(
        "books.first", "One of them is the first.", "FI10",
        holds=count(job, in_order & (job.behind == 0)) == ite(unjudged > 0, 1, 0),
    ),
    Invariant(
        "books.no_order", "A job whose output is judged, or never will be, has no place and is not suspect.", "FI10",
        over=J, holds=in_order | ((job.behind == 0) & ~job.suspect),
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
