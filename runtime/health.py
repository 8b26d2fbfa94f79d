"""Whether an executor serves, and whether each of its actors moves (F47): an answer that needs nobody's help.

Theory. The rulebook knows whether the device is Ready, but it is the actors that tell it, and the clock that notices
what takes too long. If one of them is frozen, the rulebook may say Ready for ever. So health looks at the threads
themselves: each writes down what it does and since when (`Progress`), and whoever asks compares that with real time.
An actor that is parked may wait as long as it likes; one that does anything else has a limit, which is the rulebook's
own for that call and something on top, so that the rulebook comes first where it can. The clock sleeps until a moment
that it names; it is frozen when that has long passed. Nobody is waited for but the monitor, and that shortly.

A `Wait()` that a recovery left behind costs its agent, not the executor: it is reported, and is no reason against it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import asdict, frozen

from machines.protocol.effects import CONFIGURE, EFFECTS, GOLDEN, RESET, WAIT
from runtime.actors import Progress
from runtime.config import Config
from runtime.status import now_us

__all__ = ["ActorHealth", "Health", "examine", "limits_ms"]

SLACK_MS = 1000  # on top of every limit
MONITOR_S = 1.0  # for which the monitor may be held by somebody else


@frozen
class ActorHealth:
    """One actor. doing: the call it is in, or what else. job: which one that is for. idle_ms: since its last progress.

    limit_ms: how long that may be; None: it is parked, or was left behind. state: "moving", "parked", "abandoned",
    "frozen" or "dead"."""

    name: str
    doing: str
    job: int | None
    idle_ms: int
    limit_ms: int | None
    state: str

    @property
    def well(self) -> bool:
        return self.state not in ("frozen", "dead")

    def __str__(self) -> str:
        of_job = "" if self.job is None else f" for job {self.job}"
        limit = "" if self.limit_ms is None else f", limit {self.limit_ms} ms"
        return f"{self.name} is {self.state}: {self.doing}{of_job} for {self.idle_ms} ms{limit}"


@frozen
class Health:
    """ready: jobs are served now. live: this process may serve again by itself; otherwise it must be started anew.

    why: one line for each reason against either. actors: all of them."""

    live: bool
    ready: bool
    why: tuple[str, ...]
    actors: tuple[ActorHealth, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def limits_ms(config: Config) -> Mapping[str, int]:
    """How long each call may take, by its effect's name, before the rulebook acts (§9.1, §9.2)."""
    own = {
        RESET.name: config.reset_ms, CONFIGURE.name: config.configure_ms, GOLDEN.name: config.golden_ms,
        WAIT.name: config.execution_ms + config.grace_ms,
    }  # fmt: skip
    return {effect.name: own.get(effect.name, config.stuck_ms) for effect in EFFECTS}


def examine(
    config: Config, actors: Iterable[tuple[Progress, threading.Thread]], generation: int,
    rulebook: Callable[[float], tuple[bool, bool]], dead: str,
) -> Health:  # fmt: skip
    """generation: the present one. rulebook: says within so many seconds whether jobs are served, and whether all is
    over; raises TimeoutError when the monitor is not to be had. dead: why nothing is served any more, or ""."""
    limits, at_us = limits_ms(config), now_us()
    found = tuple(_actor(p, t.is_alive(), limits, config.stuck_ms, generation, at_us) for p, t in actors)
    why = [dead, *(str(a) for a in found if not a.well)]
    hopeless = bool(dead) or any(_hopeless(a, config.grace_ms) for a in found)
    try:
        serving, over = rulebook(MONITOR_S)
    except TimeoutError as error:
        serving, over = False, True
        why.append(str(error))
    else:
        why += ["the device does not serve"] if not serving else []
        why += ["the device Failed, or the executor was closed"] if over else []
    why = [reason for reason in why if reason]
    return Health(live=not (hopeless or over), ready=serving and not why, why=tuple(why), actors=found)


def _actor(
    p: Progress, alive: bool, limits: Mapping[str, int], other_ms: int, generation: int, at_us: int
) -> ActorHealth:
    context, due_us = getattr(p.about, "tag", None), p.due_us
    left_behind = p.doing == WAIT.name and context is not None and context.generation_id < generation
    if due_us is None:
        since_us, limit_ms = max(p.since_us, p.waiter.granted_us), limits.get(p.doing, other_ms) + SLACK_MS
        rests = "parked" if p.waiter.parked else "abandoned" if left_behind else ""
    else:  # it sleeps, and its time begins when it should be awake
        since_us, limit_ms = int(min(due_us, at_us)), SLACK_MS
        rests = "parked" if due_us >= at_us else ""
    idle_ms = max(0, at_us - since_us) // 1000
    state = "dead" if not alive else rests or ("frozen" if idle_ms > limit_ms else "moving")
    job: int | None = getattr(context, "job_id", None)
    return ActorHealth(p.name, p.doing, job, idle_ms, None if rests else limit_ms, state)


def _hopeless(a: ActorHealth, grace_ms: int) -> bool:
    """It had the time in which the rulebook, too, would have given it up."""
    return a.state == "dead" or (a.state == "frozen" and a.limit_ms is not None and a.idle_ms > a.limit_ms + grace_ms)
