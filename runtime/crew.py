"""The threads of an executor: those of each actor (`CAST`), and the clock's.

Theory. Every actor runs the same generator (`actors`) with the rules that it takes, and the clock fires the rules whose
timers are due. Each thread writes down what it does (`Progress`), which is how health sees one that is frozen and how
closing knows whom not to wait for: a thread that is inside a call may never come back. A bug that ends a thread is
told; the others go on, so that everybody can still be answered.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from machines.rulebook import Rule
from runtime.actors import Outcomes, Progress, actor, drive
from runtime.cast import CAST
from runtime.compiled import CompiledRule
from runtime.config import Config
from runtime.engine import Engine
from runtime.status import now_us

__all__ = ["Clock", "Crew", "thread"]

THREAD = "calexec"  # what the names of threads begin with


def thread(name: str, run: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Not started. It keeps nobody from leaving the process."""
    return threading.Thread(target=run, args=arguments, name=f"{THREAD} {name}", daemon=True)


class Clock:
    """Fires the clock's rules when they are due, and sleeps in between."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.progress = engine, Progress("clock")
        self._earlier, self._stopped = threading.Event(), False

    def wake(self) -> None:
        """An earlier timer was armed. That it must wake is written down first: for health."""
        if self.progress.due_us is not None:
            self.progress.due_us = min(self.progress.due_us, now_us())
        self._earlier.set()

    def stop(self) -> None:
        self._stopped = True
        self.wake()

    def run(self) -> None:
        """Until it is stopped."""
        while not self._stopped:
            self._tick()

    def _tick(self) -> None:
        """Fire what is due; sleep until the next timer, or until an earlier one is armed."""
        progress = self.progress
        progress.doing, progress.since_us, progress.due_us = "expiring", now_us(), None
        while self.engine.expire():
            progress.since_us = now_us()
        due_us = self.engine.next_due_us()
        left_us = None if due_us is None else max(0, due_us - self.engine.now_us())
        progress.doing, progress.due_us = "sleeping", math.inf if left_us is None else now_us() + left_us
        self._earlier.wait(None if left_us is None else left_us / 1e6)
        self._earlier.clear()


class Crew:
    """All of them, not started. calls: per effect the function that makes it. died: called with the name of one of
    them that a bug ended, what it was doing, and the error; on its own thread.

    progress and threads: one for each, in the same order."""

    def __init__(
        self, engine: Engine, calls: Mapping[str, Callable[[Any], str]], config: Config,
        died: Callable[[str, str, Exception], None],
    ) -> None:  # fmt: skip
        self.clock, self.outcomes = Clock(engine), Outcomes(engine.program)
        self._engine, self._calls, self._died = engine, calls, died
        lives = [*self._actors(config), (self.clock.progress, self.clock.run)]
        self.progress = [progress for progress, _ in lives]
        self.threads = [thread(progress.name, self._live, progress, run) for progress, run in lives]

    def _actors(self, config: Config) -> Iterator[tuple[Progress, Callable[[], None]]]:
        for part in CAST:
            takes, number = self._takes(part.takes), part.threads(config)
            for i in range(number):
                progress = Progress(part.name if number == 1 else f"{part.name} {i + 1}")
                yield progress, self._life(takes, progress)

    def _takes(self, mine: Callable[[Rule], bool]) -> tuple[CompiledRule, ...]:
        """Who is furthest goes first: the rulebook's rules are in the order of a job's life."""
        rules = reversed(self._engine.program.rules.values())
        return tuple(r for r in rules if mine(r.rule) and r.rule.outcome is None and r.sort in ("", "job"))

    def _life(self, takes: tuple[CompiledRule, ...], progress: Progress) -> Callable[[], None]:
        return lambda: drive(self._engine, self.outcomes, self._calls, actor(takes), progress)

    def _live(self, progress: Progress, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            self._died(progress.name, progress.doing, error)

    def start(self) -> None:
        for t in self.threads:
            t.start()

    def stop(self, within_s: float) -> None:
        """Send everybody away. Those that are inside a call are not waited for: it may never return."""
        self._engine.stop()
        self.clock.stop()
        inside = {f"{THREAD} {p.name}" for p in self.progress if p.doing in self._calls}
        latest_us = now_us() + int(within_s * 1e6)
        for t in self.threads:
            if t.name not in inside:
                t.join(max(0, latest_us - now_us()) / 1e6)

    def left(self) -> bool:
        """Whether anybody is still there."""
        return any(t.is_alive() for t in self.threads)
