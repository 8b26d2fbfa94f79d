"""One run of the shipped executor in which every step is a choice.

Theory. A run is its scenario and its list of choices, each the number of a move (`checker.real.moves`), all zeros where
the list has ended. Nothing here waits: there is no thread, the clock moves by choice, the device is stepped, and Wait()
is called when its job has ended, or when the adversary lets it return before. After each step everything is held
against the truth (`checker.real.truth`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from checker.real.clients import Asked, Client, Reported, asking, removing
from checker.real.faults import FAULTS, SPOILS, Fault
from checker.real.moves import Move, moves
from checker.real.scenario import Scenario
from checker.real.stage import Half, Player, Stage, VirtualClock
from checker.real.truth import Truth, Violated
from runtime.actors import Call, Report
from runtime.calbin import sample
from runtime.calrt import Library
from runtime.config import Config
from runtime.executor import DeviceExecutor
from runtime.simulator import Simulator
from runtime.status import Status

__all__ = ["Run"]

MODEL = sample("tiny")
STEPS_MAX = 4_000
CARD = {"clock": 1, "wait_blocks": 0, "pieces": 1, "kv_units": 8, "kv_block_tokens": 32}


class Run:
    """An executor on the stage, at first not Ready. Use `checker.real.play.running`.

    choices, moves_made: so far, from Ready on. asked: jobs by number. faulted: what went wrong. spoiled: by job, what
    the device did to it."""

    def __init__(self, scenario: Scenario, library: Library, sim: Simulator) -> None:
        self.scenario, self.library, self.sim = scenario, library, sim
        self.sim.set(**CARD, **{name: int(value) for name, value in scenario.facts.items()})
        self.clock = VirtualClock()
        settings: dict[str, Any] = scenario.settings()
        config = Config(manifest=str(MODEL.with_suffix(".json")), device=self.sim.index, **settings)
        self.executor = DeviceExecutor(config, self.clock, Stage)
        assert isinstance(self.executor.crew, Stage)
        self.stage = self.executor.crew
        self.clients: list[Client] = []
        self.asked: dict[int, Asked] = {}
        self.refused: list[Status] = []
        self.removed: list[Status] = []
        self.faults_left, self.cancels_left, self.removals = scenario.faults, scenario.cancels, 0
        self.faulted: list[str] = []
        self.spoiled: dict[int, str] = {}
        self.kinds: dict[str, list[Fault]] = {}
        for fault in FAULTS:
            if fault.name in scenario.kinds and _possible(fault, scenario):
                self.kinds.setdefault(fault.effect, []).append(fault)
        self.choices: list[int] = []
        self.moves_made: list[str] = []
        self.last: Any = None  # who made the last move
        self.begun = self.closing = self.closed_early = self.switched = self.overdue = False
        self.held = ""  # a call that was made with the monitor held
        self._golden = False
        self._device_jobs: dict[int, int] = {}  # by job, the device's number
        self._ended_jobs: set[int] = set()
        self.truth = Truth(self)

    # -- asking --------------------------------------------------------------------------------------------------------
    def ended(self) -> bool:
        return self._holds(self.executor._ended)

    def is_ready(self) -> bool:
        return self._holds(self.executor._is_ready)

    def serves_or_ended(self) -> bool:
        return self.is_ready() or self.ended()

    def _holds(self, rule: Any) -> bool:
        return bool(rule.guard(self.executor.engine._s, None))

    @property
    def generations(self) -> int:
        """How many have begun."""
        return self.executor.calls.generation_id

    def may_return(self, job: Any) -> bool:
        """Whether Wait() returns by itself: the job has ended, was killed, hangs, or is none of this generation."""
        number = self._device_jobs.get(job.tag.job_id, 0)
        if number in self._ended_jobs or job.tag.generation_id != self.generations:
            return True
        return not self.sim.truth("events_pending")

    def under_way(self) -> Iterator[tuple[str, Any, str | None]]:
        """Calls that were begun and not reported: effect, element, and what was observed, None before it is made."""
        for wish in (*(p.wish for p in self.stage.players), *(c.wish for c in self.clients)):
            match wish:
                case Call(effect, element):
                    yield effect.name, element, None
                case Report(effect, element, observed, _):
                    yield effect.name, element, observed
                case Reported(call, observed):
                    yield call.effect.name, call.element, observed

    # -- doing ---------------------------------------------------------------------------------------------------------
    def step(self, choice: int) -> bool:
        """Make the move of this number, modulo how many there are. False: there was none, or to rest. Raises
        Violated."""
        found = moves(self)
        if not found:
            return False
        at = choice % len(found)
        move = found[at]
        if move.kind == "rest":
            return False
        self.choices.append(at)
        self.moves_made.append(move.text)
        self.last = move.who
        getattr(self, f"_{move.kind}")(move)
        self.after()
        return True

    def after(self) -> None:
        """Something was done: who was granted something goes on, and all must be as it should. Raises Violated."""
        self.stage.grant()
        self._note_ended()
        if wrong := self.truth.wrong():
            raise Violated(wrong)

    def _act(self, move: Move) -> None:
        player: Player = move.who
        call = player.wish
        if not isinstance(call, Call):
            self.stage.act(player)
            return
        with self._planned(move.fault, call):
            self.stage.act(player)
        if call.effect.name == "infer":
            last = self.sim.trace(start=self.sim.calls_total() - 1, most=1)
            self._device_jobs[call.element.tag.job_id] = last[0].a if last and last[0].call == "infer" else 0

    def _early(self, move: Move) -> None:
        self.goes_wrong("wait returns early")
        self._act(move)

    def _follow(self, move: Move) -> None:
        half = move.who if isinstance(move.who, Half) else next(h for h in self.stage.halves if h.who is move.who)
        self.stage.follow(half)

    def _client(self, move: Move) -> None:
        client: Client = move.who
        match client.wish:
            case Call(effect, element) as call:
                with self._planned(move.fault, call):
                    client.answer(self.executor.calls.table()[effect.name](element))
            case Reported(call, observed):
                rules = self.stage.outcomes.of(call.effect, observed)
                self.executor.engine.fire(rules, call.element, observed)
                client.answer(None)
            case _:
                client.answer(None)

    def _device(self, move: Move) -> None:
        self.sim.step()

    def _time(self, move: Move) -> None:
        engine = self.executor.engine
        due_us = engine.next_due_us()
        if due_us is not None:
            self.clock.us = max(self.clock.us, due_us)
            self.overdue = self.stage.in_halves(engine.expire) is not None or self.overdue

    def _cancel(self, move: Move) -> None:
        self.cancels_left -= 1
        self.stage.in_halves(move.who.handle.cancel)

    def _remove(self, move: Move) -> None:
        self.removals += 1
        self.clients.append(Client(f"remover {self.removals}", removing(self, move.who)))
        self.clients[-1].answer(None)

    def _switch(self, move: Move) -> None:
        self.switched = True
        self.executor.switch_model(Path(self.executor.config.manifest))

    def _close(self, move: Move) -> None:
        self.close()

    def _give_up(self, move: Move) -> None:
        self.goes_wrong("give up")
        self.fire("client.give_up")

    def close(self) -> None:
        """What the executor's `close()` does first; the rest of it waits."""
        self.closing, self.closed_early = True, not self.is_ready()
        self.fire("client.close")

    def fire(self, rule: str) -> None:
        self.executor.engine.fire((self.executor.program.rules[rule],))

    # -- faults and the device -----------------------------------------------------------------------------------------
    def goes_wrong(self, what: str) -> None:
        self.faults_left -= 1
        self.faulted.append(what)

    @contextmanager
    def _planned(self, fault: Fault | None, call: Call) -> Iterator[None]:
        """The fault happens at the next such call of CalRT, and not later."""
        if fault is not None:
            self.goes_wrong(fault.name)
            if fault.effect == "infer" and fault.action in SPOILS:
                self.spoiled[call.element.tag.job_id] = fault.what
            for name in fault.calls:
                self.sim.fault(name, fault.action, fault.a, fault.b)
        self._golden = call.effect.name == "golden"
        yield
        self._golden = False
        if fault is not None:
            self.sim.faults_clear()

    def door(self, name: str, *arguments: Any) -> int:
        """Every call into CalRT. A golden run makes jobs and waits for them, all in one call of the protocol: there the
        device goes on by itself. §5.2: none is made inside the monitor."""
        if self.executor.engine._owner:
            self.held = name
        if self._golden and name == "output_wait":
            self._run_out()
        return Library.call(self.library, name, *arguments)

    def _run_out(self) -> None:
        """Until the job that was submitted last has ended, or nothing moves any more."""
        last = self.sim.trace(start=self.sim.calls_total() - 1, most=1)[0].a
        while last not in self._ended_jobs and self.sim.step():
            self._note_ended()

    def _note_ended(self) -> None:
        if self.sim.truth("jobs_completed") != len(self._ended_jobs):
            self._ended_jobs |= {ended.job for ended in self.sim.jobs()}

    # -- from the beginning to the end ---------------------------------------------------------------------------------
    def start(self) -> None:
        """Until the device is Ready; nothing goes wrong on the way. Then the clients begin."""
        while not self.is_ready():
            if not self.step(0):
                raise Violated("it does not become Ready")
        self.choices.clear()
        self.moves_made.clear()
        self.clients = [Client(f"client {n}", asking(self, n, p)) for n, p in enumerate(self.scenario.clients, 1)]
        self.begun, self.stage.fine = True, self.scenario.fine

    def end(self) -> None:
        """Everybody goes on until nobody can; then it is closed, and everything that was asked is answered."""
        self.rest()
        if not self.closing:
            self.close()
            self.rest()
        if wrong := self.truth.left():
            raise Violated(wrong)

    def rest(self) -> None:
        while self.step(0):
            if len(self.choices) > STEPS_MAX:
                raise Violated(f"it does not come to rest within {STEPS_MAX} steps")
        if stuck := self.truth.stuck():
            raise Violated(stuck)

    def scrap(self) -> None:
        """Give everything back, what is in quarantine as well: the device is reset before."""
        self.executor.engine.stop()
        calls = self.executor.calls
        with suppress(Exception):  # it may be broken: that is what was looked for
            self.sim.faults_clear()
            while self.sim.step():
                pass
            calls.device.reset()
            for pool in calls.pools:
                pool.end()
                for slot in pool.quarantined():
                    slot.release()
            calls.close()
        self.executor.observer.close()


def _possible(fault: Fault, scenario: Scenario) -> bool:
    """A reset that lies is a fault only where nobody declared that there is none."""
    return fault.action != "ignore" or not scenario.facts["reset_is_honest"]
