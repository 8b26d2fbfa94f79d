"""The sides that are compared: one client of the executor, straight code, and the baseline, each on its own device.

Theory. All three are driven by the same loop through the same few methods, so what is timed is what a caller of each
would pay. Nothing else runs meanwhile: the collector is off and what lives is out of its sight, on both sides alike.
The executor's client keeps when each of its jobs was where, which is read after the clock was stopped.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from machines.protocol.params import FACTS
from runtime.bench_calls import NotTheSame, calls_since, same_jobs
from runtime.calrt import Library
from runtime.config import Config
from runtime.device_run import LanguageModel
from runtime.executor import DeviceExecutor, Refused
from runtime.generations import ExecutorError
from runtime.job import InferenceRequest
from runtime.legacy import Legacy
from runtime.manifest import CalTaskKind, Manifest
from runtime.run import idle
from runtime.simulator import Call, Simulator, Violation
from runtime.status import JobTimings
from runtime.straight import DeviceFailed, Straight

__all__ = ["Client", "Side", "Token", "executor_on", "opened_sides", "same_block", "still", "times_ns"]

SEQUENCE = 0
TOKEN = 7
READY_S = 60.0
CALLS_A_JOB = 40  # at most
TRACE = 1 << 16
PATIENT = {"admission_ms": 600_000, "queue_ms": 600_000, "request_ms_max": 600_000, "log_level": "error"}
"""Where everybody waits for one device on purpose, nobody may be sent away; who is cancelled in the end is no news."""
DEVICES = {"executor": 0, "legacy": 1, "straight": 2}


@frozen(eq=False)
class Token:
    """One job as its client saw it (monotonic ns), and where the executor says that it was."""

    job_id: int
    asked_ns: int
    awake_ns: int
    timings: JobTimings


class Client:
    """One client of an executor: asks, waits, and has the logits. Raises DeviceFailed for a job that failed."""

    def __init__(self, executor: DeviceExecutor) -> None:
        self.executor = executor
        self.lengths: dict[int, int] = {}
        self.tokens: list[Token] | None = None  # kept where a list is given
        self._ids = itertools.count(1)

    def prefill(self, sequence: int, tokens: Items[int]) -> NDArray[np.float32]:
        return self._ask(CalTaskKind.PrefillIds, sequence, np.fromiter(tokens, np.int32, len(tokens)))

    def decode(self, sequence: int, token: int) -> NDArray[np.float32]:
        return self._ask(CalTaskKind.Decode, sequence, np.array([token], np.int32))

    def forget(self, sequence: int) -> None:
        if not (status := self.executor.seq_rm(sequence)).ok:
            raise DeviceFailed(f"seq_rm: {status}", None)
        self.lengths.pop(sequence, None)

    def _ask(self, kind: CalTaskKind, sequence: int, values: NDArray[np.int32]) -> NDArray[np.float32]:
        past = self.lengths.get(sequence, 0)
        asked_ns = time.monotonic_ns()
        try:
            result = self.executor.run(InferenceRequest(next(self._ids), sequence, kind, past, values))
        except Refused as refused:
            raise DeviceFailed(str(refused), None) from None
        if result.logits is None:
            raise DeviceFailed(str(result.status), None)
        if self.tokens is not None:
            self.tokens.append(Token(result.status.job_id or 0, asked_ns, time.monotonic_ns(), result.timings))
        self.lengths[sequence] = past + len(values)
        return result.logits


@define(eq=False)
class Side:
    """commits: it applies a job's length once more when the job is done. settle: returns when nothing of it is under
    way any more. said: its last answer."""

    name: str
    model: LanguageModel
    simulator: Simulator
    commits: bool = True
    settle: Callable[[], object] = lambda: None
    said: NDArray[np.float32] | None = None
    _begun: int = 0

    def begin(self) -> None:
        """What is compared begins here."""
        self.settle()
        self._begun, self.said = self.simulator.calls_total(), None

    def calls(self) -> list[Call]:
        """All calls since then."""
        self.settle()
        return calls_since(self.simulator, self._begun)

    def violations(self) -> tuple[Violation, ...]:
        return self.simulator.violations()

    def prefill(self, tokens: Items[int]) -> None:
        self.said = self.model.prefill(SEQUENCE, tokens)

    def decode(self) -> None:
        self.said = self.model.decode(SEQUENCE, TOKEN)

    def forget(self) -> None:
        self.model.forget(SEQUENCE)


def config_on(manifest: Manifest, device: int, simulated: bool = True, **more: Any) -> Config:
    """Of a device that is trusted where it is simulated: all vendor facts hold."""
    facts = {fact.name: True for fact in FACTS if simulated or fact.default}
    return Config(manifest=str(manifest.path), device=device, facts=facts, **{**PATIENT, **more})


@contextmanager
def executor_on(manifest: Manifest, device: int = DEVICES["executor"], **more: Any) -> Iterator[DeviceExecutor]:
    """A Ready executor; closed afterwards. Raises DeviceFailed."""
    try:
        made = DeviceExecutor(config_on(manifest, device, **more))
    except ExecutorError as error:
        raise DeviceFailed(str(error), None) from error
    with made as executor:
        if not executor.wait_ready(READY_S):
            raise DeviceFailed("the golden run did not pass", None)
        yield executor


@contextmanager
def opened_sides(library: Library, manifest: Manifest, names: Items[str], jobs: int) -> Iterator[dict[str, Side]]:
    """The sides by name, on devices as new whose traces hold the calls of so many jobs."""
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name in names:
            simulator = Simulator.beside(library, DEVICES[name])
            simulator.power_cycle()
            simulator.set(trace_limit=max(TRACE, jobs * CALLS_A_JOB))
            if name == "executor":
                executor = stack.enter_context(executor_on(manifest))
                sides[name] = Side(name, Client(executor), simulator, settle=partial(idle, executor))
            elif name == "straight":
                straight = stack.enter_context(Straight(library, manifest, DEVICES[name]))
                sides[name] = Side(name, straight, simulator, commits=False)
            else:
                sides[name] = Side(name, stack.enter_context(Legacy(library, manifest, DEVICES[name])), simulator)
        yield sides


def set_latency(sides: Mapping[str, Side], ms: float) -> None:
    """What a call of the model takes on every device."""
    us = round(ms * 1000)
    for side in sides.values():
        side.simulator.set(decode_us=us, prefill_us=us)


def same_block(ours: Side, base: Side) -> None:
    """Both made the same calls since they began, and the last answer is the same bit for bit; on this device it depends
    on everything that its sequence was ever given; and no device saw a violation. Raises NotTheSame."""
    same_jobs(ours.calls(), base.calls(), ours_commits=ours.commits, base_commits=base.commits)
    if ours.said is None or base.said is None or ours.said.tobytes() != base.said.tobytes():
        raise NotTheSame(f"{ours.name} and {base.name} gave different logits")
    for side in (ours, base):
        if seen := side.violations():
            raise NotTheSame(f"the device of {side.name} saw {len(seen)} violations: {seen[0].kind}: {seen[0].text}")


# -- time --------------------------------------------------------------------------------------------------------------


@contextmanager
def still() -> Iterator[None]:
    """No garbage collection while this lasts. What lives now stays out of the collector's sight afterwards, too, so
    that the next block begins soon: who calls this says gc.unfreeze() in the end."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def times_ns(count: int, once: Callable[[], object], between: Callable[[], object] = lambda: None) -> NDArray[np.int64]:
    """What each of `count` runs took, [count] ns. between: after each, not timed."""
    times = np.zeros(count, np.int64)
    with still():
        for i in range(count):
            begin_ns = time.perf_counter_ns()
            once()
            times[i] = time.perf_counter_ns() - begin_ns
            between()
    return times
