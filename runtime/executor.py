"""DeviceExecutor (§5, §6): one device, one rulebook, and the threads that fire its rules.

Theory. What may happen is decided by rules in the engine; what a call does is in `calls`; here is who does what. Each
actor of the protocol has its threads (`CAST`), and they all run the same generator. Admission takes a client's job to
the submit queue (§6.2); the client waits for that, makes no call itself, and returns with a handle. Then the submitter
calls `infer()`, a wait agent takes the job to its end, and whoever makes the step that claims the answer resolves the
handle. Time is one more thread, which fires the clock's rules when their timers are due.

Wait agents: as many as may be stuck in a `Wait()` that never returns, besides those that jobs need; so nobody has to be
replaced when one is abandoned.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from attrs import evolve

from machines.answer import AnswerState
from machines.job import JobState
from machines.protocol import RULEBOOK
from machines.protocol.host import CLOSED, ENDED, READY, SETTLED, leading
from machines.protocol.variables import JobCall
from machines.rulebook import Effect, Rule
from runtime.actors import Outcomes, Progress, actor, drive
from runtime.calls import DeviceCalls, checked
from runtime.cast import CAST, timers
from runtime.compiled import CompiledRule, Program, Rejected
from runtime.config import Config
from runtime.engine import Engine, Waiter
from runtime.health import Health, examine
from runtime.job import InferenceRequest, InferenceResult, JobContext, JobHandle
from runtime.journal import Journal
from runtime.logs import Events
from runtime.observer import Observer
from runtime.prepare import RequestRefused, check
from runtime.status import Status, StatusKind, not_a_deadline, now_us

__all__ = ["DeviceExecutor", "Refused"]


class Refused(RuntimeError):
    """A request was not accepted; the device was not touched. `status` says why."""

    def __init__(self, status: Status) -> None:
        self.status = status
        super().__init__(str(status))


ANSWERS = {
    AnswerState.Ok: StatusKind.OK,
    AnswerState.Cancelled: StatusKind.CANCELLED,
    AnswerState.DeadlineExceeded: StatusKind.DEADLINE_EXCEEDED,
    AnswerState.Error: None,
}
VERDICTS = {  # of a deadline, by its rule (F37)
    "clock.admission": "never started: KV and a prepared slot were not had by the admission deadline",
    "clock.queue": "starved: prepared, and not submitted by the queue deadline",
    "clock.request": "slow: on the device when the request's own deadline passed; the device goes on",
    "clock.execution": "hung: on the device beyond the execution deadline; the device is drained",
}
ABANDONED = "abandoned"
THREAD = "calexec"  # what the names of threads begin with
LATEST_S = 5.0  # for threads to end and handles to be resolved, once the protocol has ended


class DeviceExecutor:
    """The executor of one device (§5.1-1). Thread-safe. A context manager, which closes it."""

    def __init__(self, config: Config, now_us: Callable[[], int] = now_us) -> None:
        """Load, verify, open, start. Raises NativeMissing, ManifestError or ExecutorError; then nothing is left behind.

        It is not Ready yet: `wait_ready` waits for the first golden run. now_us: the clock of all its deadlines."""
        self.config = config
        self._mu = threading.Lock()  # of the jobs and sequences below
        self._jobs: dict[Any, JobContext] = {}
        self.events = Events(config.log_level)
        self.calls = DeviceCalls.open(config, self.events)
        self.program = Program(RULEBOOK, config.parameters())
        self._ends_generation = {r.id for r in self.program.rules.values() if ("any", "old") in r.writes}
        journal = Journal(new_generation=self._ends_generation, about={"parameters": self.program.values})
        self.engine = Engine(self.program, timers(config, now_us), now_us, journal)
        self.observer = Observer(self.calls, self.engine, self.events, self._known_jobs, self.health)
        self.metrics = self.observer.metrics
        self.engine.on_step = self._after
        self.engine.on_arm = self._wake_clock
        self.calls.rung = lambda: int(self.engine.read(lambda s: s.rung))
        self._alarm = Progress("clock")
        self.calls.fallback = lambda: bool(self.engine.read(lambda s: s.fallback))
        self.progress: list[Progress] = []
        self._outcomes, self._table = Outcomes(self.program), self.calls.table()
        waits = (SETTLED, ENDED, CLOSED, READY)
        self._settled, self._ended, self._closed, self._is_ready = map(self.program.compiled, waits)
        self._queues = leading(RULEBOOK.rules, "state", JobState.Queued)
        self._forget = (self.program.rules["records.forget"],)
        self._claims = {r.id for r in self.program.rules.values() if ("own", "answer") in r.writes}
        self._ids = itertools.count(1)
        self._sequences: dict[int, Any] = {}
        self._leaving: set[Any] = set()  # removed sequences that an ended job still names
        self._clock = threading.Event()
        self._closing = False
        self._given_back: bool | None = None  # what close() said
        self._closer = threading.Lock()  # one close() at a time
        self.abandoned = False  # it was stopped the hard way
        self._dead = ""  # why nothing is served any more, though the rulebook does not know it
        self._threads = [*self._cast(), self._thread(self._alarm.name, self._run_clock)]
        self.progress.append(self._alarm)
        for thread in self._threads:
            thread.start()

    # -- the host's side ---------------------------------------------------------------------------------------------
    def wait_ready(self, timeout_s: float) -> bool:
        """Whether the device became Ready; False also when it Failed. Raises ValueError for what is no time (F39)."""
        if not 0 <= timeout_s <= threading.TIMEOUT_MAX:
            raise ValueError(f"timeout_s is {timeout_s}; expected 0 to {threading.TIMEOUT_MAX:.0f} seconds")
        return self._await(self._settled, timeout_s) and self.ready()

    def ready(self) -> bool:
        """Whether jobs are served now."""
        return self.health().ready

    @property
    def journal(self) -> Journal:
        """The last steps. `write` makes a file of them."""
        return self.engine.journal

    def health(self) -> Health:
        """Whether it serves, and what each actor does. Answers in bounded time, whatever is frozen (F47)."""
        return examine(
            self.config, zip(self.progress, self._threads, strict=False), self.calls.generation_id, self._serving,
            self._dead,
        )  # fmt: skip

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
        try:
            job = self._arrive(request)
        except Refused as refused:
            self.observer.refused(refused.status)
            raise
        self.observer.accepted(job.tag)
        handle: JobHandle = job.tag.handle
        try:
            handle.entered.wait()
        except BaseException:  # its client was interrupted (Ctrl-C) and has no handle (F11)
            handle.cancel()
            raise
        return handle

    def cancel_request(self, request_id: int) -> int:
        """Cancel every job of a request that is known now (F12); how many of them had no answer yet."""
        contexts = [c for c in list(self._jobs.values()) if c.request.request_id == request_id]
        return sum(context.handle.cancel() for context in contexts)

    def seq_rm(self, seq_id: int) -> Status:
        """Remove a sequence (§3): its KV is free when this returns OK."""
        with self._mu:
            sequence = self._sequences.get(seq_id)
        if self._dead:
            return Status(kind=StatusKind.UNAVAILABLE, stage="seq_rm", text=self._dead, seq_id=seq_id)
        if sequence is None:
            return Status(kind=StatusKind.OK, seq_id=seq_id)
        rules = self.program.rules
        try:
            rule = self.engine.fire((rules["client.remove"], rules["client.discard"]), sequence)
        except Rejected as rejected:
            return Status(kind=StatusKind.UNAVAILABLE, stage="seq_rm", text=rejected.status, seq_id=seq_id)
        if rule is None:
            return Status(kind=StatusKind.UNAVAILABLE, stage="seq_rm", text="the device is not serving", seq_id=seq_id)
        observed = "ok"
        if rule.rule.begins is not None:
            observed = self._aside(rule.rule.begins, sequence)
        if observed == "ok":
            self._forget_sequence(seq_id, sequence)
            return Status(kind=StatusKind.OK, seq_id=seq_id)
        return Status(
            kind=StatusKind.INTERNAL, stage="seq_rm", text="what the device holds is not known", seq_id=seq_id
        )

    def _aside(self, effect: Effect, sequence: Any) -> str:
        """A client's own call, made by a thread of its own: when it hangs, the client waits until that has become a
        drain and then Failed, and no longer (F36). What was observed; "" if it has not returned."""
        said: list[str] = []

        def make() -> None:
            try:
                observed = self._table[effect.name](sequence)
                self.engine.fire(self._outcomes.of(effect, observed), sequence, observed)
                said.append(observed)
            except Exception as error:
                self.observer.died(effect.name, effect.name, error)
                self._died(effect.name)

        thread = self._thread(effect.name, make)
        thread.start()
        thread.join((self.config.stuck_ms + self.config.grace_ms) / 1000)
        return said[0] if said else ""

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

    def _forget_sequence(self, seq_id: int, sequence: Any) -> None:
        """A removed one is not known any more as soon as no job names it, unless a job has begun it again."""
        with self._mu:
            if any(job.seq_of is sequence for job in self._jobs):
                self._leaving.add(sequence)
                return
            self._leaving.discard(sequence)
            if self._sequences.get(seq_id) is sequence and self._holds_nothing(sequence):
                del self._sequences[seq_id]
                self.calls.forget(seq_id)
                self.engine.remove("seq", sequence)

    def _holds_nothing(self, sequence: Any) -> bool:
        try:
            return self.engine.fire((self.program.rules["client.discard"],), sequence) is not None
        except Rejected:
            return False

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
        if not self._await(self._ended, self.config.close_ms / 1000 + LATEST_S):
            self.abandon()
        latest_us = now_us() + int(LATEST_S * 1e6)
        for context in list(self._jobs.values()):
            if context.handle.wait_until(latest_us) is None:
                self.abandon()
        closed = bool(self.engine.read(lambda s: self._closed.guard(s, None)))
        self._stop_threads()
        given_back = closed and not any(t.is_alive() for t in self._threads) and self._give_back()
        self.observer.close()
        return given_back

    def _stop_threads(self) -> None:
        """Those that are inside a call are not waited for: it may never return."""
        self._closing = True
        self.engine.stop()
        self._wake_clock()
        inside = {f"{THREAD} {p.name}" for p in self.progress if p.doing in self._table}
        latest_us = now_us() + int(LATEST_S * 1e6)
        for thread in self._threads:
            if thread.name not in inside:
                thread.join(max(0, latest_us - now_us()) / 1e6)

    def _give_back(self) -> bool:
        """Release what the device does not need any more; these are calls, too, and might not return."""
        said: list[bool] = []
        thread = self._thread("release", lambda: said.append(self.calls.close()))
        thread.start()
        thread.join(LATEST_S)
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
        context = JobContext(job_id, request, handle, np.empty(contract.vocabulary, np.float32), model.calbin_sha256)
        with self._mu:
            if len(self._jobs) >= self.config.jobs_max:
                raise self._refusal(request, StatusKind.RESOURCE_EXHAUSTED, f"{self.config.jobs_max} jobs, jobs_max")
            sequence = self._sequence(request)
            job = self.engine.add("job", context, (job_id, request.seq_id), seq_of=sequence)
            context.record = job
            self._jobs[job] = context
        context.generation_id = self.calls.generation_id
        context.timings.reach("accepted")
        if self._dead:  # who answered all may not have seen this one
            self._remove(job)
        self._refuse_if_dead(request)
        kind = "client.arrive.extend" if request.past_len else "client.arrive.prefill"
        if self.engine.fire((self.program.rules[kind],), job) is None:
            self._remove(job)
            raise self._refusal(request, StatusKind.UNAVAILABLE, "the executor is closing")
        return job

    def _sequence(self, request: InferenceRequest) -> Any:
        """The record of the request's sequence; made when it is first named."""
        if request.seq_id not in self._sequences:
            if len(self._sequences) >= self.config.jobs_max + self.config.sequences_max:
                raise self._refusal(request, StatusKind.RESOURCE_EXHAUSTED, "too many sequences; seq_rm some")
            self._sequences[request.seq_id] = self.engine.add("seq", request.seq_id)
        self._leaving.discard(self._sequences[request.seq_id])
        return self._sequences[request.seq_id]

    def _known_jobs(self) -> list[JobContext]:
        """Without a lock: a copy is one step."""
        return list(self._jobs.values())

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
        return self.engine.fire((self.program.rules["client.cancel"],), context.record) is not None

    # -- after each step, outside the monitor and before anybody is woken ----------------------------------------------
    def _after(self, rule: CompiledRule, element: Any) -> None:
        if rule.id in self._ends_generation:
            self.calls.end_generation()
            self.observer.generation(rule)
            with self._mu:
                ended = list(self._jobs)
            for job in ended:  # what was in doubt about a job ends with its generation
                self._try_to_forget(job)
        self.observer.step(rule)
        if rule.sort != "job":
            return
        context: JobContext = element.tag
        if _fires(rule, "slot", "quarantine"):
            self.calls.quarantine(context)
        if _fires(rule, "record", "unknown"):
            self.calls.doubt(context)
        claims = rule.id in self._claims
        if claims or rule.id in self.observer.ends:
            self._answer(rule, element)
        if rule.rule.begins is None and (rule.id in self._queues or context.handle.done()):
            context.handle.entered.set()
        if claims or rule.rule.begins is None:
            self._try_to_forget(element)

    def _try_to_forget(self, job: Any) -> None:
        """Its record is of no more use once it has ended, is answered, and holds nothing."""
        if job.tag.handle.done() and self.engine.fire(self._forget, job):
            self._remove(job)

    def _answer(self, rule: CompiledRule, job: Any) -> None:
        """Count a job that has ended; then resolve the handle of one whose answer was claimed."""
        if (told := self._told(rule, job)) is None:
            return
        self.observer.after(rule, job.tag, told)
        self._resolve(job.tag, told)

    def _told(self, rule: CompiledRule, job: Any) -> Status | None:
        """What the job's client was told, or is to be told now; the first claim never changes (answer.once)."""
        context: JobContext = job.tag
        if result := context.handle.wait_until(0):
            return result.status
        answer = list(AnswerState)[job.answer]
        return self._status_of(context, ANSWERS[answer], rule.id) if answer in ANSWERS else None

    def _resolve(self, context: JobContext, status: Status) -> None:
        """Timings as they are now: those of a job that goes on without its client change."""
        if context.handle.done():
            return
        result = InferenceResult(status, context.logits if status.ok else None, evolve(context.timings))
        self.observer.answers(context, status)
        if context.handle.resolve(result):
            self.observer.answered(status)

    def _status_of(self, context: JobContext, kind: StatusKind | None, rule: str) -> Status:
        """kind: what was claimed; None: an error, which is what the job's failure means."""
        status = Status(kind=kind or StatusKind.UNAVAILABLE, stage="" if kind is StatusKind.OK else rule)
        if context.failure and kind is not StatusKind.OK:
            status = Status.of(context.failure, kind)
        request = context.request
        return evolve(
            status, text="; ".join([*_verdict(context, rule), *filter(None, [status.text])]), job_id=context.job_id,
            request_id=request.request_id, seq_id=request.seq_id, generation=context.generation_id,
        )  # fmt: skip

    def _remove(self, job: Any) -> None:
        with self._mu:
            self._jobs.pop(job, None)
        self.engine.remove("job", job)
        job.tag.let_go()
        if job.seq_of in self._leaving:
            self._forget_sequence(job.seq_of.tag, job.seq_of)

    # -- threads -------------------------------------------------------------------------------------------------------
    def _takes(self, mine: Callable[[Rule], bool]) -> tuple[CompiledRule, ...]:
        return tuple(
            r for r in self.program.rules.values() if mine(r.rule) and r.rule.outcome is None and r.sort in ("", "job")
        )

    def _cast(self) -> Iterator[threading.Thread]:
        for part in CAST:
            takes = self._takes(part.takes)
            for i in range(part.threads(self.config)):
                progress = Progress(part.name if part.threads(self.config) == 1 else f"{part.name} {i + 1}")
                self.progress.append(progress)
                yield self._thread(progress.name, self._act, takes, progress)

    def _thread(self, name: str, run: Callable[..., None], *arguments: Any) -> threading.Thread:
        return threading.Thread(target=run, args=arguments, name=f"{THREAD} {name}", daemon=True)

    def _act(self, takes: tuple[CompiledRule, ...], progress: Progress) -> None:
        try:
            drive(self.engine, self._outcomes, self._table, actor(takes), progress)
        except Exception as error:
            self.observer.died(progress.name, progress.doing, error)
            self._died(progress.name)

    def _died(self, name: str) -> None:
        """A bug ended an actor: nothing is served any more, and nobody is kept waiting (F47)."""
        self._dead = f"{name} died"
        self._answer_all(StatusKind.INTERNAL, self._dead)
        self.engine.fire((self.program.rules["client.give_up"],))

    def _answer_all(self, kind: StatusKind, why: str) -> None:
        """Without a lock: a copy is one step. Who arrives later sees `_dead`, which was set before."""
        for context in list(self._jobs.values()):
            self._resolve(context, self._status_of(context, kind, why))
            context.handle.entered.set()

    def _wake_clock(self) -> None:
        """An earlier timer was armed. That it must wake is written down first: for health."""
        if self._alarm.due_us is not None:
            self._alarm.due_us = min(self._alarm.due_us, now_us())
        self._clock.set()

    def _run_clock(self) -> None:
        try:
            while not self._closing:
                self._tick()
        except Exception as error:
            self.observer.died(self._alarm.name, self._alarm.doing, error)
            self._died(self._alarm.name)

    def _tick(self) -> None:
        """Fire what is due; sleep until the next timer, or until an earlier one is armed."""
        alarm = self._alarm
        alarm.doing, alarm.since_us, alarm.due_us = "expiring", now_us(), None
        while self.engine.expire():
            alarm.since_us = now_us()
        due_us = self.engine.next_due_us()
        left_us = None if due_us is None else max(0, due_us - self.engine.now_us())
        alarm.doing, alarm.due_us = "sleeping", math.inf if left_us is None else now_us() + left_us
        self._clock.wait(None if left_us is None else left_us / 1e6)
        self._clock.clear()

    def _await(self, rule: CompiledRule, timeout_s: float | None) -> bool:
        waiter = Waiter()
        if self.engine.take((rule,), None, waiter):
            return True
        if waiter.token.acquire(timeout=-1 if timeout_s is None else timeout_s):
            return waiter.result is not None
        self.engine.send_away(waiter)
        waiter.token.acquire()
        return waiter.result is not None


def _verdict(context: JobContext, rule: str) -> Iterator[str]:
    """Of a deadline: what it says of the job, and in which call it was."""
    if rule in VERDICTS:
        yield VERDICTS[rule]
        call = list(JobCall)[context.record.call]
        if call.code:
            yield f"{call.name} has not returned"


def _fires(rule: CompiledRule, variable: str, event: str) -> bool:
    return any(target.args[0].name == variable and fired == event for target, fired in rule.rule.fires)
