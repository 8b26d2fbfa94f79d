"""What must be true after every step, held against what nobody asked the engine for.

Theory. The engine cannot be its own witness. So the steps are judged a second time over books of their own
(`machines.history`), and everything real is compared with these books: the pool's lists, the coordinator's records, the
device's own KV, the handles and what they hold. Calls are made in one step and reported in another; in between the real
objects are ahead of the books by what that call did, which is taken into account call by call. Then there is what needs
no books: the simulator saw no violation; each answer was given once, and its logits are the oracle's; nobody is parked
for a rule that is enabled; a deadline's timer is armed while its guard holds, and only then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import islice, pairwise
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from machines.answer import CLAIMED, AnswerState
from machines.device import DeviceState
from machines.law import Law
from machines.protocol import RULEBOOK
from machines.protocol.host import WAITS, leading
from machines.sequence import SequenceState
from machines.slot import SlotState
from runtime.calbin import sample
from runtime.job import InferenceResult
from runtime.kv import KvCoordinator
from runtime.oracle import Oracle
from runtime.replay import Replay
from runtime.status import StatusKind

if TYPE_CHECKING:
    from checker.real.clients import Asked
    from checker.real.run import Run

__all__ = ["Truth", "Violated"]

LENT = (SlotState.Leased.code, SlotState.InFlight.code, SlotState.Returning.code)
SERVING = (DeviceState.Ready.code, DeviceState.Draining.code)
KINDS = {
    AnswerState.Ok: StatusKind.OK, AnswerState.Cancelled: StatusKind.CANCELLED,
    AnswerState.DeadlineExceeded: StatusKind.DEADLINE_EXCEEDED,
}  # fmt: skip
WAITED = {"completion.wait.ok", "completion.wait.ok.behind"}
OVERDUE = {"clock.admission": "admission_ms", "clock.queue": "queue_ms", "clock.request": "request_ms_max"}
CLAIMS = leading(RULEBOOK.rules, "answer", *CLAIMED)
"""What a rule claims of a job that has no answer yet, by its id."""


@cache
def _oracle() -> Oracle:
    return Oracle.of_calbin(sample("tiny"))


@lru_cache(maxsize=64)
def _law(parameters: tuple[tuple[str, int], ...]) -> Law:
    return Law(RULEBOOK, dict(parameters), WAITS)


@cache
def expected(history: tuple[int, ...]) -> NDArray[np.float32]:
    """The logits after these tokens, [vocabulary] FP32."""
    return (_oracle().row(history).astype(np.uint32) << 16).view(np.float32)


class Violated(AssertionError):
    """What was done is not what the rulebook says, or not what is true."""


Under = list[tuple[str, Any, str | None]]


class Truth:
    """Of one run. fired: how often each rule was. pairs: rules that followed each other."""

    def __init__(self, run: Run) -> None:
        self.run = run
        engine, program = run.executor.engine, run.executor.program
        law = _law(tuple(sorted(run.executor.config.parameters().items())))
        self.replay = engine.journal = Replay(engine.journal, law, engine.read(program.values_of))
        self._books = self.replay._course.books
        self._at = {sort: {v.name: n for n, v in enumerate(of)} for sort, of in law.variables.items()}
        self._names = {sort: tuple(of) for sort, of in self._at.items()}
        self._seen = 0  # steps that were looked at
        self._claimed: dict[int, AnswerState] = {}  # by job, by the steps
        self._committed: dict[Any, int] = {}  # by sequence: tokens, by the steps
        self.fired: Counter[str] = Counter()
        self.pairs: set[tuple[str, str]] = set()

    def wrong(self) -> str:
        """What is not as it must be now; "" if all is."""
        return next(self._findings(), "")

    def _findings(self) -> Iterator[str]:
        if self.replay.wrong:
            yield self.replay.wrong
        if self.run.executor._dead:
            yield f"the executor says that {self.run.executor._dead}"
        if self.run.held:
            yield f"{self.run.held} was called with the monitor held"
        if self.run.sim.violations_total():
            yield f"the simulator saw {[v.text for v in self.run.sim.violations()]}"
        if self.replay.total != self._seen:
            yield from self._new_steps()
            yield from self._variables()
        yield from self._parked()
        yield from self._timers()
        if not self.run.stage.halves:  # between the halves of a step the real objects are behind
            yield from self._real()
            yield from self._answers()

    # -- steps and variables -------------------------------------------------------------------------------------------
    def _new_steps(self) -> Iterator[str]:
        new = self.replay.total - self._seen
        entries = list(islice(self.replay.backwards(), new + 1))[::-1]
        for before, entry in pairwise(entries):
            self.pairs.add((before.rule, entry.rule))
        self._seen += new
        for entry in entries[-new:]:
            self.fired[entry.rule] += 1
            if entry.rule in CLAIMS:
                self._claimed.setdefault(entry.element[0], CLAIMS[entry.rule])
            if entry.rule == "completion.commit.ok":
                yield from self._commit(*entry.element)
            if entry.rule in WAITED and self.run.spoiled.get(entry.element[0]) == "ccu_exception":
                yield f"Wait() of job {entry.element[0]} was reported as ok, and its status is an exception"
            if entry.rule in OVERDUE:
                yield from self._too_early(entry.rule, entry.element[0], entry.at_us)

    def _commit(self, number: int, sequence: int) -> Iterator[str]:
        if what := self.run.spoiled.get(number):
            yield f"job {number} was committed, and what the device made of it was spoiled: {what}"
        asked = self.run.asked[number]
        self._committed[sequence] = len(asked.history) + len(asked.tokens)

    def _too_early(self, rule: str, number: int, at_us: int) -> Iterator[str]:
        """A deadline is over when its interval is, or the request's own time."""
        asked, interval_ms = self.run.asked.get(number), getattr(self.run.executor.config, OVERDUE[rule])
        if asked is None:
            return
        due_us = min(asked.at_us + interval_ms * 1000, asked.deadline_us or inf)
        if at_us < due_us:
            yield f"{rule} of job {number} at {at_us} us, and its time is not over before {due_us}"

    def _variables(self) -> Iterator[str]:
        """The engine's variables are those of the books."""
        s, books = self.run.executor.engine._s, self._books
        same = [getattr(s, name) for name in self._names[""]] == list(books.shared)
        for sort, elements in books.elements.items():
            of = {e.key: e for e in getattr(s, f"{sort}_elements")}
            names = self._names[sort]
            same = same and all(
                key in of and [getattr(of[key], name) for name in names] == list(values)
                for key, values in elements.items()
            )
        if not same:
            yield from self.replay.findings(self.run.executor)

    def _shared(self, name: str) -> int:
        return self._books.shared[self._at[""][name]]

    # -- what is real --------------------------------------------------------------------------------------------------
    def _real(self) -> Iterator[str]:
        """While a generation serves: what was lent, what is in quarantine, what is held, what is in doubt."""
        calls, begun = self.run.executor.calls, self.replay.generation
        if calls.generation_id != begun:
            yield f"it is in generation {calls.generation_id}; by the steps that should be {begun}"
        if self._shared("device") in SERVING and calls.pool is not None and calls.kv is not None:
            under_way = list(self.run.under_way())
            counts = calls.pool.counts()
            yield from self._pool((counts.free, counts.leased, counts.quarantined), under_way)
            if sliced := [slot.sliced for slot in calls.pool._free if slot.sliced]:
                yield f"a free slot is still sliced: {sliced}"
            yield from self._kv(calls.kv.abstract(), under_way)
            yield from self._device_kv()
            committing = [of.tag.request.seq_id for effect, of, _ in under_way if effect == "commit"]
            yield from self._lengths(calls.kv, committing)

    def _pool(self, real: tuple[int, int, int], under_way: Under) -> Iterator[str]:
        """A slot is lent by the call `prepare`, and taken back by `undo`; both are begun before and reported after."""
        slot, old = self._at["job"]["slot"], self._at["job"]["old"]
        lent = sum(r[slot] in LENT and not r[old] for r in self._books.elements["job"].values())
        lent -= sum((effect, seen is None) in (("prepare", True), ("undo", False)) for effect, _, seen in under_way)
        lost = self._shared("lost_slots") + sum(e == "undo" and seen == "failed" for e, _, seen in under_way)
        should = self.run.scenario.slots + 1 - lent - lost, lent, lost  # one more: the golden run's
        if real != should:
            yield f"the pool has (free, lent, in quarantine) {real}; by the steps that should be {should}"

    def _kv(self, real: dict[str, int], under_way: Under) -> Iterator[str]:
        """A unit is taken by `reserve`, and freed by `unreserve` of a job that begins its sequence, and by `remove`."""
        free, doubt = self._shared("kv_free"), self._shared("lost_kv")
        for effect, of, observed in under_way:
            begins = effect in ("reserve", "unreserve") and not of.extends
            doubt += observed == "failed" and effect in ("reserve", "unreserve", "commit", "remove")
            match effect, observed:
                case "reserve", None | "refused":
                    free += begins
                case "unreserve" | "remove", "ok":
                    free += begins or effect == "remove"
        if real != {"kv_free": free, "lost_kv": doubt}:
            yield f"KV is {real}; by the steps it should be kv_free {free}, lost_kv {doubt}"

    def _device_kv(self) -> Iterator[str]:
        """The device holds exactly what was committed, of each sequence that nobody owns."""
        record = self._at["seq"]["record"]
        for key, values in self._books.elements["seq"].items():
            if values[record] == SequenceState.Live.code:
                number = self.run.executor.calls._kv_ids.get(key)  # type: ignore[arg-type]
                length = -1 if number is None else self.run.sim.kv(number)[0]
                if length != (should := self._committed.get(key)):
                    yield f"the device holds {length} tokens of sequence {key}; committed were {should}"

    def _lengths(self, kv: KvCoordinator, committing: list[int]) -> Iterator[str]:
        """The coordinator has written down what was committed, and nothing else."""
        for key in self._books.elements["seq"]:
            number = self.run.executor.calls._kv_ids.get(key)  # type: ignore[arg-type]
            length, should = 0 if number is None else kv.length(number), self._committed.get(key)
            if length not in (0, should) and key not in committing:
                yield f"sequence {key} has {length} tokens by its coordinator; committed were {should}"

    # -- answers -------------------------------------------------------------------------------------------------------
    def _answers(self) -> Iterator[str]:
        """Each is given once, when it is claimed, and is right."""
        for number, asked in self.run.asked.items():
            result, claimed = asked.handle.settled, self._claimed.get(number)
            if asked.result is not None:
                if result is not asked.result:
                    yield f"job {number} was answered again"
            elif result is not None:
                asked.result = result
                yield from self._answer(number, asked, result, claimed)
            elif claimed is not None:
                yield f"job {number} has no answer, and {claimed.name} was claimed"

    def _answer(self, number: int, asked: Asked, result: InferenceResult, claimed: AnswerState | None) -> Iterator[str]:
        if not asked.handle.done():
            yield f"job {number} has its answer, and nobody was told"
        if claimed is None:
            yield f"job {number} was answered, and nobody had claimed that: {result.status}"
        elif (kind := KINDS.get(claimed)) not in (None, result.status.kind):
            yield f"job {number} was answered {result.status}, and {claimed.name} was claimed"
        elif kind is None and result.status.kind in (StatusKind.OK, StatusKind.CANCELLED):
            yield f"job {number} was answered {result.status}, and an error was claimed"
        if result.status.ok != (result.logits is not None):
            yield f"job {number}: {result.status}; logits: {result.logits is not None}"
        if result.status.ok and (what := self.run.spoiled.get(number)):
            yield f"job {number} is OK, and what the device made of it was spoiled: {what}"
        yield from self._logits(number, asked)

    @staticmethod
    def _logits(number: int, asked: Asked) -> Iterator[str]:
        """Those of the independent oracle, after the tokens that the client knows of."""
        history = (*asked.history, *asked.tokens)
        logits = asked.result.logits if asked.result else None
        if logits is not None and not np.array_equal(logits, expected(history)):
            yield f"job {number} has other logits than the oracle after {len(history)} tokens"

    # -- who waits -----------------------------------------------------------------------------------------------------
    def _parked(self) -> Iterator[str]:
        """Nobody is parked for a rule that is enabled, about whatever he would take it."""
        s = self.run.executor.engine._s
        for rule, waiters in self.run.executor.engine._waiting.items():
            for element in self._elements(rule.sort) if waiters else ():
                if rule.guard(s, element):
                    yield f"somebody is parked for {rule.id}, which is enabled"

    def _timers(self) -> Iterator[str]:
        """A timer is armed while its guard holds, and only then."""
        timers, s = self.run.executor.engine.timers, self.run.executor.engine._s
        for clock in timers.clocks:
            for element in self._elements(clock.sort):
                timer = timers._of.get(element, {}).get(clock)
                armed, holds = timer is not None and timer.armed, bool(clock.guard(s, element))
                if holds != armed:
                    yield f"the timer of {clock.id} is {'' if armed else 'not '}armed; its guard: {holds}"

    def _elements(self, sort: str) -> Any:
        return getattr(self.run.executor.engine._s, f"{sort}_elements") if sort else (None,)

    def stuck(self) -> str:
        """Who waits for ever, when nobody can go on any more and all time has passed; "" if nobody does."""
        waiting = (client for client in self.run.clients if client.wish is not None)
        return next((f"{c.name} waits for ever to {getattr(c.wish, 'what', c.wish)}" for c in waiting), "")

    # -- the end -------------------------------------------------------------------------------------------------------
    def left(self) -> str:
        """What is wrong when nobody can go on any more; "" if nothing is."""
        return next(self._left(), "")

    def _left(self) -> Iterator[str]:
        run = self.run
        for number, asked in run.asked.items():
            if not asked.handle.done() or not asked.handle.entered.is_open:
                yield f"job {number}: its client waits for ever"
            yield from self._logits(number, asked)
        if not run.ended():
            yield "it is neither Closed nor Failed in the end"
        if self._shared("device") == DeviceState.Failed.code and not self._reasons():
            yield "it Failed, and nothing had gone wrong"

    def _reasons(self) -> bool:
        """Something went wrong, took too long, or it was closed while it was not Ready."""
        return bool(self.run.faulted) or self.run.overdue or self.run.closed_early
