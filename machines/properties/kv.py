"""What is known about KV (§7) is true, and every unit of it is accounted for."""

from machines.expr import count, every, ite, some
from machines.properties.words import J, K, S, failed, fresh, implies, ready, unsettled
from machines.protocol import params as p
from machines.protocol.variables import (
    SEQUENCE_OF,
    Held,
    JobCall,
    SequenceCall,
    job,
    kv_free,
    kv_short,
    lost_kv,
    own_seq,
    seq,
)
from machines.rulebook import Invariant, Property, Step
from machines.sequence import SequenceState

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
        "kv.wake", "Whatever frees KV lets the line try again; a refusal frees none.", "§7",
        on=("client.*", "unwind.*", "lifecycle.*", "clock.*"),
        holds=implies(kv_free.next > kv_free, ~kv_short.next),
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
            "lifecycle.golden.failed", "lifecycle.golden.artifact", "lifecycle.configure.failed"),
        holds=seq.record.next.isin(SequenceState.Empty, SequenceState.Lost),
    ),
)  # fmt: skip
