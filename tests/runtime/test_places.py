"""Elements are found by their state: everywhere the guard may hold, in the order of their coming there."""

from __future__ import annotations

import random
from typing import Any

from machines.protocol import RULEBOOK
from runtime.compiled import Program

PROGRAM = Program(RULEBOOK, {"policy": 1, "jobs": 100})
JOBS = [rule for rule in PROGRAM.rules.values() if rule.sort == "job"]


def test_jobs_have_places_and_sequences_have_none() -> None:
    """A job's rules change its sequence's record, so a sequence may move without a step of its own."""
    assert PROGRAM.places == {"job": "state", "seq": ""}


def randomly(record: Any, sort: str | None, rng: random.Random) -> None:
    for v in RULEBOOK.variables:
        if not v.world and (v.sort.name if v.sort else None) == sort:
            setattr(record, v.name, rng.randrange(len(v.domain.enum) if v.domain.enum else 3))


def test_no_guard_holds_outside_of_its_places() -> None:
    """Over random states of everything; guards hold often enough for that to mean anything."""
    rng, holds, outside = random.Random(1), 0, 0
    for _ in range(4000):
        shared, job = PROGRAM.shared(), PROGRAM.element("job")
        job.seq_of = PROGRAM.element("seq")
        for record, sort in ((shared, None), (job, "job"), (job.seq_of, "seq")):
            randomly(record, sort, rng)
        for rule in JOBS:
            assert rule.places is not None
            held = rule.guard(shared, job)
            assert not held or job.state in rule.places, f"{rule.id} in {job.state}"
            assert not held or rule.may(shared), f"{rule.id}, of the shared variables"
            holds += held
            outside += job.state not in rule.places
    assert holds > 4000
    assert outside > 100_000
