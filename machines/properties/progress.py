"""Leads-to, under weak fairness of our own actors alone: no call into CalRT need ever return."""

from machines.admission import AdmissionMode
from machines.job import JobState
from machines.properties.words import (
    B,
    J,
    absent,
    closed,
    failed,
    ready,
)
from machines.protocol import params as p
from machines.protocol.variables import (
    JobCall,
    job,
    kv_free,
    kv_short,
    lost_permits,
    lost_slots,
    mode,
    on_device,
    own_seq,
    pending,
    serving,
    shutdown,
)
from machines.rulebook import LeadsTo, Property
from machines.sequence import SequenceState
from machines.shutdown import ShutdownState

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
