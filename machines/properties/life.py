"""The device's life (§9.2): causes and fences of its steps, ends, closing, fair weather."""

from machines.admission import AdmissionMode
from machines.device import DeviceState
from machines.expr import every
from machines.job import JobState
from machines.properties.words import (
    J,
    K,
    S,
    absent,
    closed,
    draining,
    failed,
    implies,
    in_call,
    past_admission,
    ready,
    restarting,
)
from machines.protocol import params as p
from machines.protocol.variables import (
    JobCall,
    LifecycleCall,
    SequenceCall,
    broken,
    calls,
    confirmed,
    device,
    drained,
    fallback,
    idle,
    job,
    kv_short,
    lifecycle_call,
    lost_kv,
    lost_permits,
    lost_slots,
    mode,
    needs_reset,
    pending,
    recoveries,
    rung,
    seq,
    serving,
    shutdown,
    strikes,
    waits,
)
from machines.rulebook import Invariant, Property, Step
from machines.shutdown import ShutdownState

LIFE: tuple[Property, ...] = (
    Step(
        "life.golden", "A device that is broken never becomes Ready.", "F40", on=("lifecycle.golden.passed",),
        holds=~broken,
    ),
    Step(
        "life.fence", "A generation ends in the step that leaves Draining, with no call but Wait() under way.", "§9.2",
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
        on=("lifecycle.reset.failed", "lifecycle.configure.failed", "lifecycle.golden.failed"),
        holds=rung.next > rung,
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
        "life.no_call_when_failed",
        "On a Failed device no call is begun for a job that makes none; those under way may be unwound.", "§9.2",
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
        "life.quarantine_ends", "A job leaves quarantine only when its generation has ended and no reset is pending.",
        "§5.1-7", over=J,
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
        on=("clock.stuck*",), holds=(calls > 0) | ~(lifecycle_call == LifecycleCall.Idle),
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
        on=("lifecycle.rollback", "lifecycle.configure.artifact", "lifecycle.golden.artifact"),
        holds=fallback & ~fallback.next & (device.next == DeviceState.Configuring)
        & mode.next.isin(AdmissionMode.Rejected, AdmissionMode.Stopped),
    ),
    Step(
        "life.rejected", "A rejected model is not configured again: another one is, or the device is Failed.", "§8",
        on=("lifecycle.recover", "clock.grace.recover"),
        holds=implies(mode == AdmissionMode.Rejected, fallback & ~fallback.next),
    ),
    Step(
        "life.switch", "A planned switch keeps the present model as the one known to be good.", "§9.2",
        on=("client.switch",), holds=fallback.next & (shutdown == ShutdownState.Open),
    ),
    Step(
        "life.last", "What the last rung, the last model or a broken configuration ends in is Failed.", "§9.2",
        on=("*.last", "*.incompatible", "*.compatibility", "lifecycle.no_fallback", "lifecycle.give_up",
            "lifecycle.abort", "client.give_up"),
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
