"""Updates that several rules share, each with its reason."""

from machines.expr import Expr, ite
from machines.job import JobState
from machines.protocol import params as p
from machines.protocol.variables import (
    Work,
    bypassed,
    device,
    fallback,
    free,
    job,
    kv_free,
    kv_short,
    leftovers,
    line,
    lost_kv,
    lost_permits,
    lost_slots,
    mode,
    overtaken,
    own_seq,
    permits,
    recoveries,
    rung,
    seq,
    strikes,
    submitting,
    touching,
    unjudged,
    work,
)
from machines.rulebook import Each

other = job.named("other")
_their = job.at(other)

Updates = dict[Expr, object]
Fires = dict[Expr, str]

JOB = (job.index,)
SEQ = (seq.index,)

# A slot, a KV reservation and a sequence about which nothing is known any more: only a new generation ends the doubt.
QUARANTINE: Fires = {
    job.state: "quarantine",
    job.kv: "unknown",
    job.slot: "quarantine",
    own_seq.record: "unknown",
}
LOSE_BOTH: Updates = {lost_slots: lost_slots + 1, lost_kv: lost_kv + 1}

# The fault controller drains for a device fault, for a bad artifact, for a lifecycle error (§8).
DRAIN_DEVICE: Fires = {device: "drain", mode: "stop"}
DRAIN_ARTIFACT: Fires = {device: "drain", mode: "reject"}
DRAIN_LIFECYCLE: Fires = {device: "drain", mode: "pause"}


def leave_line() -> tuple[dict[Expr, Expr], tuple[Each, ...], dict[Expr, Expr]]:
    """The job leaves the admission line: those behind it move up; a new head starts with no bypass on its account.
    Its updates, for everybody in the line, and of the world."""
    moved = ite(other == job.index, 0, ite(_their.turn > job.turn, _their.turn - 1, _their.turn))
    then = {line: line - 1, bypassed: ite(job.turn == 1, 0, bypassed)}
    truth = {overtaken: ite(job.turn == 1, 0, overtaken)}
    return then, (Each(other, then={_their.turn: moved}),), truth


def judged(is_good: bool) -> tuple[dict[Expr, Expr], tuple[Each, ...]]:
    """The job leaves the order in which outputs are judged: those submitted after it move up. Where it showed that the
    device is broken, what was submitted after it is not to be believed. A job of an ended generation has no place in
    the order of this one. Its updates, and for everybody."""
    after = ~job.old & (_their.behind > job.behind)
    then = {_their.behind: ite(other == job.index, 0, ite(after, _their.behind - 1, _their.behind))}
    believed = _their.suspect if is_good else _their.suspect | after
    return {unjudged: ite(job.old, unjudged, unjudged - 1)}, (
        Each(other, then={**then, _their.suspect: ite(other == job.index, False, believed)}),
    )


def end_of_generation() -> tuple[dict[Expr, object], tuple[Each, ...]]:
    """A new generation begins: its counters start anew, every job that holds something becomes old, sequences lose
    their KV. The pool is new, unless quarantined memory is to be reused: then slots come back one by one."""
    then: dict[Expr, object] = {
        permits: 0,
        work: 0,
        leftovers: leftovers + work,
        submitting: False,
        unjudged: 0,
        lost_slots: 0,
        lost_kv: 0,
        lost_permits: 0,
        strikes: 0,
        kv_free: p.KV.expr,
        kv_short: False,
        free: ite(p.REUSES, free, p.SLOTS.expr),
    }
    ages = ~_their.state.isin(JobState.Absent, JobState.Created)
    return then, (
        Each(other, then={_their.old: ite(ages, True, _their.old), _their.behind: 0, _their.suspect: False}),
        Each(seq.index, fires={seq.record: "lose"}),
    )


NOTHING_TO_READ: Updates = {job.device_work: ite(touching, job.device_work, Work.Idle)}
"""The world's side of giving a job up: how its work ended is read by nobody any more."""

GIVE_UP: Fires = {device: "fail", mode: "stop"}
AT_THE_END: Updates = {rung: 0, recoveries: 0, fallback: False}
"""What nobody reads once the device is Failed."""


def off_the_books() -> dict[Expr, Expr]:
    """A job has given back everything it held: one less of this generation's, or of the ended ones'."""
    return {work: ite(job.old, work, work - 1), leftovers: ite(job.old, leftovers - 1, leftovers)}
