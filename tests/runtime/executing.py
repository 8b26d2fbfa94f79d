"""An executor over the simulator, for tests: a small model, short intervals, and what must come out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from runtime.calbin import sample
from runtime.calrt import Library
from runtime.config import Config
from runtime.executor import DeviceExecutor
from runtime.job import InferenceRequest, InferenceResult, JobHandle
from runtime.manifest import CalTaskKind
from runtime.oracle import Oracle
from runtime.simulator import Simulator
from runtime.status import now_us

OTHERS = (20, 21, 22, 23, 62)  # devices that single tests name
NUMBERS = tuple(n for n in range(11, 64) if n not in OTHERS)  # one with memory in quarantine stays open
READY_S = 20.0
TINY = sample("tiny")
ALL_GOOD = {
    "process_exit_stops_dma": True, "reset_stops_dma": True, "reset_is_honest": True, "reset_clears_kv": True,
    "leftover_harmless": True, "golden_sees_broken_device": True,
}  # fmt: skip
SHORT = {
    "admission_ms": 5000, "queue_ms": 5000, "execution_ms": 2000, "grace_ms": 500, "close_ms": 3000, "stuck_ms": 2000,
    "backoff_ms": 20, "kv_retry_ms": 20, "policy": "rebuild", "facts": ALL_GOOD,
}  # fmt: skip

LONG_MS = 3_600_000
PATIENT = {
    "admission_ms": LONG_MS, "queue_ms": LONG_MS, "execution_ms": LONG_MS, "stuck_ms": LONG_MS, "grace_ms": LONG_MS,
    "kv_retry_ms": LONG_MS, "backoff_ms": LONG_MS, "request_ms_max": LONG_MS, "close_ms": LONG_MS,
    "reset_ms": LONG_MS, "configure_ms": LONG_MS, "golden_ms": LONG_MS,
}  # fmt: skip
"""Settings under which no interval ends by itself."""


class Bench:
    """The executor, the panel behind it, and the oracle. Requests are numbered."""

    def __init__(self, executor: DeviceExecutor, sim: Simulator, oracle: Oracle) -> None:
        self.executor, self.sim, self.oracle = executor, sim, oracle
        self.requests = 0

    def request(self, seq_id: int, values: list[int], past: int = 0, **more: Any) -> InferenceRequest:
        self.requests += 1
        task = CalTaskKind.Decode if past and len(values) == 1 else CalTaskKind.PrefillIds
        return InferenceRequest(self.requests, seq_id, task, past, np.array(values, np.int32), **more)

    def enqueue(self, seq_id: int, values: list[int], past: int = 0, **more: Any) -> JobHandle:
        return self.executor.enqueue(self.request(seq_id, values, past, **more))

    def run(self, seq_id: int, values: list[int], past: int = 0, **more: Any) -> InferenceResult:
        """One job to its end; a job without an end is a failure of the test."""
        result = self.enqueue(seq_id, values, past, **more).wait_until(now_us() + int(READY_S * 1e6))
        assert result is not None, "the handle was never resolved"
        return result

    def tokens(self, seq_id: int, prompt: list[int], count: int) -> list[int]:
        """Greedy decoding on a fresh sequence; every job must succeed."""
        said: list[int] = []
        values, past = prompt, 0
        for _ in range(count):
            result = self.run(seq_id, values, past)
            assert result.status.ok, str(result.status)
            assert result.logits is not None
            said.append(int(result.logits.argmax()))
            past, values = past + len(values), said[-1:]
        return said

    def rules(self) -> list[str]:
        return [e.rule for e in self.executor.engine.journal.entries()]

    def calls(self) -> list[str]:
        return [c.call for c in self.sim.trace()]


_past: list[tuple[DeviceExecutor, Simulator]] = []  # of tests that are over


def unused(library: Library) -> Simulator:
    """A device that nobody has open, as new."""
    for scrapping in (False, True):
        if scrapping:
            _scrap()
        if sim := Simulator.unused(library, NUMBERS):
            return sim
    raise RuntimeError("every simulated device is open")


def _scrap() -> None:
    """Release what executors keep for ever, where the device has no job any more: there are not devices enough."""
    for executor, sim in _past:
        if not sim.truth("jobs_running"):
            for slot in (slot for pool in executor.calls.pools for slot in pool.quarantined()):
                slot.release()
            executor.calls.close()
    _past.clear()


@contextmanager
def executing(
    library: Library, sim_settings: dict[str, int] | None = None, now_us: Callable[[], int] = now_us,
    model: Path = TINY, **config: Any,
) -> Iterator[Bench]:  # fmt: skip
    """A Ready executor; afterwards it is closed, the simulator saw no violation, and nothing is left. now_us: the clock
    of its deadlines; model: its calbin, beside which is the manifest."""
    sim = unused(library)
    sim.set(**(sim_settings or {}))
    chosen = Config(manifest=str(model.with_suffix(".json")), device=sim.index, **{**SHORT, **config})
    executor = DeviceExecutor(chosen, now_us)
    try:
        assert executor.wait_ready(READY_S), "the golden run did not pass"
        yield Bench(executor, sim, Oracle.of_calbin(model))
    finally:
        executor.close()
        _past.append((executor, sim))
