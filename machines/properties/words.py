"""The words in which the properties speak, beyond those of `machines.protocol.variables`."""

from machines.answer import AnswerState
from machines.device import DeviceState
from machines.expr import Expr
from machines.job import JobState
from machines.kv_txn import KvTxnState
from machines.protocol.variables import (
    JobCall,
    device,
    job,
    on_device,
    seq,
    shutdown,
    unread,
)
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
in_order = fresh & (job.call.isin(JobCall.Infer, JobCall.Convert) | on_device | unread)  # submitted, not yet judged
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
