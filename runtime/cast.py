"""Who takes which rules, and how long the clock's intervals last: what the executor's threads are made from.

Theory. The rulebook says which actor takes a step; how many threads an actor has, and which of them may be stuck in a
call, is decided here. A thread that makes no call can never be stuck, so whoever must always be there makes none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from machines.protocol.variables import LifecycleCall
from machines.rulebook import Rule
from runtime.config import Config

__all__ = ["CAST", "Part", "timers"]


@frozen
class Part:
    """Threads of one actor: which rules they take, and how many there are."""

    name: str
    takes: Callable[[Rule], bool]
    threads: Callable[[Config], int] = lambda config: 1


def _refuses(rule: Rule) -> bool:
    """A step of admission that needs no call."""
    return rule.actor.name == "admission" and rule.begins is None


def _begins(rule: Rule, effect: str) -> bool:
    return rule.begins is not None and rule.begins.name == effect


# Who takes what (machines/protocol/actors.py). The janitor makes no call, so that it can never be stuck in one.
CAST = (
    Part("submitter", lambda r: _begins(r, "infer") or (r.actor.name == "admission" and r.begins is not None)),
    Part("unwinder", lambda r: r.actor.name == "submitter" and not _begins(r, "infer")),
    Part("completion", lambda r: r.actor.name == "completion", lambda c: c.inflight + c.abandoned_max + 1),
    Part("janitor", lambda r: r.begins is None and ((r.actor.name == "lifecycle" and bool(r.over)) or _refuses(r))),
    Part("lifecycle", lambda r: r.actor.name == "lifecycle" and not r.over),
)


def timers(config: Config, now_us: Callable[[], int]) -> dict[str, Callable[[Any, Any], int | None]]:
    """How long each interval of §9.1 and §9.2 lasts (us), by the clock's rule that ends it."""

    def within(limit_ms: float) -> Callable[[Any, Any], int | None]:
        """At most so long, and not beyond the request's own deadline."""

        def after(s: Any, job: Any) -> int:
            deadline_us = job.tag.request.deadline_us
            left_us = limit_ms * 1000 if deadline_us is None else min(limit_ms * 1000, deadline_us - now_us())
            return max(0, int(left_us))

        return after

    def fixed(ms: float) -> Callable[[Any, Any], int | None]:
        return lambda s, element: int(ms * 1000)

    lifecycle_ms = {"Reset": config.reset_ms, "Configure": config.configure_ms, "Golden": config.golden_ms}
    grace = fixed(config.grace_ms)
    return {
        "clock.admission": within(config.admission_ms),
        "clock.queue": within(config.queue_ms),
        "clock.request": within(config.request_ms_max),
        "clock.execution": fixed(config.execution_ms),
        "clock.stuck": fixed(config.stuck_ms),
        "clock.stuck.remove": fixed(config.stuck_ms),
        "clock.stuck.lifecycle": lambda s, e: int(lifecycle_ms[list(LifecycleCall)[s.lifecycle_call].name] * 1000),
        "clock.backoff": fixed(config.backoff_ms),
        "clock.kv_retry": fixed(config.kv_retry_ms),
        "clock.grace.recover": grace,
        "clock.grace.give_up": grace,
        "clock.grace.overdue": grace,
        "clock.grace.close": fixed(config.close_ms),
    }
