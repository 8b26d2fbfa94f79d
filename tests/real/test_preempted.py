"""`drive` and the engine under real threads, with one of them held up before each of its lines in turn.

A thread may be pre-empted anywhere; whoever is held up, for so long that everybody else has done all that they can,
must find what he needs all the same. So one line after the other is made such a place, while two clients decode: every
token is the oracle's, and nobody waits for ever. The scheduler of checker.real chooses between steps; this goes between
lines.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from attrs import define
from executing import Bench, executing

from runtime import actors, engine
from runtime.calrt import Library
from runtime.compiled import CompiledRule
from runtime.engine import Engine, Waiter

Rules = tuple[CompiledRule, ...]
WATCHED = {module.__file__ for module in (actors, engine)}
HELD_UP_S = 0.004  # everybody else is done with what he can do by then
LATEST_S = 30.0
CLIENT = "client"
PROMPTS = {1: list(b"held up"), 2: list(b"not held up")}
ROUNDS_MAX = 20_000
STRIDE = 29  # lines, in the fast tier


@define
class HoldUp:
    """The thread whose name begins with `who` sleeps before its `at`-th line in the watched files, once."""

    who: str = ""
    at: int = 0
    seen: int = 0
    held_up: int = 0

    def arm(self, who: str, at: int) -> None:
        self.who, self.at, self.seen, self.held_up = who, at, 0, 0

    def calls(self, frame: FrameType, event: str, arg: Any) -> Any:
        """What Python asks when a function begins: whether to be told of its lines."""
        return self.lines if frame.f_code.co_filename in WATCHED else None

    def lines(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and self.who and threading.current_thread().name.startswith(self.who):
            self.seen += 1
            if self.seen == self.at:
                self.held_up += 1
                time.sleep(HELD_UP_S)
        return self.lines


@contextmanager
def traced() -> Iterator[HoldUp]:
    """Every thread that is started meanwhile, and this one."""
    hold_up, before = HoldUp(), sys.gettrace()
    threading.settrace(hold_up.calls)
    try:
        yield hold_up
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
        sys.settrace(before)


class Decoding:
    """Two clients, each on its sequence; what they say is checked token by token."""

    def __init__(self, b: Bench, latest_s: float) -> None:
        self.b, self.latest_s = b, latest_s
        self.said: dict[int, list[int]] = {seq: [] for seq in PROMPTS}

    def round(self) -> None:
        """A token for each of them, at the same time."""
        clients = [threading.Thread(target=self.token, args=(seq,), name=f"{CLIENT} {seq}") for seq in PROMPTS]
        for client in clients:
            client.start()
        for client in clients:
            client.join(self.latest_s)
            assert not client.is_alive(), "a client waits for ever"

    def token(self, seq: int) -> None:
        said, prompt = self.said[seq], PROMPTS[seq]
        values, past = (said[-1:], len(prompt) + len(said) - 1) if said else (prompt, 0)
        result = self.b.enqueue(seq, values, past).wait_until(None)  # as long as it takes: `round` does not
        if result is not None and result.logits is not None:
            said.append(int(result.logits.argmax()))

    def check(self, tokens: int) -> None:
        for seq, prompt in PROMPTS.items():
            assert self.said[seq] == self.b.oracle.tokens(prompt, tokens)
            assert self.b.executor.seq_rm(seq).ok
            self.said[seq] = []


def hold_up_everywhere(library: Library, who: str, stride: int, latest_s: float = LATEST_S) -> int:
    """Before every `stride`-th line that a round makes this thread go through; how many rounds had one."""
    with traced() as hold_up, executing(library) as b:
        decoding = Decoding(b, latest_s)
        for number, at in enumerate(range(1, ROUNDS_MAX, stride), 1):
            hold_up.arm(who, at)
            decoding.round()
            if number % 50 == 0 or not hold_up.held_up:
                hold_up.who = ""
                decoding.check(number % 50 or 50)
            if not hold_up.held_up:
                return number - 1
    raise AssertionError(f"{who} goes through more than {ROUNDS_MAX} lines for a token")


WHO = ("calexec submitter", "calexec completion", CLIENT)


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.nightly)])
def test_held_up_before_any_line(library: Library, who: str, stride: int) -> None:
    assert hold_up_everywhere(library, who, stride) > 100 / stride


BETWEEN: dict[str, Any] = {}
exec(compile("def moments(): pass", "<between>", "exec"), BETWEEN)  # a line in a file of its own


def looked_before_it_was_parked(
    self: Engine, outcomes: Rules, element: Any, observed: str, takes: Rules, waiter: Waiter
) -> Any:
    """Engine.report with the look and the parking in two moments: a step in between is missed."""
    with self:
        fired = self._first(outcomes, element)
        steps = []
        while fired is not None:
            steps.append(self._noted(fired, "" if steps else observed))
            if fired.rule.rule.begins is not None:
                break
            fired = self._first(takes, None)
        granted = self._grant(steps)
    self._finish(steps, granted)
    if fired is None:
        BETWEEN["moments"]()
        with self:
            waiter.result = None
            self._park(takes, None, waiter)
    return fired


def test_control_a_wake_up_that_is_lost(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """The submitter is held up between the two, for long enough that its next job has come."""
    monkeypatch.setattr(Engine, "report", looked_before_it_was_parked)
    for name, value in {"WATCHED": {"<between>"}, "HELD_UP_S": 0.5}.items():
        monkeypatch.setattr(sys.modules[__name__], name, value)
    with pytest.raises(AssertionError, match="a client waits for ever"):
        hold_up_everywhere(library, "calexec submitter", 1, latest_s=2)
