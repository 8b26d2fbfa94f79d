"""From arrival to the submit queue: a client's job on its way (§6.2, §6.3), FIFO with bounded bypass."""

from machines.admission import AdmissionMode
from machines.expr import ite
from machines.job import JobState
from machines.kv_txn import KvTxnState
from machines.protocol import params as p
from machines.protocol.actors import ADMISSION, UNWIND
from machines.protocol.common import (
    AT_THE_END,
    DRAIN_ARTIFACT,
    DRAIN_DEVICE,
    DRAIN_LIFECYCLE,
    GIVE_UP,
    JOB,
    leave_line,
    off_the_books,
)
from machines.protocol.effects import PREPARE, RESERVE, UNDO, UNRESERVE
from machines.protocol.variables import (
    bypassed,
    calls,
    free,
    gone,
    idle,
    job,
    kv_free,
    kv_short,
    lost_kv,
    lost_slots,
    mode,
    overtaken,
    own_seq,
    pending,
    serving,
    stopped,
    strikes,
    tolerated,
    work,
)
from machines.rulebook import Rule
from machines.sequence import SequenceState

_left, _closing_up, _head_changed = leave_line()
_continues = own_seq.record == SequenceState.Live
_begins = own_seq.record.isin(SequenceState.Empty, SequenceState.Lost)
_mismatch = ite(job.extends, _begins, _continues) | (own_seq.record == SequenceState.Unknown)
_may_try = (
    (job.state == JobState.Created) & pending & serving & ~kv_short
    & ((job.turn == 1) | (bypassed < p.BYPASS.expr))
    & ((mode == AdmissionMode.Open) | (work == 0))
)  # fmt: skip
_reserving = {work: work + 1, calls: calls + 1, bypassed: ite(job.turn == 1, bypassed, bypassed + 1)}
_overtaking = {overtaken: ite(job.turn == 1, overtaken, overtaken + 1)}
_admitted_stop = (job.state == JobState.Admitted) & idle & ~gone & stopped
_refused = {job.state: "fail", job.slot: "give_back", job.answer: "fail"}
_keeps_reservation = job.kv == KvTxnState.Reserved
_ended = job.state == JobState.Failed

RULES = (
    Rule(
        "admission.refuse", ADMISSION, (job.state == JobState.Created) & idle & (~pending | ~serving | _mismatch),
        JOB, cites="§9.1", fires={job.state: "fail", job.answer: "fail"},
        then={**_left, job.extends: False}, each=_closing_up, truth=_head_changed,
        about="stopped, not serving, or its past_len does not fit the sequence: the device is not touched",
    ),
    Rule(
        "admission.reserve.prefill", ADMISSION, _may_try & ~job.extends & _begins & (kv_free > 0), JOB,
        begins=RESERVE, cites="§7", fires={own_seq.record: "prefill"}, then={**_reserving, kv_free: kv_free - 1},
        truth=_overtaking,
        about="canAllocate said yes: one Apply",
    ),
    Rule(
        "admission.reserve.extend", ADMISSION, _may_try & job.extends & _continues, JOB,
        begins=RESERVE, cites="§7", fires={own_seq.record: "extend"}, then=_reserving, truth=_overtaking,
    ),
    Rule(
        "admission.reserve.ok", ADMISSION, over=JOB, outcome=(RESERVE, ("ok",)), cites="§7",
        fires={job.state: "admit", job.kv: "reserve"}, then={calls: calls - 1, **_left}, each=_closing_up,
        truth=_head_changed,
    ),
    Rule(
        "admission.reserve.refused.prefill", ADMISSION, ~job.extends, JOB, outcome=(RESERVE, ("refused",)), cites="§7",
        fires={own_seq.record: "undo_prefill"},
        then={calls: calls - 1, work: work - 1, kv_free: kv_free + 1, kv_short: True},
        about="it keeps its place; nobody tries again before something is freed or the back-off has passed",
    ),
    Rule(
        "admission.reserve.refused.extend", ADMISSION, job.extends, JOB, outcome=(RESERVE, ("refused",)), cites="§7",
        fires={own_seq.record: "undo_extend"}, then={calls: calls - 1, work: work - 1, kv_short: True},
    ),
    Rule(
        "admission.reserve.failed", ADMISSION, over=JOB, outcome=(RESERVE, ("failed",)), cites="§7",
        fires={job.state: "fail", job.answer: "fail", own_seq.record: "unknown", **DRAIN_DEVICE},
        then={calls: calls - 1, work: work - 1, lost_kv: lost_kv + 1, job.extends: False, **_left}, each=_closing_up,
        truth=_head_changed,
        about="neither granted nor refused: what the device holds for the sequence is not known any more",
    ),
    Rule(
        "admission.drop", ADMISSION, _admitted_stop, JOB, begins=UNRESERVE, cites="§6.2",
        fires={job.state: "fail", job.answer: "fail"}, then={calls: calls + 1},
    ),
    Rule(
        "admission.gone", ADMISSION, (job.state == JobState.Admitted) & idle & gone, JOB, cites="§5.1-8",
        fires={job.state: "fail", job.kv: "rollback", job.answer: "fail"},
        then={**off_the_books(), job.extends: False},
        about="its generation has ended: nothing of it is left on the device",
    ),
    Rule(
        "admission.prepare", ADMISSION, (job.state == JobState.Admitted) & idle & ~stopped & (free > 0), JOB,
        begins=PREPARE, cites="§6.3", fires={job.state: "lease", job.slot: "lease"},
        then={free: free - 1, calls: calls + 1},
    ),
    Rule(
        "admission.prepare.ok", ADMISSION, over=JOB, outcome=(PREPARE, ("ok",)), cites="§6.3",
        fires={job.state: "prepared"}, then={calls: calls - 1},
    ),
    Rule(
        "admission.prepare.request", ADMISSION, over=JOB, outcome=(PREPARE, ("request",)), begins=UNDO, cites="§8",
        fires=_refused, about="out of range, dtype, shape, memory: this job only",
    ),
    Rule(
        "admission.prepare.transient", ADMISSION, tolerated, JOB, outcome=(PREPARE, ("transient",)), begins=UNDO,
        cites="§8", fires={**_refused, mode: "reduce"}, then={strikes: strikes + 1},
    ),
    Rule(
        "admission.prepare.transient.drain", ADMISSION, ~tolerated, JOB, outcome=(PREPARE, ("transient",)),
        begins=UNDO, cites="§8", fires={**_refused, **DRAIN_DEVICE}, about="the threshold is reached",
    ),
    Rule(
        "admission.prepare.lifecycle", ADMISSION, over=JOB, outcome=(PREPARE, ("lifecycle",)), begins=UNDO, cites="§8",
        fires={**_refused, **DRAIN_LIFECYCLE}, about="generation and configuration are not what they should be",
    ),
    Rule(
        "admission.prepare.compatibility", ADMISSION, over=JOB, outcome=(PREPARE, ("compatibility",)), begins=UNDO,
        cites="§8", fires={**_refused, **GIVE_UP}, then=AT_THE_END,
        about="driver or runtime do not fit: a human repairs, nothing is retried",
    ),
    Rule(
        "admission.prepare.artifact", ADMISSION, over=JOB, outcome=(PREPARE, ("artifact",)), begins=UNDO, cites="§8",
        fires={**_refused, **DRAIN_ARTIFACT}, about="the artifact is wrong: its generation is rejected",
    ),
    Rule(
        "admission.prepare.device", ADMISSION, over=JOB, outcome=(PREPARE, ("device",)), begins=UNDO, cites="§8",
        fires={**_refused, **DRAIN_DEVICE},
    ),
    # -- giving back, whoever drops the job ------------------------------------------------------------------
    Rule(
        "unwind.undo.ok", UNWIND, ~_keeps_reservation, JOB, outcome=(UNDO, ("ok",)), cites="§6.5",
        fires={job.slot: "release"}, then={calls: calls - 1, free: free + 1, work: ite(_ended, work - 1, work)},
    ),
    Rule(
        "unwind.undo.failed", UNWIND, ~_keeps_reservation, JOB, outcome=(UNDO, ("failed",)), cites="FI15",
        fires={job.slot: "quarantine"},
        then={calls: calls - 1, lost_slots: lost_slots + 1, work: ite(_ended, work - 1, work)},
    ),
    Rule(
        "unwind.undo.ok.then_kv", UNWIND, _keeps_reservation, JOB, outcome=(UNDO, ("ok",)), begins=UNRESERVE,
        cites="§6.2", fires={job.slot: "release"}, then={free: free + 1},
    ),
    Rule(
        "unwind.undo.failed.then_kv", UNWIND, _keeps_reservation, JOB, outcome=(UNDO, ("failed",)), begins=UNRESERVE,
        cites="FI15", fires={job.slot: "quarantine"}, then={lost_slots: lost_slots + 1},
    ),
    Rule(
        "unwind.unreserve.ok.prefill", UNWIND, ~job.extends, JOB, outcome=(UNRESERVE, ("ok",)), cites="§7",
        fires={job.kv: "rollback", own_seq.record: "undo_prefill"},
        then={calls: calls - 1, work: work - 1, kv_free: kv_free + 1, kv_short: False},
    ),
    Rule(
        "unwind.unreserve.ok.extend", UNWIND, job.extends, JOB, outcome=(UNRESERVE, ("ok",)), cites="§7",
        fires={job.kv: "rollback", own_seq.record: "undo_extend"},
        then={calls: calls - 1, work: work - 1, job.extends: False},
    ),
    Rule(
        "unwind.unreserve.failed", UNWIND, over=JOB, outcome=(UNRESERVE, ("failed",)), cites="§7",
        fires={job.kv: "unknown", own_seq.record: "unknown"},
        then={calls: calls - 1, work: work - 1, lost_kv: lost_kv + 1, job.extends: False},
    ),
)  # fmt: skip
