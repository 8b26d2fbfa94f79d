"""F47: an engine that hangs, and health that says fine. Here each actor in turn is stopped, where the rulebook does not
notice: its watchdogs are switched off. Health must say so by itself, in bounded time, and of that actor alone."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from executing import READY_S, Bench, executing
from moments import standing, until, waiting
from prometheus_client.parser import text_string_to_metric_families

from machines.protocol.effects import EFFECTS
from machines.protocol.host import READY
from runtime import health as module
from runtime.calrt import Library
from runtime.cast import CAST
from runtime.executor import Refused
from runtime.health import ActorHealth, Health, limits_ms

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
LIMIT_MS, SLACK_MS, BOUND_S = 100, 200, 5.0
PATIENT = {
    "stuck_ms": LIMIT_MS, "execution_ms": LIMIT_MS, "grace_ms": LIMIT_MS, "reset_ms": LIMIT_MS, "close_ms": 500,
}  # fmt: skip


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MONITOR_S", 0.2)


class Stop:
    """A place where whoever comes by stands until it is let go."""

    def __init__(self) -> None:
        self.there, self._go = threading.Event(), threading.Event()

    def here(self) -> None:
        self.there.set()
        self._go.wait(READY_S)

    def go(self) -> None:
        self._go.set()


@contextmanager
def stop() -> Iterator[Stop]:
    s = Stop()
    try:
        yield s
    finally:
        s.go()


def unwatched(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rulebook's watchdogs do not bark: what is found, health has found alone, less patient than usual."""
    monkeypatch.setattr(module, "SLACK_MS", SLACK_MS)
    for rule in b.executor.engine.timers.clocks:
        if rule.id.startswith(("clock.stuck", "clock.execution")):
            b.executor.engine.timers.clocks[rule] = lambda s, e: None


def serves(b: Bench) -> bool:
    """What the rulebook believes."""
    ready = b.executor.program.compiled(READY)
    return bool(b.executor.engine.read(lambda s: ready.guard(s, None)))


def actor(h: Health, name: str) -> ActorHealth:
    (found,) = (a for a in h.actors if a.name == name)
    return found


def bad(h: Health) -> list[str]:
    return [a.name for a in h.actors if not a.well]


# -- each actor in turn ------------------------------------------------------------------------------------------------
def in_call(effect: str) -> Callable[[Bench, Stop], None]:
    def hang(b: Bench, s: Stop) -> None:
        call = b.executor._table[effect]

        def stopped(element: Any) -> str:
            s.here()
            return call(element)

        b.executor._table[effect] = stopped  # type: ignore[index]

    return hang


def after_a_step(thread: str) -> Callable[[Bench, Stop], None]:
    """Outside of any call: in what belongs to a step."""

    def hang(b: Bench, s: Stop) -> None:
        after = b.executor.engine.on_step
        assert after is not None

        def stopped(rule: Any, element: Any) -> None:
            if threading.current_thread().name == f"calexec {thread}":
                s.here()
            after(rule, element)

        b.executor.engine.on_step = stopped

    return hang


class Token:
    """In the place of a lock that an actor waits for: it stands, or falls, when it has it."""

    def __init__(self, token: Any, then: Callable[[], None]) -> None:
        self.token, self.then = token, then

    def acquire(self) -> None:
        self.token.acquire()
        self.then()

    def release(self) -> None:
        self.token.release()


def when_woken(thread: str) -> Callable[[Bench, Stop], None]:
    """Its step has been made on its behalf, and it does not go on. It notices the second time: now it waits already."""

    def hang(b: Bench, s: Stop) -> None:
        (progress,) = (p for p in b.executor.crew.progress if p.name == thread)
        progress.waiter.token = Token(progress.waiter.token, s.here)

    return hang


def submit(b: Bench) -> None:
    b.enqueue(1, PROMPT)


def cancel_queued(b: Bench) -> None:
    b.sim.set(prefill_us=1_000_000)
    b.enqueue(1, PROMPT)
    until(lambda: waiting(b))
    b.enqueue(2, OTHER).cancel()


def drain(b: Bench) -> None:
    b.sim.fault("infer", "ccu_exception")
    b.enqueue(1, PROMPT)


def something_is_due(b: Bench) -> None:
    for nth in range(1, 50):
        b.sim.fault("can_allocate", "refuse", nth=nth)
    threading.Thread(target=lambda: b.enqueue(1, PROMPT), daemon=True).start()


def two_generations(b: Bench) -> None:
    """Each leaves a job to the janitor."""
    for seq_id in (1, 2):
        b.sim.fault("infer", "ccu_exception")
        assert not b.run(seq_id, PROMPT).status.ok
        until(lambda: serves(b) or not b.executor.health().live)


def submit_aside(b: Bench) -> None:
    threading.Thread(target=submit, args=(b,), daemon=True).start()


HANGS = {  # which actor: how it hangs, and what brings it there
    "submitter, preparing": (in_call("prepare"), submit_aside),
    "submitter": (in_call("infer"), submit),
    "unwinder": (after_a_step("unwinder"), cancel_queued),
    "completion": (in_call("wait"), submit),
    "lifecycle": (in_call("reset"), drain),
    "janitor": (when_woken("janitor"), two_generations),
    "clock": (after_a_step("clock"), something_is_due),
}


def kind(name: str) -> str:
    """Of several equal actors: without the number."""
    return name.rstrip("0123456789 ")


def part_of(hang: str) -> str:
    return hang.partition(",")[0]


def names(b: Bench) -> set[str]:
    return {a.name for a in b.executor.health().actors}


def settings(name: str) -> dict[str, int]:
    """While the unwinder is stopped a job is on the device, and takes its time: that one is not late."""
    return PATIENT | ({"execution_ms": 60_000} if name == "unwinder" else {})


def when_bad(b: Bench, name: str, late: set[str]) -> Health:
    """What health says when of all actors this one alone is not well. On a busy machine another one may be late, too,
    for a moment; that passes by itself, and the other never moves."""
    said: list[Health] = []

    def alone() -> bool:
        said[:] = [b.executor.health()]
        return [kind(other) for other in bad(said[0]) if other not in late] == [name]

    until(alone)
    return said[0]


@pytest.mark.parametrize("name", HANGS)
def test_f47_a_frozen_actor_makes_readiness_fail(library: Library, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hang, bring = HANGS[name]
    late = {"submitter"} if name == "clock" else set()  # whom the clock was about to wake
    with executing(library, **settings(name)) as b, stop() as s:
        assert b.executor.health().ready
        unwatched(b, monkeypatch)
        hang(b, s)
        bring(b)
        assert s.there.wait(READY_S)
        h = when_bad(b, part_of(name), late)
        (frozen,) = (a for a in h.actors if not a.well and a.name not in late)
        assert not h.ready
        assert frozen.limit_ms is not None
        assert frozen.idle_ms > frozen.limit_ms
        assert any(line.startswith(f"{frozen.name} is frozen") for line in h.why)
        until(lambda: not b.executor.health().live)
        gauges = {f.name: f.samples[0].value for f in text_string_to_metric_families(b.executor.metrics.text())
                  if f.name in ("calexec_ready", "calexec_live")}  # fmt: skip
        assert gauges == {"calexec_ready": 0, "calexec_live": 0}
        s.go()
        until(lambda: not bad(b.executor.health()))
        assert name == "lifecycle" or b.executor.health().live, "it goes on"


def test_f47_every_actor_is_hung_above(library: Library) -> None:
    with executing(library) as b:
        assert {kind(name) for name in names(b)} == set(map(part_of, HANGS)) == {part.name for part in CAST} | {"clock"}


@pytest.mark.parametrize(
    "name",
    [
        "submitter",
        "clock",
        *(pytest.param(n, marks=pytest.mark.nightly) for n in ("unwinder", "completion", "janitor")),
    ],
)
def test_f47_the_rulebook_alone_would_not_see_it(library: Library, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: what health said before it looked at the actors."""
    hang, bring = HANGS[name]
    with executing(library, **settings(name)) as b, stop() as s:
        unwatched(b, monkeypatch)
        hang(b, s)
        bring(b)
        until(lambda: bad(b.executor.health()))
        assert serves(b), "the rulebook says that all is well"


# -- what is no reason -------------------------------------------------------------------------------------------------
def test_who_is_parked_is_well_for_ever(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with executing(library) as b:
        b.run(1, PROMPT)
        until(lambda: {a.state for a in b.executor.health().actors} == {"parked"})
        b.executor.crew.clock.wake()
        until(lambda: b.executor.crew.clock.progress.due_us == math.inf)  # it has seen that no timer is armed
        day_us = 24 * 3600 * 1_000_000
        now_us = module.now_us
        monkeypatch.setattr(module, "now_us", lambda: now_us() + day_us)
        h = b.executor.health()
        assert h.ready
        assert h.live
        assert h.why == ()
        assert min(a.idle_ms for a in h.actors if a.name != "clock") >= day_us // 1000 - 60_000
        assert actor(h, "clock").idle_ms == 0, "no timer is armed: it need not wake"


def test_who_works_is_well_within_the_limit(library: Library) -> None:
    with executing(library, execution_ms=60_000) as b, standing(b):
        handle = b.enqueue(1, PROMPT)
        until(lambda: waiting(b))
        h = b.executor.health()
        assert h.ready
        (at_work,) = (a for a in h.actors if a.state == "moving")
        assert (at_work.doing, at_work.job) == ("wait", handle.job_id)
        assert at_work.limit_ms == limits_ms(b.executor.config)["wait"] + module.SLACK_MS


def test_a_wait_that_was_left_behind_costs_its_agent_alone(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Wait() of an ended generation that never returns: it is reported, and jobs are served."""
    with executing(library, execution_ms=600, grace_ms=200) as b, stop() as s:
        call = b.executor._table["wait"]

        def once(element: Any) -> str:
            b.executor._table["wait"] = call  # type: ignore[index]
            s.here()
            return call(element)

        b.executor._table["wait"] = once  # type: ignore[index]
        assert not b.run(1, PROMPT).status.ok
        until(lambda: b.executor.health().ready)
        h = b.executor.health()
        assert [a.doing for a in h.actors if a.state == "abandoned"] == ["wait"]
        assert b.tokens(2, OTHER, 2) == b.oracle.tokens(OTHER, 2)
        b.executor.crew.clock.wake()
        until(lambda: b.executor.crew.clock.progress.due_us == math.inf)
        now_us = module.now_us
        with monkeypatch.context() as later:
            later.setattr(module, "now_us", lambda: now_us() + 3600 * 1_000_000)
            assert b.executor.health().ready, "however long it takes"


# -- death, and the monitor --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["clock", "janitor"])
def test_f47_an_actor_that_dies_outside_of_a_call(
    library: Library, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with executing(library, close_ms=500) as b:

        def bug(*anything: Any) -> None:
            raise ZeroDivisionError

        if name == "clock":
            b.executor.engine.expire = bug  # type: ignore[method-assign]
        else:
            (progress,) = (p for p in b.executor.crew.progress if p.name == name)
            progress.waiter.token = Token(progress.waiter.token, bug)
        HANGS[name][1](b)
        until(lambda: not b.executor.health().live)
        h = b.executor.health()
        assert not h.ready
        assert f"{name} died" in h.why
        until(lambda: actor(b.executor.health(), name).state == "dead")
        with pytest.raises(Refused, match=f"{name} died"):
            b.enqueue(2, PROMPT)
        until(lambda: not b.executor.records.jobs or all(c.handle.done() for c in b.executor.records.jobs.values()))
    assert "ZeroDivisionError" in caplog.text


def test_f47_who_keeps_the_monitor_is_seen(library: Library) -> None:
    """Nobody can ask the rulebook then; health, and the metrics, answer all the same."""
    with executing(library) as b:
        with b.executor.engine:
            found: list[Any] = []

            def ask() -> None:
                found.extend((b.executor.health(), b.executor.metrics.text()))

            asking = threading.Thread(target=ask)
            asking.start()
            asking.join(BOUND_S)
            assert not asking.is_alive()
        health, text = found
        assert (health.live, health.ready) == (False, False)
        assert any("monitor has been held" in line for line in health.why)
        assert "calexec_live 0.0" in text
        assert "calexec_jobs_in_flight " not in text, "that is not known"
        assert b.executor.health().ready, "and it is over"


def test_health_of_a_failed_and_of_a_closed_executor(library: Library) -> None:
    with executing(library, recoveries_max=0) as b:
        b.sim.fault("infer", "ccu_exception")
        assert not b.run(1, PROMPT).status.ok
        until(lambda: not b.executor.health().live)
        assert not b.executor.health().ready
        assert bad(b.executor.health()) == [], "no actor is to blame"
    with executing(library) as b:
        b.executor.close()
        assert (b.executor.health().live, b.executor.health().ready) == (False, False)


def test_every_call_has_a_limit(library: Library) -> None:
    with executing(library) as b:
        limits = limits_ms(b.executor.config)
        assert set(limits) == {effect.name for effect in EFFECTS} == set(b.executor._table)
        assert min(limits.values()) > 0


def test_health_as_json(library: Library) -> None:
    with executing(library) as b:
        said = json.loads(json.dumps(b.executor.health().as_dict()))
        assert said["ready"] is True
        assert {a["name"] for a in said["actors"]} == names(b)
