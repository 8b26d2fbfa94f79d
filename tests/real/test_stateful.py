"""The design card's state machine: what hosts and devices do, as rules over the scheduler, in any order.

Unlike the workhorse, which draws a scenario and then only numbers, here each rule is something that somebody does, and
a failure reads as a program of them. Invariants hold after every step: `Run.step` and `Run.after` raise what is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from schedules import PROFILE, RECOVERING

from checker.real import FAULTS, MOVES, Run, Scenario, running
from checker.real.clients import enqueue
from checker.real.moves import Move, moves

SEQUENCES = st.integers(1, 3)
WHICH = st.integers(0, 7)
DEADLINES_MS = st.sampled_from((0, 0, 5, 70))
LONG = 40  # steps: a job's life
NOBODY_KNOWS = (0,) * 99  # longer than any sequence here: refused
RULES = (
    "cancel", "seq_rm", "switch_model", "close", "another_goes_on", "deadline", "device", "wait_returns_early",
    "submit_code", "the_job_fails", "call_fails", "reset_fails",
)  # fmt: skip
ALL = tuple(f.name for f in FAULTS)


class Machine(RuleBasedStateMachine):
    """run: what is under way. known: by sequence, the tokens that it has by the last answer that was OK."""

    run: Run
    did: ClassVar[Counter[str]] = Counter()  # how often a rule found something to do

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.deadlines_left = 4  # each may end a generation, and with some policies everything
        self.known: dict[int, tuple[int, ...]] = {}

    @initialize(
        policy=st.sampled_from((*RECOVERING, "exit")), slots=st.integers(1, 2), both=st.booleans(), fine=st.booleans(),
        short_ms=st.sampled_from(("execution_ms", "grace_ms", "queue_ms", "kv_retry_ms", "stuck_ms", "backoff_ms")),
    )  # fmt: skip
    def begin(self, policy: str, slots: int, both: bool, fine: bool, short_ms: str) -> None:
        scenario = Scenario(
            policy=policy, slots=slots, inflight=slots if both else 1, clients=(), faults=6, cancels=100, kinds=ALL,
            moves=MOVES, unlike_ms=((short_ms, 10),), ends_after=0, fine=fine,
        )  # fmt: skip
        self.run = self.stack.enter_context(running(scenario))
        for sequence in (1, 2):
            enqueue(self.run, sequence, (), 3, 0)
        self.run.after()

    # -- the host ------------------------------------------------------------------------------------------------------
    @rule(sequence=SEQUENCES, count=st.integers(1, 6), deadline_ms=DEADLINES_MS)
    def enqueue_a_prompt(self, sequence: int, count: int, deadline_ms: int) -> None:
        enqueue(self.run, sequence, (), count, deadline_ms)
        self.run.after()

    @rule(sequence=SEQUENCES, count=st.integers(1, 3), deadline_ms=DEADLINES_MS)
    def enqueue_more(self, sequence: int, count: int, deadline_ms: int) -> None:
        self._look()
        enqueue(self.run, sequence, self.known.get(sequence, NOBODY_KNOWS), count, deadline_ms)
        self.run.after()

    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        self._one_of("cancel", which, lambda m: m.kind == "cancel", within=LONG)

    @rule(which=WHICH)
    def seq_rm(self, which: int) -> None:
        self._one_of("seq_rm", which, lambda m: m.kind == "remove")

    @rule()
    def switch_model(self) -> None:
        self._one_of("switch_model", 0, lambda m: m.kind == "switch")

    @precondition(lambda self: len(self.run.choices) > 60)
    @rule()
    def close(self) -> None:
        self._one_of("close", 0, lambda m: m.kind == "close")

    # -- the executor and time -----------------------------------------------------------------------------------------
    @rule(steps=st.integers(1, 8))
    def go_on(self, steps: int) -> None:
        """Everybody as far as he comes by himself."""
        for _ in range(steps):
            self.run.step(0)

    @rule(which=WHICH)
    def another_goes_on(self, which: int) -> None:
        self._one_of("another_goes_on", which, lambda m: m.kind in ("act", "client", "follow") and m.fault is None)

    @precondition(lambda self: self.deadlines_left)
    @rule()
    def deadline(self) -> None:
        self.deadlines_left -= 1
        self._one_of("deadline", 0, lambda m: m.kind == "time")

    # -- the device ----------------------------------------------------------------------------------------------------
    @rule()
    def device(self) -> None:
        self._one_of("device", 0, lambda m: m.kind == "device", within=LONG)

    @rule()
    def wait_returns_early(self) -> None:
        self._one_of("wait_returns_early", 0, lambda m: m.kind == "early", within=LONG)

    @rule(which=WHICH)
    def submit_code(self, which: int) -> None:
        self._fault("submit_code", which, "infer", "return", "throw")

    @rule(which=WHICH)
    def the_job_fails(self, which: int) -> None:
        """Hangs, raises, computes nonsense, completes twice."""
        self._fault("the_job_fails", which, "infer", "hang", "ccu_exception", "nan", "inf", "short_tensor", "double")

    @rule(which=WHICH, effect=st.sampled_from(sorted({f.effect for f in FAULTS} - {"infer", "reset"})))
    def call_fails(self, which: int, effect: str) -> None:
        self._fault("call_fails", which, effect)

    @rule(which=WHICH)
    def reset_fails(self, which: int) -> None:
        self._fault("reset_fails", which, "reset")

    # -- how -----------------------------------------------------------------------------------------------------------
    def _fault(self, rule: str, which: int, effect: str, *actions: str) -> None:
        self._one_of(
            rule,
            which,
            lambda m: m.fault is not None and m.fault.effect == effect and (not actions or m.fault.action in actions),
            within=LONG,
        )

    def _one_of(self, rule: str, which: int, wanted: Callable[[Move], bool], within: int = 1) -> None:
        """One of the moves that are wanted, as soon as there is one: after so many steps at most."""
        for _ in range(within):
            found = [at for at, move in enumerate(moves(self.run)) if wanted(move)]
            if found:
                self.did[rule] += 1
                self.run.step(found[which % len(found)])
                return
            if not self.run.step(0):
                return

    def _look(self) -> None:
        """What the host has been told."""
        for asked in self.run.asked.values():
            if asked.ok():
                self.known[asked.sequence] = (*asked.history, *asked.tokens)

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert self.run.truth.wrong() == ""

    def teardown(self) -> None:
        with self.stack:
            if hasattr(self, "run"):
                self.run.end()


def test_the_machine() -> None:
    """And most of its rules did something: in few examples not each of them comes to pass."""
    Machine.did.clear()
    profile = settings(PROFILE, max_examples=max(10, PROFILE.max_examples // 3), stateful_step_count=40)
    run_state_machine_as_test(Machine, settings=profile)
    print(dict(Machine.did))
    assert len([r for r in RULES if not Machine.did[r]]) <= 3
