"""Who owns what (§5.1): the executor's bookkeeping against the device's truth."""

from machines.expr import count, every
from machines.properties.words import B, J, K, closed, failed, fresh, implies, in_call, restarting, same
from machines.protocol import params as p
from machines.protocol.variables import (
    JobCall,
    Work,
    calls,
    free,
    job,
    kv_free,
    own_seq,
    permits,
    touching,
    work,
)
from machines.rulebook import Invariant, Property, Step

OWNERSHIP: tuple[Property, ...] = (
    Invariant(
        "I1.exclusive", "While the device is reset, configured or tested, no call but an old Wait() is under way.",
        "§5.1-1", holds=implies(restarting, (calls == 0) & every(job, ~in_call)),
    ),
    Invariant(
        "I2.one_infer", "At most one infer() is under way.", "§5.1-2",
        holds=count(job, job.call == JobCall.Infer) <= 1,
    ),
    Step(
        "I2.wait_after_submit", "Wait() is called only for jobs that the device has been given.", "§5.1-2", over=J,
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
