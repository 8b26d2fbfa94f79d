"""Which jobs and sequences an executor knows: their records in the engine, and when these are of no more use.

Theory. The rulebook knows a fixed number of records that are used again and again; here a record is made when a job
arrives or a sequence is first named, and goes when nothing needs it: a job's once it has ended, was answered and holds
nothing (`records.forget` says so), a sequence's once it was removed and no job names it. So nothing here grows with the
number of jobs served (F64), and both are bounded at any moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from runtime.compiled import Rejected
from runtime.config import Config
from runtime.engine import Engine
from runtime.job import JobContext

__all__ = ["FORGET", "Full", "Records"]

FORGET = "records.forget"  # after which nothing follows


class Full(RuntimeError):
    """No more jobs, or no more sequences, may be known at once."""


class Records:
    """Thread-safe. jobs: the context of each record. sequences: the record of each of the host's numbers.

    forgotten: called with the number of a sequence that is not known any more."""

    def __init__(self, engine: Engine, config: Config, forgotten: Callable[[int], None]) -> None:
        self._engine, self._config, self._forgotten = engine, config, forgotten
        rules = engine.program.rules
        self._forget, self._discard = (rules[FORGET],), (rules["client.discard"],)
        self.sequences_max = config.jobs_max + config.sequences_max
        self._mu = threading.Lock()
        self.jobs: dict[Any, JobContext] = {}
        self.sequences: dict[int, Any] = {}
        self._leaving: set[Any] = set()  # removed sequences that an ended job still names

    def contexts(self) -> list[JobContext]:
        """Of all jobs. Without a lock: a copy is one step."""
        return list(self.jobs.values())

    # -- jobs ----------------------------------------------------------------------------------------------------------
    def add(self, context: JobContext) -> Any:
        """The record of a job that arrives. Raises Full."""
        seq_id = context.request.seq_id
        with self._mu:
            if len(self.jobs) >= self._config.jobs_max:
                raise Full(f"{self._config.jobs_max} jobs, jobs_max")
            sequence = self._sequence(seq_id)
            job = self._engine.add("job", context, (context.job_id, seq_id), seq_of=sequence)
            context.record = job
            self.jobs[job] = context
        return job

    def try_to_forget(self, job: Any) -> None:
        """Its record is of no more use once it has ended, is answered, and holds nothing."""
        if job.tag.handle.settled and self._engine.fire(self._forget, job):
            self.remove(job)

    def try_to_forget_all(self) -> None:
        """What was in doubt about a job ends with its generation."""
        with self._mu:
            known = list(self.jobs)
        for job in known:
            self.try_to_forget(job)

    def remove(self, job: Any) -> None:
        with self._mu:
            self.jobs.pop(job, None)
        self._engine.remove("job", job)
        job.tag.let_go()
        if job.seq_of in self._leaving:
            self.forget_sequence(job.seq_of.tag, job.seq_of)

    # -- sequences -----------------------------------------------------------------------------------------------------
    def sequence(self, seq_id: int) -> Any:
        """None: nobody has named it."""
        with self._mu:
            return self.sequences.get(seq_id)

    def _sequence(self, seq_id: int) -> Any:
        """The record of a job's sequence; made when it is first named."""
        if seq_id not in self.sequences:
            if len(self.sequences) >= self.sequences_max:
                self._sweep()
            if len(self.sequences) >= self.sequences_max:
                raise Full("too many sequences; seq_rm some")
            self.sequences[seq_id] = self._engine.add("seq", seq_id)
        self._leaving.discard(self.sequences[seq_id])
        return self.sequences[seq_id]

    def forget_sequence(self, seq_id: int, sequence: Any) -> None:
        """A removed one is not known any more as soon as no job names it, unless a job has begun it again."""
        with self._mu:
            if any(job.seq_of is sequence for job in self.jobs):
                self._leaving.add(sequence)
                return
            self._leaving.discard(sequence)
            if self.sequences.get(seq_id) is sequence:
                self._drop_if_empty(seq_id, sequence)

    def _sweep(self) -> None:
        """Jobs that continue a sequence there is not leave a record each, and nobody need ever remove them: forget what
        holds nothing and no job names. `_mu` is held."""
        named = {job.seq_of for job in self.jobs}
        for seq_id, sequence in list(self.sequences.items()):
            if sequence not in named:
                self._drop_if_empty(seq_id, sequence)

    def _drop_if_empty(self, seq_id: int, sequence: Any) -> None:
        if self._holds_nothing(sequence):
            del self.sequences[seq_id]
            self._leaving.discard(sequence)
            self._forgotten(seq_id)
            self._engine.remove("seq", sequence)

    def _holds_nothing(self, sequence: Any) -> bool:
        try:
            return self._engine.fire(self._discard, sequence) is not None
        except Rejected:
            return False
