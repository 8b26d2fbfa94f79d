"""What is told about an executor while it runs: counters, gauges, log lines, files about incidents, dumps.

Theory. The observer is told of every step after it was made, outside the monitor, and decides nothing: without it the
executor does the same. What a step means to a reader (a job ended, a recovery began) is read from the rulebook's tables
once, so a new rule is reported without anybody thinking of it.

A job is counted twice, each time under one lock: when it was accepted, and in the first step that ends it, Quarantined
included, since from there its memory may never come back. One that an ended executor leaves in a call that never
returned is counted as abandoned. So what was accepted is always what ended and what is there (F51).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from queue import Empty
from typing import Any

from machines.device import DeviceState
from machines.job import JobState
from machines.protocol.host import leading
from runtime.buffers import PoolCounts
from runtime.calls import DeviceCalls
from runtime.compiled import CompiledRule, IllegalTransition
from runtime.dump import DumpSink
from runtime.engine import Engine
from runtime.health import MONITOR_S, Health
from runtime.incident import Incident, Incidents, dossier, moment
from runtime.job import JobContext
from runtime.logs import Events, of_status
from runtime.metrics import Ledger, Metrics
from runtime.recorder import Recorder
from runtime.status import Status, StatusKind

__all__ = ["Observer"]

NO_SLOTS = PoolCounts(0, 0, 0, 0, 0)
CLOSE_S = 2.0  # for files that are still to be written
UNANSWERED = Status(kind=StatusKind.UNAVAILABLE, stage="close")


class Observer:
    """Of one executor. Thread-safe. jobs: the contexts that it knows."""

    def __init__(
        self, calls: DeviceCalls, engine: Engine, events: Events, jobs: Callable[[], Collection[JobContext]],
        health: Callable[[], Health],
    ) -> None:  # fmt: skip
        self.calls, self.engine, self.events, self.jobs, self.health = calls, engine, events, jobs, health
        self.metrics = Metrics(self.ledger)
        self.metrics.generation()
        rules = [r.rule for r in engine.program.rules.values()]
        self.ends = leading(rules, "state", JobState.Succeeded, JobState.Failed, JobState.Quarantined)
        self._fails = leading(rules, "device", DeviceState.Failed)
        self._recovers = leading(rules, "device", DeviceState.Recovering)
        self._drains = leading(rules, "device", DeviceState.Draining)
        self._serves = leading(rules, "device", DeviceState.Ready)
        self.steps = leading(rules, "device", *DeviceState)  # of the device's life
        self._mu = threading.Lock()
        config = calls.config
        self._recorder = Recorder("calexec recorder", self._not_written)
        where, dumps = config.incident_directory, config.dump_directory
        self._incidents = Incidents(Path(where), config.incidents_max) if where else None
        take = self._recorder.hand_over
        self._dumps = DumpSink(Path(dumps), config.dump_bytes_max, take) if config.dump else None
        calls.on_violation = self.violation

    # -- jobs ----------------------------------------------------------------------------------------------------------
    def accepted(self, context: JobContext) -> None:
        self.metrics.accepted()
        if self._dumps:
            self._dumps.input(context)

    def refused(self, status: Status) -> None:
        self.metrics.refused(status)
        self.events.info("refused", str(status), **of_status(status))

    def after(self, rule: CompiledRule, context: JobContext, status: Status) -> None:
        """A step of the job, which may have ended. status: what its client is told, or was. Counted is the first end: a
        quarantined job fails later."""
        with self._mu:
            if rule.id in self.ends and not context.ended:
                context.ended = True
                self.metrics.ended(self.ends[rule.id], status, context.timings)

    def answers(self, context: JobContext, status: Status) -> None:
        """Before the client has it."""
        if self._dumps:
            self._dumps.output(context, status)

    def answered(self, status: Status) -> None:
        if not status.ok:
            self.events.warning("job failed", str(status), **of_status(status))

    # -- the device ----------------------------------------------------------------------------------------------------
    def step(self, rule: CompiledRule) -> None:
        """A step of the device's life: one of `steps`."""
        state, generation = self.steps[rule.id].name, self.calls.generation_id
        self.events.info("lifecycle", f"{state}: {rule.id}", state=state, rule=rule.id, generation=generation)
        if rule.id in self._recovers or rule.id in self._fails:
            cause = self.cause(rule.id)
            if rule.id in self._recovers:
                self.metrics.recovery(cause)
            self._record(Incident(state, rule.id, cause, generation))

    def generation(self, rule: CompiledRule) -> None:
        """A generation began."""
        self.metrics.generation()
        number = self.calls.generation_id
        self.events.warning("generation", f"generation {number} begins ({rule.id})", generation=number, rule=rule.id)

    def cause(self, recovery: str) -> str:
        """The rule that began the drain before this recovery, the present one: the first one since the device was
        Ready, by the journal, since steps may be told out of their order. Without one, as when the start fails, it is
        the recovery itself."""
        cause = recovery
        for entry in self.engine.journal.backwards():
            if entry.rule in self._serves:
                break
            if entry.rule in self._drains:
                cause = entry.rule
        return cause

    # -- files ---------------------------------------------------------------------------------------------------------
    def _record(self, incident: Incident) -> None:
        if self._incidents:
            incidents, then = self._incidents, moment(self.engine, self.jobs())

            def write() -> None:
                what = dossier(incident, then, self.calls, self.engine, self.metrics, self.health)
                path = incidents.write(incident, what)
                self.events.info("incident", f"written: {path.name}", file=path.name, generation=incident.generation)

            self._recorder.hand_over("incident", write)

    def _not_written(self, kind: str, why: str) -> None:
        self.metrics.not_written(kind)
        self.events.error("not written", f"{kind}: {why}", kind=kind)

    # -- what must never be --------------------------------------------------------------------------------------------
    def violation(self, kind: str, **fields: Any) -> None:
        self.metrics.violation(kind)
        self.events.error("violation", kind, kind=kind, **fields)

    def died(self, actor: str, doing: str, error: BaseException) -> None:
        """A bug of ours ended an actor."""
        if isinstance(error, IllegalTransition):
            self.violation("illegal transition", text=str(error))
        self.events.critical("actor died", f"{actor} died while {doing}", error, actor=actor, doing=doing)
        self._record(Incident("actor died", "", f"{actor}: {type(error).__name__}", self.calls.generation_id))

    def abandoned(self) -> None:
        """The executor was stopped the hard way."""
        self.events.error("abandoned", "every job is answered, and nobody is waited for")
        self._record(Incident("abandoned", "", "", self.calls.generation_id))

    def _count_drops(self) -> None:
        while True:
            try:
                slot = self.calls.dropped.get_nowait()
            except Empty:
                return
            self.violation("lease dropped", slot=slot.number, generation=slot.generation_id)

    # -- who asks ------------------------------------------------------------------------------------------------------
    def ledger(self) -> Ledger:
        """What there is now, from pool, KV and engine."""
        self._count_drops()
        pool, kv = self.calls.pool, self.calls.kv
        present, every = pool.counts() if pool else NO_SLOTS, [p.counts() for p in self.calls.pools]
        held = kv.abstract() if kv else {"kv_free": 0, "lost_kv": 0}
        health = self.health()
        try:
            permits, line, waits = self.engine.read(lambda s: (s.permits, s.line, s.waits), MONITOR_S)
        except TimeoutError:
            permits = line = waits = None  # health says why
        return Ledger(
            ready=health.ready,
            live=health.live,
            slots_free=present.free,
            slots_leased=present.leased,
            slots_quarantined=sum(counts.quarantined for counts in every),
            quarantined_bytes=sum(counts.quarantined_bytes for counts in every),
            sequences_free=held["kv_free"],
            sequences_in_doubt=held["lost_kv"],
            jobs=sum(not context.ended for context in self.jobs()),
            jobs_in_flight=permits,
            waits=waits,
            admission_line=line,
            generation=self.calls.generation_id,
        )

    def close(self) -> None:
        """The executor has ended: whatever is left will not end any more."""
        left = self.jobs()
        with self._mu:
            for context in left:
                if not context.ended:
                    context.ended = True
                    result = context.handle.settled
                    self.metrics.abandoned(result.status if result else UNANSWERED, context.timings)
        self._count_drops()
        if not self._recorder.close(CLOSE_S):
            self._not_written("files", f"the disk took longer than {CLOSE_S:g} s")
        self.events.close()
