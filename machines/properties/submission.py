"""What may be submitted, and how much at a time (§6.4, §8)."""

from machines.admission import AdmissionMode
from machines.expr import count
from machines.properties.words import (
    J,
    fresh,
    implies,
)
from machines.protocol import params as p
from machines.protocol.variables import (
    JobCall,
    job,
    lost_permits,
    mode,
    on_device,
    overtaken,
    pending,
    permits,
    serving,
    touching,
    work,
)
from machines.rulebook import Invariant, Property, Step

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
    Step(
        "load.reduced", "After a transient error a job is submitted only when no other has a permit.", "§8", over=J,
        on=("submitter.infer",),
        holds=implies(~(job.call.next == job.call) & (mode == AdmissionMode.Reduced), permits == 0),
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
