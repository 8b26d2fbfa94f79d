"""Clients of the executor, as a server would be: they decode prompts greedily, and begin again what was lost.

Theory. The executor never repeats a job (§5.1-6): what a fault cost is told to the client, and what can be done about
it is the client's. It is little: remove the sequence, wait until the device serves again, prefill the prompt together
with the tokens so far, go on. The attempts are bounded, and so is every wait. Every token is held against the oracle at
once, also that of a prompt which ends badly.

A request may be cancelled: which one, at which token and how late is drawn from the seed and the prompt's line, so it
does not depend on which client serves it.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from attrs import define, field, frozen

from machines.protocol.host import ENDED
from runtime.executor import DeviceExecutor, Refused
from runtime.job import InferenceRequest, InferenceResult, JobHandle
from runtime.manifest import CalTaskKind
from runtime.prompts import Prompt
from runtime.status import Status, StatusKind, now_us
from runtime.weather import Weather

__all__ = ["Client", "Clients", "Ends", "Order", "Tally", "cause_of"]

ATTEMPTS_MAX = 40  # jobs in a row that fail, until a request is given up
BACKOFF_S = (0.002, 0.2)  # the first one, and the longest
READY_S = 60.0
SEQUENCES = 8  # ids of a client: those about which there is doubt wait for a new generation
FIRST_CANCEL_US = 2_000
KEPT = 10  # findings of a kind that are told in words


class Ends:
    """How a request, a whole prompt with its tokens, ends."""

    COMPLETED, CANCELLED, GIVEN_UP, DEVICE_FAILED, INTERRUPTED = (
        "completed", "cancelled", "given up", "device failed", "interrupted",
    )  # fmt: skip


def cause_of(status: Status) -> str:
    """What a status says of its cause, without numbers of jobs and sequences; "" where it says nothing."""
    return status.code_name or re.sub(r"\d+", "n", status.stage or status.text)


@define
class Tally:
    """What all clients saw. Thread-safe; read it when they have ended. Findings: the first KEPT of each kind."""

    jobs: Counter[tuple[str, str]] = field(factory=Counter)  # by status and cause
    requests: Counter[str] = field(factory=Counter)
    good_by_generation: Counter[int | None] = field(factory=Counter)
    differences: int = 0
    unexplained: int = 0
    unanswered: int = 0
    findings: list[str] = field(factory=list)
    ttft_us: list[int] = field(factory=list)
    tpot_us: list[int] = field(factory=list)
    _mu: Any = field(factory=threading.Lock, init=False)

    @property
    def tokens(self) -> int:
        return self.good_by_generation.total()

    def job(self, status: Status) -> None:
        with self._mu:
            self.jobs[status.kind.name, "" if status.ok else cause_of(status)] += 1
            if status.ok:
                self.good_by_generation[status.generation] += 1

    def request(self, end: str) -> None:
        with self._mu:
            self.requests[end] += 1

    def took(self, first: bool, us: int) -> None:
        with self._mu:
            (self.ttft_us if first else self.tpot_us).append(us)

    def finding(self, kind: str, text: str) -> None:
        """kind: the name of one of the counts."""
        with self._mu:
            found = getattr(self, kind) + 1
            setattr(self, kind, found)
            if found <= KEPT:
                self.findings.append(f"{kind}: {text}")


@frozen
class Order:
    """What is asked for: `count` tokens for each prompt, of which `cancel` (0 to 1) are cancelled, drawn by `seed`."""

    count: int
    cancel: float = 0.0
    seed: int = 0

    def cancelled_at(self, prompt: Prompt) -> tuple[int | None, random.Random]:
        """From which token on a job of this prompt is cancelled (None: never), and the source of how late."""
        draw = random.Random(f"{self.seed}/{prompt.line}")
        return (draw.randrange(self.count) if draw.random() < self.cancel else None), draw


class Clients:
    """`number` clients, each a thread, that serve `prompts` together.

    expected: for each prompt's line its tokens. answer_s: how long a handle may take to be answered.
    """

    def __init__(
        self,
        executor: DeviceExecutor,
        prompts: Items[Prompt],
        order: Order,
        expected: dict[int, list[int]],
        weather: Weather,
        answer_s: float,
        on_token: Callable[[], None] = lambda: None,
    ) -> None:
        self.executor, self.order, self.expected, self.weather = executor, order, expected, weather
        self.answer_s, self.on_token = answer_s, on_token
        self.tally = Tally()
        self.stop = threading.Event()
        self.request_ids = itertools.count(1)
        self.queue: SimpleQueue[Prompt] = SimpleQueue()
        for prompt in prompts:
            self.queue.put(prompt)
        self._ended = executor.program.compiled(ENDED)

    def serve(self, number: int) -> None:
        """Blocks until all prompts have been served. Raises what a client raised: that is a bug."""
        errors: list[BaseException] = []

        def run(client: Client) -> None:
            try:
                client.serve()
            except BaseException as error:
                errors.append(error)
                self.stop.set()

        threads = [threading.Thread(target=run, args=(Client(self, i),), name=f"client {i}") for i in range(number)]
        try:
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        finally:
            self.stop.set()
            for t in threads:
                t.join()
        if errors:
            raise errors[0]

    def device_failed(self) -> bool:
        """The device Failed (or was closed): nothing is served any more."""
        return bool(self.executor.engine.read(lambda s: self._ended.guard(s, None)))


class Client:
    """One of them. number: from 0; its sequences are its own."""

    def __init__(self, clients: Clients, number: int) -> None:
        self._all, self._executor, self._tally = clients, clients.executor, clients.tally
        self._sequences = range(number * SEQUENCES, (number + 1) * SEQUENCES)
        self._usual_us = FIRST_CANCEL_US

    def serve(self) -> None:
        while True:
            try:
                prompt = self._all.queue.get_nowait()
            except Empty:
                return
            self._tally.request(self._end_of(prompt))
            self._fresh_sequence()  # what it held is free for others

    def _end_of(self, prompt: Prompt) -> str:
        """Decode one prompt, whatever it takes; how that ended."""
        order = self._all.order
        cancel_at, draw = order.cancelled_at(prompt)
        expected = self._all.expected[prompt.line]
        said: list[int] = []
        sequence: int | None = None
        past = failures = 0
        last_us = now_us()
        backoff = _backoff()
        while len(said) < order.count:
            if end := self._no_more(failures):
                return end
            if sequence is None:
                sequence, past = self._begin(failures, backoff), 0
                if sequence is None:
                    failures += 1
                    continue
            values = said[-1:] if past else [*prompt.tokens, *said]
            cancel = cancel_at is not None and len(said) >= cancel_at
            status, result = self._ask(sequence, values, past, draw.random() if cancel else None)
            if result is None or result.logits is None:
                if cancel and status.kind is StatusKind.CANCELLED:
                    return Ends.CANCELLED
                sequence, failures = None, failures + 1
                continue
            said.append(int(result.logits.argmax()))
            past += len(values)
            failures, backoff = 0, _backoff()
            last_us = self._told(prompt, said, expected, last_us)
        return Ends.COMPLETED

    def _told(self, prompt: Prompt, said: list[int], expected: list[int], last_us: int) -> int:
        """A token came."""
        i, at_us = len(said) - 1, now_us()
        self._tally.took(i == 0, at_us - last_us)
        self._usual_us = max(1, at_us - last_us)
        if said[i] != expected[i]:
            self._tally.finding("differences", f"prompt {prompt.line}, token {i}: {said[i]}, oracle {expected[i]}")
            said[i] = expected[i]  # the next ones are compared on their own
        self._all.on_token()
        return at_us

    def _no_more(self, failures: int) -> str | None:
        if self._all.stop.is_set():
            return Ends.INTERRUPTED
        if self._all.device_failed():
            return Ends.DEVICE_FAILED
        return Ends.GIVEN_UP if failures > ATTEMPTS_MAX else None

    # -- one job -------------------------------------------------------------------------------------------------------
    def _ask(
        self, sequence: int, values: list[int], past: int, cancel_after: float | None
    ) -> tuple[Status, InferenceResult | None]:
        """One job to its end. cancel_after: cancel it when this share of what a job usually takes has passed."""
        all_ = self._all
        task = CalTaskKind.Decode if past and len(values) == 1 else CalTaskKind.PrefillIds
        request = InferenceRequest(next(all_.request_ids), sequence, task, past, np.array(values, np.int32))
        mark = all_.weather.mark()
        cancelled, result = False, None
        try:
            handle = self._executor.enqueue(request)
        except Refused as refused:
            status = refused.status
        else:
            cancelled = cancel_after is not None and self._cancel(handle, cancel_after)
            result = handle.wait_until(now_us() + int(all_.answer_s * 1e6))
            status = result.status if result else Status(kind=StatusKind.UNAVAILABLE, stage="unanswered")
            if result is None:
                doing = ", ".join(f"{p.name}: {p.doing}" for p in self._executor.progress)
                self._tally.finding("unanswered", f"job {handle.job_id} after {all_.answer_s:g} s ({doing})")
        self._tally.job(status)
        wanted = status.ok or (cancelled and status.kind is StatusKind.CANCELLED)
        if not wanted and (why := unexplained(status, all_.weather.fired() - mark)):
            self._tally.finding("unexplained", f"{why}: {status}")
        return status, result

    def _cancel(self, handle: JobHandle, share: float) -> bool:
        if handle.wait_until(now_us() + int(share * self._usual_us / 2)):  # it has come half its way already
            return False
        return handle.cancel()

    # -- after a failure -----------------------------------------------------------------------------------------------
    def _begin(self, failures: int, backoff: Iterator[float]) -> int | None:
        """A sequence to begin on, when the device serves again; None: not yet."""
        if failures:
            self._all.stop.wait(next(backoff))
        self._executor.wait_ready(READY_S)
        return self._fresh_sequence()

    def _fresh_sequence(self) -> int | None:
        """One of its sequences that holds nothing now. There may be doubt about some of them."""
        for sequence in self._sequences:
            if self._executor.seq_rm(sequence).ok:
                return sequence
        return None


def unexplained(status: Status, faults: int) -> str | None:
    """What is lacking in the status of a job that failed while so many faults were injected; None: nothing."""
    if not cause_of(status):
        return "no cause"
    return None if faults else "no fault was injected"


def _backoff() -> Iterator[float]:
    wait_s, longest_s = BACKOFF_S
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, longest_s)
