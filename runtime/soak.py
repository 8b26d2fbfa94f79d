"""A soak: hundreds of thousands of jobs on one executor, first with faults, then without; nothing may grow (F64).

Theory. The clients are `run`'s (runtime/clients.py), and so is everything that they and their answers are held against.
They work in laps: when all of them have ended and nothing is under way, the process is measured, so that what is found
is not what happened to be in flight. While faults are injected some laps are spared: what grows there grows with the
jobs, what grows in the others may be what recoveries left in quarantine (runtime/soak_samples.py).

After the faults come laps without any, which the device must serve, all of them; `run` then serves one prompt more, as
after any faults. Nothing here grows with the number of jobs: prompts are repeated, latencies counted, samples bounded.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, evolve, field, frozen

from machines.protocol.host import IDLE
from runtime.clients import Clients
from runtime.executor import DeviceExecutor
from runtime.prompts import Prompt
from runtime.run import IDLE_S
from runtime.soak_samples import Histogram, Samples, measured
from runtime.soak_verdict import Pool
from runtime.tally import Ends, Tally
from runtime.weather import Weather

__all__ = ["LAPS_MIN", "Length", "Soak", "SoakTally"]

LAPS_MIN = 40  # fewer have not calm laps enough
LAP_JOBS = 1024
LAPS_WANTED = 100
WARM_SHARE = 0.1
HEALED_SHARE = 0.2
LAPS_OF_A_TURN, SPARED = 6, 2  # while there are faults: the first lap that is spared settles, the next one is calm
NOTED_EVERY = 256  # jobs: the device's record of calls, in which the faults are looked up, is bounded
READY_S = 60.0
INJECTING = "faults"  # the phase in which they are


# -- what is asked for -------------------------------------------------------------------------------------------------
@frozen
class Length:
    """How long: so many jobs, or so many seconds."""

    jobs: int | None = None
    seconds: float | None = None

    def share(self, jobs: float, seconds: float) -> float:
        """How much of it is over."""
        if self.jobs is not None:
            return jobs / self.jobs
        return seconds / self.seconds if self.seconds else 1.0

    def lap_jobs(self, clients: int, tokens: int) -> int:
        """Jobs of a lap: each client serves a prompt at least."""
        wanted = LAP_JOBS if self.jobs is None else min(LAP_JOBS, self.jobs // LAPS_WANTED)
        return max(clients * tokens, wanted)


# -- what the clients tell ---------------------------------------------------------------------------------------------
@define
class SoakTally(Tally):
    """The same counts in bounded memory. Latencies: of the lap, and of all."""

    ttft: Histogram = field(factory=Histogram)
    tpot: Histogram = field(factory=Histogram)
    ttft_of_all: Histogram = field(factory=Histogram)
    tpot_of_all: Histogram = field(factory=Histogram)

    def took(self, first: bool, us: int) -> None:
        with self._mu:
            for histogram in (self.ttft, self.ttft_of_all) if first else (self.tpot, self.tpot_of_all):
                histogram.add(us)

    def next_lap(self) -> None:
        """Forget the lap's latencies, and to which ended generation a token belonged."""
        with self._mu:
            self.ttft.clear()
            self.tpot.clear()
            known = sorted(generation for generation in self.good_by_generation if generation is not None)
            for generation in known[:-1]:
                self.good_by_generation[None] += self.good_by_generation.pop(generation)


class _Repeated(dict[int, list[int]]):
    """Expected tokens by line; lines go on for ever, and the prompts begin anew."""

    def __init__(self, prompts: tuple[Prompt, ...], expected: Mapping[int, list[int]]) -> None:
        super().__init__(expected)
        self._lines = [prompt.line for prompt in prompts]

    def __missing__(self, line: int) -> list[int]:
        return self[self._lines[line % len(self._lines)]]


# -- running -----------------------------------------------------------------------------------------------------------
@define(eq=False)
class Soak:
    """`work` is for Asked.before. on_lap: told of each lap's row and of the phase.

    pool: of the first generation, while there is one. healed: laps after the faults; served: of their requests, how
    many completed, and of how many."""

    prompts: tuple[Prompt, ...]
    length: Length
    clients: int
    tokens: int
    weather: Weather
    on_lap: Callable[[Mapping[str, float], str], None] = lambda row, phase: None
    samples: Samples = field(factory=Samples, init=False)
    tally: SoakTally = field(factory=SoakTally, init=False)
    pool: Pool | None = field(default=None, init=False)
    healed: int = field(default=0, init=False)
    served: tuple[int, int] = field(default=(0, 0), init=False)
    _lines: Any = field(init=False)
    _began_s: float = field(default=0.0, init=False)
    _began_cpu_s: float = field(default=0.0, init=False)
    _lap_began_s: float = field(default=0.0, init=False)
    _tokens_before: int = field(default=0, init=False)
    _idle: Any = field(default=None, init=False)
    _stuck: bool = field(default=False, init=False)  # it did not come to rest, or Failed

    def __attrs_post_init__(self) -> None:
        self._lines = itertools.count(max(prompt.line for prompt in self.prompts) + 1)

    def work(self, executor: DeviceExecutor, clients: Clients) -> None:
        """All laps. Blocks. Raises what a client raised: that is a bug."""
        clients.tally, clients.expected = self.tally, _Repeated(self.prompts, clients.expected)
        clients.on_token = self._noting(clients.on_token)
        self._began_s = self._lap_began_s = time.monotonic()
        self._began_cpu_s = time.process_time()
        self._idle = executor.program.compiled(IDLE)  # once: the engine remembers each rule that was waited for
        executor.wait_ready(READY_S)
        if self.weather.rate:
            self._with_faults(executor, clients)
            self.weather.end()
            executor.wait_ready(READY_S)
            self._healed(executor, clients)
        else:
            self._until(1.0, executor, clients, "no faults")

    def _with_faults(self, executor: DeviceExecutor, clients: Clients) -> None:
        while not self._over(1 - HEALED_SHARE):
            if self.samples.laps % LAPS_OF_A_TURN < LAPS_OF_A_TURN - SPARED:
                self._lap(executor, clients, INJECTING)
                continue
            self.weather.end()
            self._lap(executor, clients, "spared")
            self.weather.resume()

    def _healed(self, executor: DeviceExecutor, clients: Clients) -> None:
        before, laps = dict(self.tally.requests), self.samples.laps
        self._until(1.0, executor, clients, "healed")
        self.healed = self.samples.laps - laps
        came = {end: n - before.get(end, 0) for end, n in self.tally.requests.items()}
        self.served = came.get(Ends.COMPLETED, 0), sum(n for end, n in came.items() if end != Ends.CANCELLED)

    def _until(self, share: float, executor: DeviceExecutor, clients: Clients, phase: str) -> None:
        while not self._over(share):
            self._lap(executor, clients, phase)

    def _over(self, share: float) -> bool:
        done = self.length.share(self.tally.jobs.total(), time.monotonic() - self._began_s)
        return done >= share or self._stuck

    # -- one lap -------------------------------------------------------------------------------------------------------
    def _lap(self, executor: DeviceExecutor, clients: Clients, phase: str) -> None:
        for _ in range(-(-self.length.lap_jobs(self.clients, self.tokens) // self.tokens)):
            clients.queue.put(self._next_prompt())
        clients.serve(self.clients)
        if self.tally.unanswered or not (executor.wait_ready(READY_S) and executor.engine.wait_for(self._idle, IDLE_S)):
            self._stuck = True
            return
        clients.stop.clear()
        row = self.samples.add({**self._row(executor), "injecting": phase == INJECTING}, self._is_warm(executor))
        self.tally.next_lap()
        self._lap_began_s, self._tokens_before = time.monotonic(), self.tally.tokens
        self.on_lap(row, phase)

    def _next_prompt(self) -> Prompt:
        line = next(self._lines)
        prompt: Prompt = evolve(self.prompts[line % len(self.prompts)], line=line)
        return prompt

    def _row(self, executor: DeviceExecutor) -> dict[str, float]:
        tally, weather, now_s = self.tally, self.weather, time.monotonic()
        if self.pool is None and executor.calls.pool is not None:
            slots = executor.calls.pool.counts()
            self.pool = Pool(
                slots.byte_size, 2 + 2 * executor.calls.pool.slots * len(executor.calls.manifest.submodels)
            )
        seconds = now_s - self._lap_began_s
        return {
            **measured(executor, weather.simulator),
            "jobs": tally.jobs.total(),
            "seconds": now_s - self._began_s,
            "cpu_seconds": time.process_time() - self._began_cpu_s,
            "recoveries": weather.resets,
            "faults": weather.fired(),
            "tpot_p50_us": tally.tpot.percentile(50),
            "tpot_p99_us": tally.tpot.percentile(99),
            "ttft_p50_us": tally.ttft.percentile(50),
            "ttft_p99_us": tally.ttft.percentile(99),
            "tokens_per_s": (tally.tokens - self._tokens_before) / seconds if seconds > 0 else math.nan,
        }

    def _is_warm(self, executor: DeviceExecutor) -> bool:
        """Enough of it is over, and the journal's ring has gone round."""
        if self.samples.warm is not None:
            return True
        share = self.length.share(self.tally.jobs.total(), time.monotonic() - self._began_s)
        return share >= WARM_SHARE and executor.journal.total > len(executor.journal.entries())

    def _noting(self, then: Callable[[], None]) -> Callable[[], None]:
        """Now and then have the weather look which faults have come."""
        tokens = itertools.count(1)

        def on_token() -> None:
            then()
            if next(tokens) % NOTED_EVERY == 0:
                self.weather.since(self.weather.mark())

        return on_token if self.weather.rate else then
