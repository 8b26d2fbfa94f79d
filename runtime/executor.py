"""DeviceExecutor (§5, §6): one device, one rulebook, and the threads that fire its rules.

Theory. What may happen is decided by rules in the engine; what a call does is in `calls`; who takes which rules is in
`cast`, and their threads are the `crew`. Here is what the host can ask for, and what follows a step. Admission takes a
client's job to the submit queue (§6.2); the client waits for that, makes no call itself, and returns with a handle.
Then the submitter calls `infer()`, a wait agent takes the job to its end, and whoever makes the step that claims the
answer resolves the handle (`answers`) and lets the job's record go (`records`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from machines.history import begins_generation
from machines.job import JobState
from machines.protocol import RULEBOOK
from machines.protocol.host import CLOSED, ENDED, READY, SETTLED, leading
from machines.sequence import SequenceState
from machines.slot import SlotState
from runtime.answers import claims, status_of, told
from runtime.calls import DeviceCalls
from runtime.cast import timers
from runtime.compiled import CompiledRule, Program
from runtime.config import Config
from runtime.crew import Crew, thread
from runtime.engine import Engine
from runtime.generations import checked
from runtime.health import MONITOR_S, Health, examine
from runtime.job import Claim, InferenceRequest, InferenceResult, JobContext, JobHandle
from runtime.journal import Journal
from runtime.logs import Events
from runtime.observer import Observer
from runtime.prepare import RequestRefused, check
from runtime.records import FORGET, Full, Records
from runtime.removal import Removals, refused
from runtime.status import Status, StatusKind, not_a_deadline, now_us

__all__ = ["DeviceExecutor", "Refused"]


class Refused(RuntimeError):
    """A request was not accepted; the device was not touched. `status` says why."""

    def __init__(self, status: Status) -> None:
        self.status = status
        super().__init__(str(status))


T = TypeVar("T")
ABANDONED = "abandoned"
LATEST_S = 5.0  # for threads to end and handles to be resolved, once the protocol has ended


class DeviceExecutor:
    """The executor of one device (§5.1-1). Thread-safe. A context manager, which closes it."""

    def __init__(
        self, config: Config, now_us: Callable[[], int] = now_us, crew: Callable[..., Crew] = Crew
    ) -> None:  # fmt: skip
        """Load, verify, open, start. Raises NativeMissing, ManifestError or ExecutorError; then nothing is left behind.

        It is not Ready yet: `wait_ready` waits for the first golden run. now_us: the clock of all its deadlines. crew:
        who drives its actors; another one than threads is for tests (`checker.real`)."""
        self.config = config
        self.events = Events(config.log_level)
        self.calls = DeviceCalls.open(config, self.events)
        self.program = Program.of(RULEBOOK, config.parameters())
        self._ends_generation = {r.id for r in RULEBOOK.rules if begins_generation(r)}
        journal = Journal(new_generation=self._ends_generation, about={"parameters": self.program.values})
        self.engine = Engine(self.program, timers(config, now_us), now_us, journal)
        journal.at_rest = lambda look: self.engine.read(lambda s: look(now_us(), self.program.values_of(s)), MONITOR_S)
        self.records = Records(self.engine, config, self.calls.forget)
        self.observer = Observer(self.calls, self.engine, self.events, self.records.contexts, self.health)
        self.metrics = self.observer.metrics
        self.calls.meanwhile = self.metrics.count
        self._table = self.calls.table()
        self.crew = crew(self.engine, self._table, config, self._died)
        longest_ms, outcomes = config.stuck_ms + config.grace_ms, self.crew.outcomes
        self.removals = Removals(self.engine, self.records, self._table, outcomes, longest_ms, self._died)
        self.engine.on_step = self._after
        self.engine.on_arm = self.crew.clock.wake
        self.calls.rung = lambda: int(self.engine.read(lambda s: s.rung))
        self.calls.fallback = lambda: bool(self.engine.read(lambda s: s.fallback))
        waits = (SETTLED, ENDED, CLOSED, READY)
        self._settled, self._ended, self._closed, self._is_ready = map(self.program.compiled, waits)
        self._queues = leading(RULEBOOK.rules, "state", JobState.Queued)
        self._quarantines = leading(RULEBOOK.rules, "slot", SlotState.Quarantined)
        self._doubts = leading(RULEBOOK.rules, "record", SequenceState.Unknown)
        answers = (r for r in self.program.rules.values() if ("own", "answer") in r.writes and r.id != FORGET)
        self.engine.in_step = dict.fromkeys(answers, claims)
        self._follows = {rule: tuple(self._consequences(rule)) for rule in self.program.rules.values()}
        self._ids = itertools.count(1)
        self._given_back: bool | None = None  # what close() said
        self._closer = threading.Lock()  # one close() at a time
        self.abandoned = False  # it was stopped the hard way
        self._dead = ""  # why nothing is served any more, though the rulebook does not know it
        self.crew.start()

    # -- the host's side ---------------------------------------------------------------------------------------------
    def wait_ready(self, timeout_s: float) -> bool:
        """Whether the device became Ready; False also when it Failed. Raises ValueError for what is no time (F39)."""
        if not 0 <= timeout_s <= threading.TIMEOUT_MAX:
            raise ValueError(f"timeout_s is {timeout_s}; expected 0 to {threading.TIMEOUT_MAX:.0f} seconds")
        return self.engine.wait_for(self._settled, timeout_s) and self.ready()

    def ready(self) -> bool:
        """Whether jobs are served now."""
        return self.health().ready

    @property
    def journal(self) -> Journal:
        """The last steps. `write` makes a file of them."""
        return self.engine.journal

    def health(self) -> Health:
        """Whether it serves, and what each actor does. Answers in bounded time, whatever is frozen (F47)."""
        actors = zip(self.crew.progress, self.crew.threads, strict=True)
        return examine(self.config, actors, self.calls.generation_id, self._serving, self._dead)

    def _serving(self, within_s: float) -> tuple[bool, bool]:
        """Whether jobs are served, and whether all is over."""

        def look(s: Any) -> tuple[bool, bool]:
            return bool(self._is_ready.guard(s, None)), bool(self._ended.guard(s, None))

        found: tuple[bool, bool] = self.engine.read(look, within_s)
        return found

    def enqueue(self, request: InferenceRequest) -> JobHandle:
        """Take a request through admission to the submit queue (§6.2); returns when it is there, or was answered.

        The caller makes no call into CalRT, so that none that hangs can keep it beyond its deadline (F36). Raises
        Refused where the request can never be served, or none are accepted. Everything later is the handle's.
        """
        return self._taken(request, _entered)

    def run(self, request: InferenceRequest) -> InferenceResult:
        """`enqueue`, and wait for the result: the client is woken once. Whoever interrupts it (Ctrl-C) cancels the job;
        `cancel_request` does from any thread. Raises Refused."""
        return self._taken(request, _resolved)

    def _taken(self, request: InferenceRequest, then: Callable[[JobHandle], T]) -> T:
        """What `then` makes of an accepted job; one that is interrupted is taken back."""
        try:
            job = self._arrive(request)
        except Refused as refused:
            self.observer.refused(refused.status)
            raise
        try:
            self.observer.accepted(job.tag)
            return then(job.tag.handle)
        except BaseException:
            self._take_back(job)
            raise

    def cancel_request(self, request_id: int) -> int:
        """Cancel every job of a request that is known now (F12); how many of them had no answer yet."""
        contexts = [c for c in self.records.contexts() if c.request.request_id == request_id]
        return sum(context.handle.cancel() for context in contexts)

    def seq_rm(self, seq_id: int) -> Status:
        """Remove a sequence (§3): its KV is free when this returns OK, also where there was none. Sequences are removed
        one by one: llama's -1, all of them, is INVALID_ARGUMENT, as whatever else is no sequence's number."""
        return refused(seq_id, StatusKind.UNAVAILABLE, self._dead) if self._dead else self.removals.remove(seq_id)

    def switch_model(self, manifest: Path) -> Status:
        """Begin a planned switch (§9.2): jobs on the device end, then the next generation is of this model; if it does
        not come up, the present one comes back. `wait_ready` waits for that. Raises ManifestError or ExecutorError for
        a manifest that is not sound or not true of its calbin; then nothing has changed."""
        if not self.config.switches:
            return Status(kind=StatusKind.NOT_SUPPORTED, stage="switch_model", text="the key switches is false")
        asked = checked(self.calls.library, manifest)
        switch = self.program.rules["client.switch"]
        if self.engine.fire((switch,), then=lambda: self.calls.ask(asked)) is None:
            return Status(kind=StatusKind.UNAVAILABLE, stage="switch_model", text="the device is not serving")
        return Status(kind=StatusKind.OK)

    def close(self) -> bool:
        """No new jobs; what is queued is answered, what is on the device is waited for, within `close_ms` (FI13).

        What has not ended LATEST_S later is abandoned, so this returns whatever the device does (F49). Idempotent, also
        while another thread is in it (F48). True: closed in order; what is in quarantine stays where it is all the
        same. False: the device Failed, or something did not end; then leaving the process is the host's decision."""
        self.engine.fire((self.program.rules["client.close"],))
        with self._closer:
            if self._given_back is None:
                self._given_back = self._close()
        return self._given_back

    def _close(self) -> bool:
        if not self.engine.wait_for(self._ended, self.config.close_ms / 1000 + LATEST_S):
            self.abandon()
        latest_us = now_us() + int(LATEST_S * 1e6)
        for context in self.records.contexts():
            if context.handle.wait_until(latest_us) is None:
                self.abandon()
        closed = bool(self.engine.read(lambda s: self._closed.guard(s, None)))
        self.crew.stop(LATEST_S)
        given_back = closed and not self.crew.left() and self._give_back()
        self.observer.close()
        return given_back

    def _give_back(self) -> bool:
        """Release what the device does not need any more; these are calls, too, and might not return."""
        said: list[bool] = []
        caller = thread("release", lambda: said.append(self.calls.close()))
        caller.start()
        caller.join(LATEST_S)
        if not said:
            self.abandon()
        return said == [True]

    def abandon(self) -> None:
        """The hard way to stop (F49): every job is answered with UNAVAILABLE, nothing is served any more, actors take
        no further rules, and nobody is waited for. It takes no lock that anybody holds while calling CalRT.

        What the device does is not known then, and its memory is never given back: leave the process. Harmless when it
        comes again, or after `close`; from any thread, but not from a signal's handler."""
        self._dead, self.abandoned = self._dead or ABANDONED, True
        self._answer_all(StatusKind.UNAVAILABLE, ABANDONED)
        self.engine.fire((self.program.rules["client.give_up"],))  # what comes back from a call finds it Failed
        self.engine.stop()
        self.observer.abandoned()

    def __enter__(self) -> DeviceExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- arriving ----------------------------------------------------------------------------------------------------
    def _arrive(self, request: InferenceRequest) -> Any:
        """The job's record, in the admission line. Raises Refused; the device is not touched."""
        model = self.calls.model
        self._refuse_if_dead(request)
        if model is None:
            raise self._refusal(request, StatusKind.UNAVAILABLE, "no model has been configured yet")
        try:
            contract = check(request, model)
            if wrong := not_a_deadline(request.deadline_us):
                raise self._refusal(request, StatusKind.INVALID_ARGUMENT, wrong)
            request = request.owned()
        except (RequestRefused, TypeError) as refused:
            raise self._refusal(request, StatusKind.INVALID_ARGUMENT, str(refused)) from None
        if status := self.calls.impossible(request):
            raise self._refusal(request, status.kind, status.text)
        job_id = next(self._ids)
        handle = JobHandle(job_id, lambda: self._cancel(context))
        context = JobContext(job_id, request, handle, np.empty(contract.vocabulary, np.float32), model)
        try:
            job = self.records.add(context)
            self._comes_in(job)
        except Full as full:
            raise self._refusal(request, StatusKind.RESOURCE_EXHAUSTED, str(full)) from None
        except BaseException:
            if context.record is not None:
                self._take_back(context.record)
            raise
        return job

    def _comes_in(self, job: Any) -> None:
        context: JobContext = job.tag
        request = context.request
        context.generation_id = self.calls.generation_id
        context.timings.reach("accepted")
        self._refuse_if_dead(request)  # who answered all may not have seen this one
        kind = "client.arrive.extend" if request.past_len else "client.arrive.prefill"
        if self.engine.fire((self.program.rules[kind],), job) is None:
            raise self._refusal(request, StatusKind.UNAVAILABLE, "the executor is closing")
        context.arrived = True

    def _take_back(self, job: Any) -> None:
        """Its client was refused, or interrupted (Ctrl-C), and has no handle (F11)."""
        if not self._cancel(job.tag) and not job.tag.arrived:
            self.records.remove(job)

    def _refuse_if_dead(self, request: InferenceRequest) -> None:
        if self._dead:
            raise self._refusal(request, StatusKind.UNAVAILABLE, f"nothing is served any more: {self._dead}")

    def _refusal(self, request: InferenceRequest, kind: StatusKind, text: str) -> Refused:
        status = Status(
            kind=kind, stage="enqueue", text=text, request_id=request.request_id, seq_id=request.seq_id,
            generation=self.calls.generation_id,
        )  # fmt: skip
        return Refused(status)

    def _cancel(self, context: JobContext) -> bool:
        record = context.record
        return record is not None and self.engine.fire((self.program.rules["client.cancel"],), record) is not None

    # -- after each step, outside the monitor and before anybody is woken ----------------------------------------------
    def _after(self, rule: CompiledRule, element: Any) -> None:
        follows = iter(self._follows.get(rule, ()))
        try:
            for what_follows in follows:
                what_follows(rule, element)
        except BaseException:  # a bug, or Ctrl-C: what is left is done all the same, and who was answered is told
            self._after_all(follows, rule, element)
            raise

    @staticmethod
    def _after_all(follows: Iterable[Callable[[CompiledRule, Any], None]], rule: CompiledRule, element: Any) -> None:
        for what_follows in follows:
            with suppress(Exception):  # the first one is told
                what_follows(rule, element)

    def _consequences(self, rule: CompiledRule) -> Iterator[Callable[[CompiledRule, Any], None]]:
        """What follows every step of a rule, in this order."""
        answers, ends = rule in self.engine.in_step, rule.id in self.observer.ends
        if rule.id in self._ends_generation:
            yield self._new_generation
        if rule.id in self.observer.steps:
            yield lambda rule, element: self.observer.step(rule)
        if rule.sort != "job" or rule.id == FORGET:
            return
        if rule.id in self._quarantines:
            yield lambda rule, job: self.calls.quarantine(job.tag)
        if rule.id in self._doubts:
            yield lambda rule, job: self.calls.doubt(job.tag)
        if answers or ends:
            yield self._answer
        if answers or rule.rule.begins is None:
            yield lambda rule, job: self.records.try_to_forget(job)
        if rule.rule.begins is None:
            yield self._has_entered if rule.id in self._queues else self._may_have_entered
        if answers:  # last, so that its client finds nothing left to be done, and nobody in its way
            yield self._tell

    def _new_generation(self, rule: CompiledRule, element: Any) -> None:
        self.calls.end_generation()
        self.observer.generation(rule)
        self.records.try_to_forget_all()

    @staticmethod
    def _tell(rule: CompiledRule, job: Any) -> None:
        if job.tag.handle.settled:
            job.tag.handle.tell()

    @staticmethod
    def _has_entered(rule: CompiledRule, job: Any) -> None:
        job.tag.handle.entered.open()

    @staticmethod
    def _may_have_entered(rule: CompiledRule, job: Any) -> None:
        """It was answered, and holds nothing any more."""
        if job.tag.handle.settled:
            job.tag.handle.entered.open()

    def _answer(self, rule: CompiledRule, job: Any) -> None:
        """Count a job that has ended; then resolve the handle of one whose answer was claimed."""
        if (status := told(job)) is None:
            return
        self.observer.after(rule, job.tag, status)
        self._settle(job.tag, status)

    def _settle(self, context: JobContext, status: Status) -> None:
        """Timings as they are now: those of a job that goes on without its client change."""
        if context.handle.settled:
            return
        result = InferenceResult(status, context.logits if status.ok else None, context.timings.copy())
        self.observer.answers(context, status)
        if context.handle.settle(result):
            self.observer.answered(status)

    # -- the end of an actor, and of everything -----------------------------------------------------------------------
    def _died(self, name: str, doing: str, error: Exception) -> None:
        """A bug ended an actor: nothing is served any more, and nobody is kept waiting (F47)."""
        try:
            self.observer.died(name, doing, error)
        finally:  # the bug may be the observer's
            self._dead = f"{name} died"
            self._answer_all(StatusKind.INTERNAL, self._dead)
            self.engine.fire((self.program.rules["client.give_up"],))

    def _answer_all(self, kind: StatusKind, why: str) -> None:
        """Without a lock: a copy is one step. Who arrives later sees `_dead`, which was set before."""
        for context in self.records.contexts():
            self._settle(context, status_of(context, kind, Claim(why, 0, context.failure)))
            context.handle.tell()
            context.handle.entered.open()


def _entered(handle: JobHandle) -> JobHandle:
    handle.entered.wait()
    return handle


def _resolved(handle: JobHandle) -> InferenceResult:
    result = handle.wait_until(None)
    assert result is not None
    return result
