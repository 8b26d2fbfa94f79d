"""What systems of this kind did in the field, by number: a test in whose name the number stands (`test_f01_...`) is
about it. Each is a kind of failure that was looked for here too; the sentence is what must happen instead."""

from __future__ import annotations

__all__ = ["FAILURES"]

FAILURES = {
    "F01": "Cancel and the job's end meet: one end, one answer, wherever they meet.",
    "F02": "Cancel, deadline and end in every order, at every pause: the same.",
    "F03": "Cancelled while Wait() blocks, which then succeeds: the length is committed, the lease comes back.",
    "F04": "Two endings for one job: the first wins, the second is counted.",
    "F05": "A completion for a job that is no longer known: counted, dropped.",
    "F08": "Cancelling a queued job leaves other clients' running jobs alone, to the bit.",
    "F11": "The client has gone: nothing of it is submitted any more.",
    "F12": "A request of several jobs is cancelled: all of them stop.",
    "F13": "A cancelled or late job writes into nobody's memory.",
    "F14": "Two in flight share no memory and no sequence.",
    "F15": "What is freed is what was not committed, not what was planned.",
    "F17": "Closed with a job in flight: it waits or says so, and touches nothing.",
    "F18": "The submitter looks at a job that has ended: a loud failure, never its memory.",
    "F19": "Deadline and end in one moment: nothing leaks.",
    "F21": "A failed submit may have started: treated as the vendor fact says, the worst by default.",
    "F24": "Failed or cancelled after any step of enqueue: all is given back.",
    "F25": "Capacity that quarantine takes away trips a drain, never a silent stall.",
    "F26": "Timers fire when no new work comes.",
    "F27": "Capacity is free and somebody waits: progress in bounded time.",
    "F29": "A request larger than all KV is refused at once; the line goes on.",
    "F31": "Waiting for KV costs one Apply() for each wake-up, hardly any CPU and a bounded log.",
    "F32": "Nobody in the line is overtaken more often than is proved.",
    "F34": "An idle executor sleeps.",
    "F35": "A Wait() that never returns: the deadline fires on another thread.",
    "F36": "A driver that spins with its lock held: other clients are answered.",
    "F37": "Never started, starved, slow and hung are four verdicts.",
    "F39": "The wall clock changes nothing; what is no deadline is refused.",
    "F40": "A reset that lied: the golden run fails, bounded, then Failed.",
    "F42": "No submit slips into a generation that is half configured.",
    "F44": "Every code keeps its number and has its class.",
    "F45": "A sticky error is latched until a golden run has passed.",
    "F47": "Any actor that hangs makes readiness fail, in bounded time.",
    "F48": "A second stop while closing: every handle is answered.",
    "F49": "A close that hangs has a hard tier, and an exit code of its own.",
    "F51": "Only milestones that were reached are measured; counters add up.",
    "F53": "A gauge is the ledger's, after every fault.",
    "F55": "NaN or Inf anywhere in the row: not delivered, not committed.",
    "F64": "Nothing grows with the number of jobs.",
}
