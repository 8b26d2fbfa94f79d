"""The engine by itself, over a small rulebook: a pool of units that users take and give back, with a deadline."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from machines.expr import Domain, Param, Sort, State
from machines.rulebook import Actor, Effect, Return, Rule, Rulebook, variable
from machines.table import Row, Table
from runtime import timers, wakes
from runtime.compiled import CompiledRule, IllegalTransition, Program
from runtime.engine import Engine, Fired, MonitorHeld, Unreceived, Waiter
from runtime.journal import Journal


class UserState(State):
    Idle, Wants, Holds, Late = range(4)


class UserCall(State):
    Idle, Work = range(2)


U = UserState
USER = Table(
    "user",
    UserState,
    initial=U.Idle,
    rows=[
        Row(U.Idle, "ask", U.Wants),
        Row(U.Wants, "get", U.Holds),
        Row(U.Holds, "give", U.Idle),
        Row(U.Wants, "miss", U.Late),
        Row(U.Late, "ask", U.Wants),
    ],
)
UNITS = Param("units", 1, 1, 9)
user = Sort("user", Param("users", 2, 1, 9).expr)
ME, CLOCK = Actor("me"), Actor("clock")
VARIABLES = (
    variable("free", Domain(UNITS.expr), UNITS.expr),
    variable("state", USER, sort=user),
    variable("call", Domain.of(UserCall), sort=user),
)
free = VARIABLES[0].ref
WORK = Effect("work", user.call, UserCall.Work, UserCall.Idle, [Return("done"), Return("failed")], over=user)
MY = (user.index,)
RULES = (
    Rule("me.ask", ME, user.state.isin(U.Idle, U.Late), MY, fires={user.state: "ask"}),
    Rule("me.get", ME, (user.state == U.Wants) & (free > 0), MY, fires={user.state: "get"}, then={free: free - 1}),
    Rule("me.work", ME, user.state == U.Holds, MY, begins=WORK),
    Rule("me.worked", ME, over=MY, outcome=(WORK, ("done", "failed"))),
    Rule("me.give", ME, (user.state == U.Holds) & (user.call == UserCall.Idle), MY, fires={user.state: "give"},
         then={free: free + 1}),
    Rule("clock.miss", CLOCK, user.state == U.Wants, MY, fires={user.state: "miss"}),
    Rule("clock.stuck", CLOCK, user.call == UserCall.Work, MY),
)  # fmt: skip
BOOK = Rulebook(
    "units", actors=(ME, CLOCK), params=(UNITS, user.size.args[0]), sorts=(user,), variables=VARIABLES, effects=(WORK,),
    rules=RULES, legal_end=free >= 0,
)  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.us = 0

    def __call__(self) -> int:
        return self.us


class Bench:
    def __init__(self, units: int = 1, users: int = 4, **timers: int) -> None:
        self.clock = Clock()
        self.program = Program(BOOK, {"units": units})
        after = {name.replace("_", "."): lambda s, e, us=us: us for name, us in timers.items()}
        self.engine = Engine(self.program, after, now_us=self.clock)
        self.users = [self.engine.add("user", f"u{i}") for i in range(users)]

    def rule(self, name: str) -> CompiledRule:
        return self.program.rules[name]

    def fire(self, name: str, user: int) -> bool:
        return self.engine.fire((self.rule(name),), self.users[user]) is not None

    def take(self, name: str, user: int | None) -> tuple[Waiter, Fired | None]:
        waiter = Waiter()
        return waiter, self.engine.take((self.rule(name),), None if user is None else self.users[user], waiter)

    def free(self) -> int:
        return int(self.engine.read(lambda s: s.free))

    def journal(self) -> list[tuple[str, Any]]:
        return [(e.rule, e.element) for e in self.engine.journal.entries()]


def granted(waiter: Waiter) -> bool:
    return waiter.token.acquire(blocking=False)


def test_a_rule_fires_or_does_not() -> None:
    b = Bench()
    assert not b.fire("me.get", 0)
    assert b.fire("me.ask", 0)
    assert b.fire("me.get", 0)
    assert b.free() == 0
    assert b.journal() == [("me.ask", "u0"), ("me.get", "u0")]


def test_an_impossible_event_leaves_the_engine_usable() -> None:
    b = Bench()
    with pytest.raises(IllegalTransition, match=r"me\.bad: user is Idle, where get is not possible; possible are ask"):
        b.engine.fire((b.program.compiled(Rule("me.bad", ME, over=MY, fires={user.state: "get"})),), b.users[0])
    assert b.fire("me.ask", 0)


def test_who_waits_is_served_by_who_gives_in_the_order_of_coming() -> None:
    b = Bench()
    for i in range(4):
        b.fire("me.ask", i)
    b.fire("me.get", 0)
    waiters = [b.take("me.get", i)[0] for i in (2, 1, 3)]
    assert b.fire("me.give", 0)
    assert [granted(w) for w in waiters] == [True, False, False]
    assert waiters[0].result == Fired(b.rule("me.get"), b.users[2])
    assert b.free() == 0
    assert b.journal()[-2:] == [("me.give", "u0"), ("me.get", "u2")], "both in one stay in the monitor"


def test_one_step_may_let_a_chain_go_on() -> None:
    b = Bench(units=2)
    for i in range(4):
        b.fire("me.ask", i)
    assert b.take("me.get", 0)[1]
    assert b.take("me.get", 1)[1]
    third, _ = b.take("me.get", 2)
    any_giver, fired = b.take("me.give", None)
    assert fired == Fired(b.rule("me.give"), b.users[0]), "an actor for anybody serves who came first"
    assert granted(third)
    assert not any_giver.parked


def test_an_actor_for_anybody_is_woken_by_the_one_it_can_serve() -> None:
    b = Bench()
    waiter, fired = b.take("me.give", None)
    assert fired is None
    b.fire("me.ask", 3)
    assert not granted(waiter)
    b.fire("me.get", 3)
    assert granted(waiter)
    assert waiter.result == Fired(b.rule("me.give"), b.users[3])


def test_who_is_sent_away_is_not_served() -> None:
    b = Bench()
    b.fire("me.ask", 0)
    b.fire("me.ask", 1)
    b.fire("me.get", 0)
    waiter, _ = b.take("me.get", 1)
    assert b.engine.send_away(waiter)
    assert granted(waiter)
    assert waiter.result is None
    b.fire("me.give", 0)
    assert b.free() == 1
    assert not b.engine.send_away(waiter), "it does not wait any more"


def test_stopping_sends_everybody_away_from_now_on() -> None:
    b = Bench()
    waiter, _ = b.take("me.give", None)
    b.engine.stop()
    assert granted(waiter)
    later, fired = b.take("me.ask", 0)
    assert (fired, later.result, granted(later)) == (None, None, True)


# -- time --------------------------------------------------------------------------------------------------------------
def test_a_timer_is_armed_by_the_step_that_starts_it() -> None:
    b = Bench(clock_miss=100)
    assert b.engine.next_due_us() is None
    b.clock.us = 7
    b.fire("me.ask", 0)
    assert b.engine.next_due_us() == 107
    b.clock.us = 106
    assert b.engine.expire() is None
    b.clock.us = 107
    assert b.engine.expire() == Fired(b.rule("clock.miss"), b.users[0])
    assert b.engine.expire() is None
    assert b.engine.next_due_us() is None


def test_a_timer_is_disarmed_by_the_step_that_ends_it() -> None:
    b = Bench(clock_miss=100)
    b.fire("me.ask", 0)
    b.fire("me.get", 0)
    assert b.engine.next_due_us() is None
    b.clock.us = 500
    assert b.engine.expire() is None
    b.fire("me.give", 0)
    b.fire("me.ask", 0)
    assert b.engine.next_due_us() == 600, "and starts anew"


def test_each_call_has_its_own_time() -> None:
    b = Bench(clock_stuck=100)
    b.fire("me.ask", 0)
    b.fire("me.get", 0)
    b.fire("me.work", 0)
    b.clock.us = 90
    b.engine.fire((b.rule("me.worked"),), b.users[0], "done")
    b.fire("me.work", 0)
    assert b.engine.next_due_us() == 190


def test_disarmed_timers_do_not_pile_up() -> None:
    b = Bench(clock_miss=10**9)
    for _ in range(5000):
        assert b.fire("me.ask", 0)
        assert b.fire("me.get", 0)
        assert b.fire("me.give", 0)
    assert b.engine.timers.counts() == (0, 1)


def test_timers_of_removed_elements_do_not_pile_up() -> None:
    b = Bench(clock_miss=10**9)
    for _ in range(2 * timers.IDLE_MAX):
        passing = b.engine.add("user", "passing")
        assert b.engine.fire((b.rule("me.ask"),), passing)
        b.engine.remove("user", passing)
    armed, places = b.engine.timers.counts()
    assert armed == 0
    assert places <= timers.IDLE_MAX + 1


def test_who_sleeps_is_woken_for_an_earlier_timer_only() -> None:
    b = Bench(clock_miss=100)
    woken: list[int] = []
    b.engine.on_arm = lambda: woken.append(b.clock.us)
    assert b.engine.next_due_us() is None
    b.fire("me.ask", 0)
    assert woken == [0]
    assert b.engine.next_due_us() == 100
    b.clock.us = 10
    b.fire("me.ask", 1)
    b.fire("me.get", 0)
    assert woken == [0]
    b.clock.us = 100
    assert b.engine.expire() is None
    assert b.engine.next_due_us() == 110


def test_a_removed_element_has_no_timers() -> None:
    b = Bench(clock_miss=100)
    b.fire("me.ask", 0)
    b.engine.remove("user", b.users[0])
    assert b.engine.next_due_us() is None


# -- an actor that goes on ---------------------------------------------------------------------------------------------
def test_who_reports_goes_on_before_anybody_who_waits() -> None:
    b = Bench()
    b.fire("me.ask", 0)
    b.fire("me.get", 0)
    b.fire("me.work", 0)
    idle, fired = b.take("me.give", None)
    assert fired is None
    mine = Waiter()
    last = b.engine.report((b.rule("me.worked"),), b.users[0], "done", (b.rule("me.give"),), mine)
    assert last is None, "nothing is left to be given: it waits"
    assert mine.parked
    assert idle.parked, "nobody was woken for what it did itself"
    assert [rule for rule, _ in b.journal()[-2:]] == ["me.worked", "me.give"]


def test_who_reports_stops_at_the_next_call() -> None:
    b = Bench()
    b.fire("me.ask", 0)
    b.fire("me.get", 0)
    b.fire("me.work", 0)
    last = b.engine.report((b.rule("me.worked"),), b.users[0], "done", (b.rule("me.work"),), Waiter())
    assert last == Fired(b.rule("me.work"), b.users[0])


def test_what_its_steps_enable_is_handed_on() -> None:
    b = Bench()
    for i in (0, 1):
        b.fire("me.ask", i)
    b.fire("me.get", 0)
    b.fire("me.work", 0)
    other, _ = b.take("me.get", 1)
    assert b.engine.report((b.rule("me.worked"),), b.users[0], "done", (b.rule("me.give"),), Waiter()) is None
    assert other.result == Fired(b.rule("me.get"), b.users[1])


def test_what_no_outcome_takes_is_told() -> None:
    b = Bench()
    with pytest.raises(Unreceived, match="no rule took 'done' about u0"):
        b.engine.report((b.rule("me.give"),), b.users[0], "done", (), Waiter())


# -- the monitor -------------------------------------------------------------------------------------------------------
def test_no_call_inside_the_monitor() -> None:
    b = Bench()
    b.engine.must_be_outside()
    with b.engine, pytest.raises(MonitorHeld):
        b.engine.must_be_outside()
    b.engine.must_be_outside()


def test_the_journal_keeps_the_last_steps() -> None:
    b = Bench()
    b.engine.journal = Journal(entries=4)
    for _ in range(3):
        b.fire("me.ask", 0)
        b.fire("me.get", 0)
        b.fire("me.give", 0)
    assert [(e.number, e.rule) for e in b.engine.journal.entries()] == [
        (5, "me.give"), (6, "me.ask"), (7, "me.get"), (8, "me.give"),
    ]  # fmt: skip


# -- threads -----------------------------------------------------------------------------------------------------------
ROUNDS, THREADS, PATIENCE_S = 300, 6, 30.0


def contend(b: Bench) -> list[int]:
    """Every user asks, gets (waiting if it must), gives, ROUNDS times; how far each came within the patience."""
    done = [0] * len(b.users)

    def live(i: int) -> None:
        waiter = Waiter()
        for _ in range(ROUNDS):
            b.fire("me.ask", i)
            fired = b.engine.take((b.rule("me.get"),), b.users[i], waiter)
            if fired is None and not waiter.token.acquire(timeout=PATIENCE_S):
                return
            time.sleep(0)  # hold it over a switch of threads, so that others must wait
            b.fire("me.give", i)
            done[i] += 1

    threads = [threading.Thread(target=live, args=(i,)) for i in range(len(b.users))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return done


def test_no_wake_up_is_lost() -> None:
    b = Bench(units=2, users=THREADS)
    assert contend(b) == [ROUNDS] * THREADS
    assert b.free() == 2


def test_a_missing_wake_up_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: an engine that does not know that giving lets others get."""
    known = wakes._concerned

    def forgetful(rule: CompiledRule, others: Any) -> Any:
        return [c for c in known(rule, others) if (rule.id, c.rule.id) != ("me.give", "me.get")]

    monkeypatch.setattr(wakes, "_concerned", forgetful)
    with pytest.raises(AssertionError):
        test_who_waits_is_served_by_who_gives_in_the_order_of_coming()
    with pytest.raises(AssertionError):
        test_a_random_schedule_never_leaves_an_enabled_waiter_parked()


def test_a_random_schedule_never_leaves_an_enabled_waiter_parked() -> None:
    rng = random.Random(1)
    b = Bench(units=2, users=5)
    parked: dict[int, Waiter] = {}
    waits = 0
    for _ in range(4000):
        i = rng.randrange(5)
        if i in parked:
            if granted(parked[i]):
                del parked[i]
            continue
        name = rng.choice(["me.ask", "me.give", "me.work", "me.worked"])
        if name == "me.ask":
            if b.fire("me.ask", i):
                waiter, fired = b.take("me.get", i)
                if fired is None:
                    parked[i] = waiter
                    waits += 1
        else:
            b.fire(name, i)
        for other, waiter in parked.items():
            if waiter.parked:
                guard = b.rule("me.get").guard
                assert not b.engine.read(lambda s, o=other, g=guard: g(s, b.users[o]))
    assert waits > 100
