"""What `calexec run` does: prompts are decoded for many clients, and everything is held against a witness.

Theory. What the executor promises is held against something that does not depend on it: every token against the oracle,
every access to memory against the simulator, every step against the rulebook (runtime/replay.py), every failed job
against the faults that were injected (runtime/symptoms.py), every answer against what the same handle says later, its
books against those of the pool, of the KV and of the device, and what is left when it has closed against nothing. After
faults it must serve once more. One of them wrong, and the command is red. Its clients (runtime/clients.py) do what a
server does when a sequence is lost; the faults (runtime/weather.py) are the simulator's, by a seed.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import field, frozen

from machines.protocol.host import IDLE
from machines.protocol.params import FACTS
from runtime.buffers import BufferLease
from runtime.calrt import NativeMissing
from runtime.clients import LATE_S, Clients, Order
from runtime.config import WAYS, Config
from runtime.executor import DeviceExecutor
from runtime.exits import Exit, Failure
from runtime.generations import ExecutorError
from runtime.manifest import Manifest, ManifestError
from runtime.oracle import Oracle
from runtime.prompts import Prompt
from runtime.recording import Recording
from runtime.replay import Replay
from runtime.report import Report, percentile
from runtime.simulator import Simulator, Violation
from runtime.tally import KEPT, Ends, Tally
from runtime.weather import Weather

__all__ = ["Asked", "run"]

START_S, IDLE_S, CLOSE_S = 60.0, 20.0, 60.0
TOKENS_AFTER = 4  # of the prompt that must be served once the faults are over
SHORT = {
    "jobs_max": 256, "recoveries_max": 1 << 16, "admission_ms": 10_000, "queue_ms": 10_000, "execution_ms": 2_000,
    "request_ms_max": 30_000, "grace_ms": 2_000, "close_ms": 5_000, "stuck_ms": 5_000, "reset_ms": 5_000,
    "configure_ms": 30_000, "golden_ms": 30_000, "backoff_ms": 5, "kv_retry_ms": 5,
}  # fmt: skip
"""For the simulated device, which takes no time but what it is told to."""


# -- running -----------------------------------------------------------------------------------------------------------
def config_of(manifest: Manifest, device: int, clients: int, policy: str, simulated: bool, latency_us: int) -> Config:
    """Raises Failure when the policy is not proved under the facts: of the simulator all hold."""
    facts = {fact.name: True for fact in FACTS} if simulated else {}
    patience: dict[str, Any] = dict(SHORT) if simulated else {}
    for name, jobs in (("execution_ms", 4), ("admission_ms", clients), ("queue_ms", 4), ("request_ms_max", 4)):
        if simulated:
            patience[name] += jobs * latency_us // 1000
    config = Config(
        manifest=str(manifest.path),
        device=device,
        policy=policy,
        facts=facts,
        sequences_max=2 * clients + 4,
        **patience,
    )
    if lines := config.unproved():
        raise Failure(Exit.USAGE, lines)
    return config


def stands_on(policy: str) -> frozenset[str]:
    """The facts that every proof of the policy needs (machines/protocol/runs.py)."""
    return frozenset.intersection(*(frozenset(way.facts) for way in WAYS if way.policy == policy))


@contextmanager
def settings(simulator: Simulator | None, wanted: Mapping[str, int | None]) -> Iterator[None]:
    """Sets keys of the device, and puts them back: the card outlives its handles."""
    given = {key: value for key, value in wanted.items() if value is not None}
    if given and simulator is None:
        raise Failure(Exit.USAGE, ["latencies are for the simulator, and this CalRT is not one"])
    before = {key: simulator.get(key) for key in given} if simulator else {}
    try:
        if simulator:
            simulator.set(**given)
        yield
    finally:
        if simulator:
            simulator.set(**before)


def books(executor: DeviceExecutor, simulator: Simulator | None = None) -> tuple[str, ...]:
    """Where the rulebook's counters are not what pool and KV say, or these not what the device says.

    One slot more is there, for golden runs."""
    pool, kv = executor.calls.pool, executor.calls.kv
    if pool is None or kv is None:
        return ()
    found = {**pool.abstract(), **kv.abstract()}
    written = executor.engine.read(lambda s: {name: int(getattr(s, name)) for name in found})
    written["free"] += 1
    wrong = [f"{n}: the books say {written[n]}, there are {found[n]}" for n in found if written[n] != found[n]]
    if simulator and found["kv_free"] == executor.config.sequences_max:
        held = kv.size.units - simulator.truth("kv_units_free")
        wrong += [f"the device holds {held} units of KV, and no sequence has any"] if held else []
    return tuple(wrong)


def leases_left(executor: DeviceExecutor) -> int:
    """Leases that nobody gave back or quarantined, also those of ended generations, whose pools have forgotten them."""
    pools = set(executor.calls.pools)
    return sum(isinstance(o, BufferLease) and o.live and o._pool in pools for o in gc.get_objects())


def idle(executor: DeviceExecutor) -> bool:
    """Wait until nothing is under way."""
    return executor.engine.wait_for(executor.program.compiled(IDLE), IDLE_S)


def close(executor: DeviceExecutor) -> tuple[bool, bool]:
    """Whether close() returned with nothing under way, and whether everything was given back. Ctrl-C on the way ends it
    the hard way (F48)."""
    said: list[bool] = []
    thread = threading.Thread(target=lambda: said.append(executor.close()), name="close", daemon=True)
    try:
        thread.start()  # it may be interrupted here, too, when the other thread has begun
        thread.join(CLOSE_S)
    except KeyboardInterrupt:
        executor.abandon()
        raise
    left = int(executor.engine.read(lambda s: s.work + s.waits + s.leftovers))
    return bool(said) and not left, said == [True]


@frozen
class Asked:
    """What is to be run. done: prompts that are finished already, by their lines: how they ended, and their tokens.
    planned: faults where the weather is calm, as (call, action, nth), once the device serves. before: what is done with
    the executor and the clients before they begin. recording: of its journal, from its first step to its last."""

    prompts: tuple[Prompt, ...]
    order: Order
    clients: int
    done: Mapping[int, tuple[str, list[int]]] = field(factory=dict)
    planned: tuple[tuple[str, str, int], ...] = ()
    late_s: float = LATE_S
    before: Callable[[DeviceExecutor, Clients], None] = lambda executor, clients: None
    recording: Recording | None = None


def start(config: Config) -> DeviceExecutor:
    """Raises Failure."""
    try:
        return DeviceExecutor(config)
    except NativeMissing as error:
        raise Failure(Exit.NO_LIBRARY, [str(error)]) from error
    except ManifestError as error:
        raise Failure(Exit.MODELS, error.lines) from error
    except ExecutorError as error:
        raise Failure(Exit.DEVICE, [str(error)]) from error


def run(
    config: Config, simulator: Simulator | None, asked: Asked, weather: Weather,
    on_token: Callable[[], None] = lambda: None,
    on_end: Callable[[Prompt, str, list[int]], None] = lambda prompt, end, tokens: None,
) -> Report:  # fmt: skip
    """Raises Failure when the executor does not start. on_token, on_end: as those of Clients."""
    seen = len(simulator.violations()) if simulator else 0
    weather.before_start()
    faults_before = weather.fired()
    executor = start(config)
    weather.follow(executor)
    replay = Replay.of(executor)
    if asked.recording:
        asked.recording.follow(executor)
    oracle = Oracle.of_calbin(executor.calls.manifest.calbin_path)
    expected = {p.line: oracle.tokens(p.tokens, asked.order.count) for p in asked.prompts}
    left = [p for p in asked.prompts if p.line not in asked.done]
    at_work = Clients(executor, left, asked.order, expected, weather, asked.late_s, on_token, on_end)
    _look_at_the_finished(asked, expected, at_work.tally)
    try:
        executor.wait_ready(START_S)
        if asked.planned:
            weather.plan(asked.planned)
        began_us = executor.engine.now_us()
        asked.before(executor, at_work)
        at_work.serve(asked.clients)
        seconds = (executor.engine.now_us() - began_us) / 1e6
        weather.end()
        aftermath = _aftermath(
            executor, at_work, simulator, asked.prompts[0] if weather.fired() > faults_before else None
        )
    finally:
        weather.end()
        closed = close(executor)
        if asked.recording:
            asked.recording.close()
    wrong_steps = replay.findings(executor)
    violations = simulator.violations()[seen:] if simulator else None
    findings = _findings(at_work.tally, aftermath, wrong_steps, violations or (), closed[0])
    if aftermath.failed:
        findings = (*findings, f"device: Failed by {', then '.join(weather.failed_by) or 'what was before the start'}")
    return _report(
        config, asked, at_work.tally, seconds, weather, weather.fired() - faults_before, executor, aftermath, closed,
        (replay.steps, len(wrong_steps)), None if violations is None else len(violations), findings,
    )  # fmt: skip


def _look_at_the_finished(asked: Asked, expected: Mapping[int, list[int]], tally: Tally) -> None:
    """What was finished earlier counts, and its tokens are compared like all others."""
    for prompt in asked.prompts:
        if prompt.line in asked.done:
            end, tokens = asked.done[prompt.line]
            tally.request(end)
            should = expected[prompt.line][: None if end == Ends.COMPLETED else len(tokens)]
            if tokens != should:
                tally.finding("differences", f"prompt {prompt.line}, finished earlier: {tokens}, oracle {should}")


@frozen
class Aftermath:
    """What there was when all clients had ended. See Report."""

    failed: bool
    served: bool | None = None
    ledger: tuple[str, ...] | None = None
    leased: int = 0
    after: Tally | None = None  # of that prompt


def _aftermath(
    executor: DeviceExecutor, at_work: Clients, simulator: Simulator | None, prompt: Prompt | None
) -> Aftermath:
    """prompt: is served once more."""
    if at_work.device_failed() or at_work.tally.unanswered:
        return Aftermath(at_work.device_failed())
    after = at_work.once_more(prompt, TOKENS_AFTER) if prompt else None
    ledger = books(executor, simulator) if idle(executor) else ("jobs are under way that never end",)
    if at_work.device_failed():
        return Aftermath(True)
    leased = leases_left(executor)
    served = None if after is None else after.requests == {Ends.COMPLETED: 1} and not after.findings
    return Aftermath(False, served, ledger, leased, after)


def _findings(
    tally: Tally, aftermath: Aftermath, wrong_steps: list[str], violations: tuple[Violation, ...], closed: bool
) -> tuple[str, ...]:  # fmt: skip
    """What is wrong, in words."""
    found = [*tally.findings, *(f"ledger: {text}" for text in aftermath.ledger or ())]
    if aftermath.leased:
        found.append(f"leases: {aftermath.leased} of them never given back")
    found += [f"violation: {v.kind}: {v.text}" for v in violations[:KEPT]]
    found += [f"against the rulebook: {text}" for text in wrong_steps[:KEPT]]
    if aftermath.after and not aftermath.served:
        (end,) = aftermath.after.requests
        found += [f"after the faults a prompt was {end}", *(f"then: {text}" for text in aftermath.after.findings)]
    if not closed:
        found.append(f"close: it has not ended after {CLOSE_S:g} s, or jobs are under way")
    return tuple(found)


def _report(
    config: Config, asked: Asked, tally: Tally, seconds: float, weather: Weather, faults: int,
    executor: DeviceExecutor, aftermath: Aftermath, closed: tuple[bool, bool], steps: tuple[int, int],
    violations: int | None, findings: tuple[str, ...],
) -> Report:  # fmt: skip
    last = executor.calls.generation_id
    jobs = {", ".join(p for p in key if p): n for key, n in sorted(tally.jobs.items(), key=lambda item: -item[1])}
    return Report(
        model=Path(config.manifest).stem,
        prompts=len(asked.prompts),
        clients=asked.clients,
        requests=dict(tally.requests),
        jobs=jobs,
        tokens=tally.tokens,
        seconds=seconds,
        ttft_p50_us=percentile(tally.ttft_us, 50),
        ttft_p99_us=percentile(tally.ttft_us, 99),
        tpot_p50_us=percentile(tally.tpot_us, 50),
        tpot_p99_us=percentile(tally.tpot_us, 99),
        faults=faults,
        resets=weather.resets,
        drains=dict(weather.causes.most_common()),
        generations=last,
        tokens_in_last_generation=tally.good_by_generation[last] + (aftermath.after.tokens if aftermath.after else 0),
        differences=tally.differences,
        violations=violations,
        unexplained=tally.unexplained,
        unanswered=tally.unanswered,
        changed_answers=tally.changed_answers,
        steps=steps[0],
        wrong_steps=steps[1],
        served_after=aftermath.served,
        leases_left=aftermath.leased,
        ledger=aftermath.ledger,
        closed=closed[0],
        given_back=closed[1],
        device_failed=aftermath.failed,
        findings=findings,
        abandoned=executor.abandoned,
        quarantined_bytes=sum(pool.counts().quarantined_bytes for pool in executor.calls.pools),
    )
