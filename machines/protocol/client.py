"""What the host may do, at any moment and never by obligation."""

from machines.device import DeviceState
from machines.job import JobState
from machines.protocol import params as p
from machines.protocol.actors import ADMISSION, CLIENT
from machines.protocol.common import AT_THE_END, DRAIN_LIFECYCLE, GIVE_UP, JOB, SEQ
from machines.protocol.effects import REMOVE
from machines.protocol.variables import (
    calls,
    device,
    fallback,
    job,
    kv_free,
    kv_short,
    line,
    lost_kv,
    pending,
    seq,
    serving,
    shutdown,
)
from machines.rulebook import Rule
from machines.sequence import SequenceState
from machines.shutdown import ShutdownState

_accepting = (job.state == JobState.Absent) & (shutdown == ShutdownState.Open)

RULES = (
    Rule(
        "client.arrive.prefill", CLIENT, _accepting, JOB, cites="§6.2",
        fires={job.state: "arrive"}, then={job.extends: False, line: line + 1, job.turn: line + 1},
        about="enqueue() of a job that begins its sequence",
    ),
    Rule(
        "client.arrive.extend", CLIENT, _accepting, JOB, cites="§6.2",
        fires={job.state: "arrive"}, then={job.extends: True, line: line + 1, job.turn: line + 1},
        about="enqueue() of a job that continues its sequence",
    ),
    Rule(
        "client.cancel", CLIENT, ~(job.state == JobState.Absent) & pending, JOB, cites="§5.1-7",
        fires={job.state: "cancel", job.answer: "cancel"},
        about="the client has its answer at once; the resources go their own way",
    ),
    Rule(
        "client.remove", CLIENT, serving & (seq.record == SequenceState.Live), SEQ, cites="§3", begins=REMOVE,
        fires={seq.record: "remove"}, then={calls: calls + 1},
        about="seq_rm of a sequence that has KV",
    ),
    Rule(
        "client.remove.ok", ADMISSION, over=SEQ, outcome=(REMOVE, ("ok",)), cites="§3",
        fires={seq.record: "removed"}, then={calls: calls - 1, kv_free: kv_free + 1, kv_short: False},
    ),
    Rule(
        "client.remove.failed", ADMISSION, over=SEQ, outcome=(REMOVE, ("failed",)), cites="§7",
        fires={seq.record: "unknown"}, then={calls: calls - 1, lost_kv: lost_kv + 1},
    ),
    Rule(
        "client.discard", CLIENT, serving & ~(seq.record == SequenceState.Live), SEQ, cites="§3",
        fires={seq.record: "discard"},
        about="seq_rm of a sequence that has no KV in this generation",
    ),
    Rule(
        "client.switch", CLIENT, p.SWITCHES.expr & (device == DeviceState.Ready) & (shutdown == ShutdownState.Open),
        cites="§9.2", fires=DRAIN_LIFECYCLE, then={fallback: True},
        about="planned model switch; the present model is known to be good",
    ),
    Rule(
        "client.give_up", CLIENT, ~(device == DeviceState.Failed) & ~(shutdown == ShutdownState.Closed), cites="§13.2",
        fires=GIVE_UP, then=AT_THE_END,
        about="a bug ended one of our actors, or the host's patience with closing is over: nothing is served any more",
    ),
    Rule("client.close", CLIENT, shutdown == ShutdownState.Open, cites="FI13", fires={shutdown: "close"}),
)  # fmt: skip
