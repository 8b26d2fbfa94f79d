"""A storm: a thousand events, drawn by a seed, on the running executor; then it must serve, or say what ended it.

Theory. Hosts, each a thread with sequences of its own, do what hosts do and should not do: begin and continue
sequences, several jobs at once, also on a sequence whose job is still under way; cancel; set deadlines that cannot be
kept; remove sequences, also busy ones; go on from a length that is wrong. Faults are drawn while the device serves, for
any call; in most generations those that are left when it drains are forgotten, in one of ten they befall the reset and
the golden run. What a host knows of its own sequences is little, and that is what is checked: logits that are delivered
are the oracle's for the tokens that the host meant, to the bit; a wrong length is never served; a job that fails names
an injected fault, or what the host itself did to it. The rest is `run`'s (runtime/run.py), which is told of it all.

One seed in FATAL_ONE_IN gets a fault that nobody recovers from (§8 wants a person): then Failed is the right end.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from attrs import define, field

from machines.errors import CODES, ErrorClass, observed
from machines.protocol import RULEBOOK
from machines.protocol.effects import GOLDEN, INFER
from runtime.clients import Clients
from runtime.executor import DeviceExecutor, Refused
from runtime.job import InferenceRequest, InferenceResult, JobHandle
from runtime.manifest import CalTaskKind
from runtime.oracle import Oracle
from runtime.status import Status, StatusKind, now_us
from runtime.symptoms import Fault, cause_of, unexplained
from runtime.tally import Answers
from runtime.together import together
from runtime.weather import AS_THE_FACT_SAYS, Weather

__all__ = ["EVENTS", "LULL", "Storm", "ended_rightly"]

EVENTS = {
    "begin": 24, "continue": 30, "continue at once": 6, "wrong length": 3, "deadline": 6, "cancel": 12, "remove": 11,
    "fault": 8,
}  # fmt: skip
"""How often each is drawn, in relation to the others."""
HOSTS = 6
SEQUENCES = 4  # of each host
OUTSTANDING_MAX = 3  # jobs of each host
TOKENS_MAX = 12
NTH_MAX = 12
SHORT_US = 4_000
FATAL_ONE_IN = 50
LULL = 0.9
JOB_CALLS = ("infer", "infer", "wait", "wait", "apply", "can_allocate", "set_csr", "slice_tensor", "undo_slice",
             "bind_sequence")  # fmt: skip
RESET_CALLS = ("reset_ccu", "reset_configuration", "reset")
RESET_ONE_IN = 12  # faults
FATAL = tuple(c.number for c in CODES if c.kind is ErrorClass.Compatibility)
FIRST_SEQUENCE = 1_000  # those of `run`'s clients are lower
OWN_DOING = ("admission.refuse", "past_len")  # of a length that does not fit its sequence
READY_S = 20.0

# The rules by which a fault of that class at infer() ends the device: a job's, or that of a golden run.
INCOMPATIBLE = frozenset(
    rule.id
    for rule in RULEBOOK.rules
    if rule.outcome in ((INFER, (observed("infer", FATAL[0]),)), (GOLDEN, (observed("golden", FATAL[0]),)))
)
# By which other rule the device may Fail, and which injected faults can lead there; () is any.
ENDS: Mapping[str, tuple[str, ...]] = {
    "lifecycle.reset.failed.last": ("fail", "return", "throw"),
    "lifecycle.golden.failed.last": (),
    "lifecycle.configure.failed": (),
    "clock.stuck.lifecycle": ("hang",),
    "lifecycle.golden.artifact.last": ("return",),  # a request error, in a request that was made from the artifact
}


@define(eq=False)
class _Job:
    """One that is not answered yet. history: tokens of its sequence before it. wrong: its length cannot be right."""

    handle: JobHandle
    sequence: _Sequence
    history: list[int]
    values: list[int]
    mark: int
    short: bool = False
    hasty: bool = False
    wrong: bool = False
    cancelled: bool = False


@define(eq=False)
class _Sequence:
    """tokens: what the host believes that it holds; None: not known. mark: a place in the list of faults, from before
    it began."""

    number: int
    tokens: list[int] | None = field(factory=list)
    jobs: int = 0  # under way
    mark: int = 0


@define(eq=False)
class Storm:
    """Of one seed. `rage` is for Asked.before. events: that were drawn, by name. fatal: the fault that nobody recovers
    from, in words; empty where the seed has none."""

    seed: int
    number: int
    weather: Weather
    events: Counter[str] = field(factory=Counter, init=False)
    fatal: str = field(default="", init=False)
    on_event: Any = lambda: None
    _mu: Any = field(factory=threading.Lock, init=False)

    def rage(self, executor: DeviceExecutor, clients: Clients) -> None:
        """Blocks until all events are over and every job is answered. Raises what a host raised: that is a bug."""
        draw = random.Random(f"storm/{self.seed}")
        fatal_at = draw.randrange(self.number) if draw.randrange(FATAL_ONE_IN) == 0 else -1
        oracle = Oracle.of_calbin(executor.calls.manifest.calbin_path)
        hosts = [_Host(self, i, executor, clients, oracle, fatal_at) for i in range(HOSTS)]
        work = {f"host {h.number}": partial(h.run, range(h.number, self.number, HOSTS)) for h in hosts}
        try:
            together(work, clients.stop)
        finally:
            clients.stop.clear()
            if self.weather.simulator:
                self.weather.simulator.faults_clear()
        executor.wait_ready(READY_S)

    def count(self, event: str) -> None:
        with self._mu:
            self.events[event] += 1
        self.on_event()


class _Host:
    """One of them. number: from 0."""

    def __init__(
        self, storm: Storm, number: int, executor: DeviceExecutor, clients: Clients, oracle: Oracle, fatal_at: int
    ) -> None:
        self.number = number
        self._storm, self._executor, self._all, self._oracle = storm, executor, clients, oracle
        self._fatal_at = fatal_at
        self._draw = random.Random(f"storm/{storm.seed}/{number}")
        self._numbers = itertools.count(FIRST_SEQUENCE + number, HOSTS)
        self._sequences = [_Sequence(next(self._numbers)) for _ in range(SEQUENCES)]
        self._jobs: list[_Job] = []
        self._answers = Answers()

    def run(self, events: range) -> None:
        for event in events:
            if self._all.stop.is_set() or self._all.device_failed():
                break
            name = self._draw.choices(list(EVENTS), list(EVENTS.values()))[0]
            if event == self._fatal_at:
                self._fatal()
                name = "fault"
            elif not self._happens(name):
                name = "begin"
                self._begin()
            self._storm.count(name)
        while self._jobs:
            self._settle(self._jobs[0])
        for text in self._answers.look():
            self._all.tally.finding("changed_answers", text)

    # -- the events ----------------------------------------------------------------------------------------------------
    def _happens(self, name: str) -> bool:
        """False: it is not possible now."""
        match name:
            case "continue":
                return self._continue([s for s in self._sequences if s.tokens and not s.jobs])
            case "continue at once":
                return self._continue([s for s in self._sequences if s.tokens and s.jobs], hasty=True)
            case "wrong length":
                return self._continue([s for s in self._sequences if s.tokens and not s.jobs], wrong=True)
            case "deadline":
                return self._begin(short=True)
            case "cancel":
                return self._cancel()
            case "remove":
                return self._remove(self._draw.choice(self._sequences))
            case "fault":
                return self._fault()
            case _:
                return self._begin()

    def _begin(self, short: bool = False) -> bool:
        if sequence := self._clean():
            values = [self._draw.randrange(256) for _ in range(self._draw.randint(1, TOKENS_MAX))]
            sequence.mark = self._storm.weather.mark()
            self._enqueue(sequence, [], values, short=short)
        return True

    def _clean(self) -> _Sequence | None:
        """One that holds nothing and has no job; None where nothing is served any more."""
        while not (self._all.stop.is_set() or self._all.device_failed()):
            for sequence in self._sequences:
                if sequence.tokens == [] and not sequence.jobs:
                    return sequence
            place = self._draw.randrange(SEQUENCES)
            for job in [job for job in self._jobs if job.sequence is self._sequences[place]]:
                self._settle(job)
            self._remove(self._sequences[place])
            if self._sequences[place].tokens != [] and self._executor.wait_ready(READY_S):  # in doubt until a reset
                self._sequences[place] = _Sequence(next(self._numbers))
        return None

    def _continue(self, sequences: list[_Sequence], hasty: bool = False, wrong: bool = False) -> bool:
        if not sequences:
            return False
        sequence = self._draw.choice(sequences)
        assert sequence.tokens is not None
        history = sequence.tokens[:-1] or [*sequence.tokens, 0] if wrong else list(sequence.tokens)
        values = [self._draw.randrange(256) for _ in range(self._draw.randint(1, 3))]
        self._enqueue(sequence, history, values, hasty=hasty, wrong=wrong)
        return True

    def _enqueue(self, sequence: _Sequence, history: list[int], values: list[int], **how: bool) -> None:
        while len(self._jobs) >= OUTSTANDING_MAX:
            self._settle(self._jobs[0])
        task = CalTaskKind.Decode if history and len(values) == 1 else CalTaskKind.PrefillIds
        longest_us = int(self._all.order.deadline_s * 1e6)
        deadline_us = now_us() + (self._draw.randrange(SHORT_US) if how.get("short") else longest_us)
        request = InferenceRequest(
            next(self._all.request_ids), sequence.number, task, len(history), np.array(values, np.int32), deadline_us
        )
        mark = self._storm.weather.mark()
        try:
            handle = self._executor.enqueue(request)
        except Refused as refused:
            self._all.tally.finding("unexplained", f"refused: {refused}")
            return
        self._jobs.append(_Job(handle, sequence, history, values, mark, **how))
        sequence.jobs += 1
        if not how.get("wrong"):
            sequence.tokens = [*history, *values]  # if it goes well

    def _cancel(self) -> bool:
        if not self._jobs:
            return False
        job = self._draw.choice(self._jobs)
        threading.Event().wait(self._draw.random() * 0.002)
        job.cancelled = job.handle.cancel() or job.cancelled
        return True

    def _remove(self, sequence: _Sequence) -> bool:
        """Also of one that is busy, which is refused."""
        if self._executor.seq_rm(sequence.number).ok:
            sequence.tokens = None if sequence.jobs else []  # a job not settled yet may have been before or after
        return True

    def _fault(self) -> bool:
        if not self._executor.ready():
            return False
        if self._draw.randrange(RESET_ONE_IN) == 0:
            call, nth = self._draw.choice(RESET_CALLS), 1
        else:
            call, nth = self._draw.choice(JOB_CALLS), self._draw.randint(1, NTH_MAX)
        fault, b = self._storm.weather.drawn(self._draw, call)
        self._storm.weather.add(fault, nth, b)
        return True

    def _fatal(self) -> None:
        """A fault that nobody recovers from. A drain may come first, and it be forgotten: then again."""
        fault = Fault("infer", "return", self._draw.choice(FATAL))
        self._storm.fatal = str(fault)
        while not (self._all.stop.is_set() or self._all.device_failed()):
            if self._executor.wait_ready(READY_S):
                self._storm.weather.add(fault, 1, AS_THE_FACT_SAYS)
                self._begin()
                while self._jobs:
                    self._settle(self._jobs[0])

    # -- the answers ---------------------------------------------------------------------------------------------------
    def _settle(self, job: _Job) -> None:
        """Wait for its answer, and look at it."""
        order, tally = self._all.order, self._all.tally
        result = job.handle.wait_until(now_us() + int((order.deadline_s + self._all.late_s) * 1e6))
        self._jobs.remove(job)
        job.sequence.jobs -= 1
        if result is None:
            tally.finding("unanswered", f"job {job.handle.job_id} in a storm")
            self._all.stop.set()
            return
        for text in self._answers.add(job.handle, result):
            tally.finding("changed_answers", text)
        tally.job(result.status)
        if result.status.ok:
            self._served(job, result)
        else:
            self._failed(job, result.status)

    def _served(self, job: _Job, result: InferenceResult) -> None:
        """BF16 is the upper half of FP32."""
        tally, tokens = self._all.tally, [*job.history, *job.values]
        row = self._oracle.row(tokens).astype(np.uint32) << 16
        if job.wrong:
            tally.finding("differences", f"job {job.handle.job_id} went on from a wrong length, {len(job.history)}")
        elif result.logits is None or not bool((result.logits.view(np.uint32) == row).all()):
            tally.finding("differences", f"job {job.handle.job_id}: not the oracle's logits for {len(tokens)} tokens")

    def _failed(self, job: _Job, status: Status) -> None:
        if not job.wrong:
            job.sequence.tokens = None  # what the device holds now is not for the host to say
        own = (
            (job.cancelled and status.kind is StatusKind.CANCELLED)
            or (job.short and status.kind is StatusKind.DEADLINE_EXCEEDED)
            or ((job.hasty or job.wrong) and status.stage in OWN_DOING)
        )
        since = job.sequence.mark if status.stage in OWN_DOING else job.mark  # a lost sequence was lost some time ago
        if not own and (why := unexplained(status, self._storm.weather.since(since))):
            self._all.tally.finding("unexplained", f"{why}: {status}", cause_of(status))
        if status.kind is StatusKind.UNAVAILABLE and self._draw.random() < 0.9:
            self._executor.wait_ready(READY_S)


def ended_rightly(failed_by: tuple[str, ...], fatal: str, faults: tuple[Fault, ...]) -> str:
    """What of the injected faults ended a device that Failed, in words; "" where nothing did."""
    last = failed_by[-1] if failed_by else ""
    if fatal and last in INCOMPATIBLE:
        return f"{fatal} ({last})"
    if last in ENDS:
        wanted = ENDS[last]
        found = [str(f) for f in faults if not wanted or f.action in wanted]
        return f"{last} after {', '.join(dict.fromkeys(found[-3:]))}" if found else ""
    return ""
