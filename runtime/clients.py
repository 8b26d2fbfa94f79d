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
import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from queue import Empty, SimpleQueue

import numpy as np
from attrs import evolve, frozen

from machines.protocol.host import ENDED
from runtime.executor import DeviceExecutor, Refused
from runtime.job import InferenceRequest, InferenceResult, JobHandle
from runtime.manifest import CalTaskKind
from runtime.prompts import Prompt
from runtime.status import Status, StatusKind, now_us
from runtime.symptoms import cause_of, unexplained
from runtime.tally import Answers, Ends, Tally
from runtime.together import together
from runtime.weather import Weather

__all__ = ["LATE_S", "Client", "Clients", "Order"]

ATTEMPTS_MAX = 40  # jobs in a row that fail, until a request is given up
BACKOFF_S = (0.002, 0.2)  # the first one, and the longest
READY_S = 60.0
SEQUENCES = 8  # ids of a client: those about which there is doubt wait for a new generation
FIRST_CANCEL_US = 2_000
LATE_S = 5.0  # after a job's own deadline; the machine may be busy


@frozen
class Order:
    """What is asked for: `count` tokens for each prompt, of which `cancel` (0 to 1) are cancelled, drawn by `seed`.

    deadline_s: of each job; it must be answered then, whatever the device does."""

    count: int
    cancel: float = 0.0
    seed: int = 0
    deadline_s: float = 60.0

    def cancelled_at(self, prompt: Prompt) -> tuple[int | None, random.Random]:
        """From which token on a job of this prompt is cancelled (None: never), and the source of how late."""
        draw = random.Random(f"{self.seed}/{prompt.line}")
        return (draw.randrange(self.count) if draw.random() < self.cancel else None), draw


class Clients:
    """`number` clients, each a thread, that serve `prompts` together.

    expected: for each prompt's line its tokens. late_s: how long after its deadline a job may be answered; with one
    that was not, everybody stops. on_end: told of each prompt how it ended, with its tokens.
    """

    def __init__(
        self,
        executor: DeviceExecutor,
        prompts: Items[Prompt],
        order: Order,
        expected: dict[int, list[int]],
        weather: Weather,
        late_s: float = LATE_S,
        on_token: Callable[[], None] = lambda: None,
        on_end: Callable[[Prompt, str, list[int]], None] = lambda prompt, end, tokens: None,
    ) -> None:
        self.executor, self.order, self.expected, self.weather = executor, order, expected, weather
        self.late_s, self.on_token, self.on_end = late_s, on_token, on_end
        self.tally = Tally()
        self.stop = threading.Event()
        self.request_ids = itertools.count(1)
        self.queue: SimpleQueue[Prompt] = SimpleQueue()
        for prompt in prompts:
            self.queue.put(prompt)
        self._ended = executor.program.compiled(ENDED)

    def serve(self, number: int) -> None:
        """Blocks until all prompts have been served. Raises what a client raised: that is a bug."""
        clients = [Client(self, i) for i in range(number)]
        together({f"client {i}": client.serve_all for i, client in enumerate(clients)}, self.stop)

    def once_more(self, prompt: Prompt, tokens: int) -> Tally:
        """Serve so many tokens of one prompt, by a client of its own; what came of it."""
        order = evolve(self.order, count=min(tokens, self.order.count), cancel=0.0)
        alone = Clients(self.executor, (prompt,), order, self.expected, self.weather, self.late_s)
        alone.serve(1)
        return alone.tally

    def device_failed(self) -> bool:
        """The device Failed (or was closed): nothing is served any more."""
        return bool(self.executor.engine.read(lambda s: self._ended.guard(s, None)))


class Client:
    """One of them. number: from 0; its sequences are its own."""

    def __init__(self, clients: Clients, number: int) -> None:
        self._all, self._executor, self._tally = clients, clients.executor, clients.tally
        self._sequences = range(number * SEQUENCES, (number + 1) * SEQUENCES)
        self._usual_us = FIRST_CANCEL_US
        self._mark = 0  # faults that had come when the sequence began: one since then may have cost it
        self._answers = Answers()

    def serve_all(self) -> None:
        """Prompts until there are none; then each answer is looked at once more."""
        self.serve()
        self.answered_once()

    def serve(self) -> None:
        while True:
            try:
                prompt = self._all.queue.get_nowait()
            except Empty:
                return
            said: list[int] = []
            end = self._end_of(prompt, said)
            self._tally.request(end)
            self._all.on_end(prompt, end, said)
            self._fresh_sequence()  # what it held is free for others

    def _end_of(self, prompt: Prompt, said: list[int]) -> str:
        """Decode one prompt into `said`, whatever it takes; how that ended."""
        order = self._all.order
        cancel_at, draw = order.cancelled_at(prompt)
        expected = self._all.expected[prompt.line]
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
        all_, deadline_us = self._all, now_us() + int(self._all.order.deadline_s * 1e6)
        task = CalTaskKind.Decode if past and len(values) == 1 else CalTaskKind.PrefillIds
        request = InferenceRequest(
            next(all_.request_ids), sequence, task, past, np.array(values, np.int32), deadline_us
        )
        self._mark = self._mark if past else all_.weather.mark()
        cancelled, result = False, None
        try:
            handle = self._executor.enqueue(request)
        except Refused as refused:
            status = refused.status
        else:
            cancelled = cancel_after is not None and self._cancel(handle, cancel_after)
            result = handle.wait_until(deadline_us + int(all_.late_s * 1e6))
            status = result.status if result else Status(kind=StatusKind.UNAVAILABLE, stage="unanswered")
            self._answered(handle, result)
        self._tally.job(status)
        wanted = status.ok or (cancelled and status.kind is StatusKind.CANCELLED)
        if result and not wanted and (why := unexplained(status, all_.weather.since(self._mark))):
            self._tally.finding("unexplained", f"{why}: {status}", cause_of(status))
        return status, result

    def _answered(self, handle: JobHandle, result: InferenceResult | None) -> None:
        if result:
            for text in self._answers.add(handle, result):
                self._tally.finding("changed_answers", text)
            return
        doing = ", ".join(f"{p.name}: {p.doing}" for p in self._executor.crew.progress)
        late = f"{self._all.order.deadline_s:g} s were its deadline, and {self._all.late_s:g} s more have passed"
        self._tally.finding("unanswered", f"job {handle.job_id}: {late} ({doing})")
        self._all.stop.set()

    def answered_once(self) -> None:
        """Look at the answers again."""
        for text in self._answers.look():
            self._tally.finding("changed_answers", text)

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


def _backoff() -> Iterator[float]:
    wait_s, longest_s = BACKOFF_S
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, longest_s)
