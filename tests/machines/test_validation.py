"""Each thing that can be wrong with a table or rulebook, as one small wrong one with its exact message.

These are the negative controls of validation. `test_every_message_has_a_case` reads the messages out of the source, so
a new check without a case here fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checker.model import build as ground_model
from machines import table, validate
from machines.expr import FALSE, Domain, ExprError, Map, Param, Sort, State, Var, const, every, some
from machines.rulebook import (
    Actor,
    Each,
    Effect,
    Invariant,
    LeadsTo,
    Property,
    Return,
    Rule,
    Rulebook,
    Run,
    Sometimes,
    Step,
    variable,
)
from machines.table import Ignore, Reject, Row, RulebookError, Table


class Light(State):
    Off, On = range(2)


class Colour(State):
    Red, Green = range(2)


class Call(State):
    Idle, Ask = range(2)


# -- tables -----------------------------------------------------------------------------------------------------------
def lamp(*rows: Row | Ignore | Reject, states: type[State] = Light, **changes: Any) -> Table:
    """A lamp that goes on and off, with more rows."""
    standard = (Row(Light.Off, "press", Light.On), Row(Light.On, "press", Light.Off))
    return Table("lamp", states, **{"initial": Light.Off, "rows": (*standard, *rows), **changes})


LIGHTS = "allowed are Off, On"
TABLE_CASES: dict[str, tuple[Callable[[], Table], str]] = {
    "unknown source": (
        lambda: lamp(Row(Colour.Red, "break", Light.Off)),
        f"row on 'break' names unknown state {Colour.Red!r}; {LIGHTS}",
    ),
    "no row": (
        lambda: lamp(("Off", "press")),
        "('Off', 'press') is no row; allowed are Row, Ignore and Reject",
    ),
    "unknown target": (
        lambda: lamp(Row(Light.Off, "break", Colour.Red)),
        f"row on 'break' names unknown state {Colour.Red!r}; {LIGHTS}",
    ),
    "event that is not a name": (
        lambda: lamp(Row(Light.Off, "press hard", Light.On)),
        "row from (<Light.Off: 0>,) has event 'press hard', which is not a name",
    ),
    "no source": (lambda: lamp(Row((), "break", Light.On)), "row on 'break' has no source state"),
    "ignore without a reason": (lambda: lamp(Ignore(Light.Off, "rub", "")), "Ignore on 'rub' gives no reason"),
    "reject without a reason": (lambda: lamp(Reject(Light.Off, "rub", "No", "")), "Reject on 'rub' gives no reason"),
    "row declared twice": (
        lambda: lamp(Row(Light.Off, "press", Light.On)),
        "row lamp.Off.press is declared twice",
    ),
    "nondeterministic row": (
        lambda: lamp(Row(Light.Off, "press", Light.Off)),
        "row lamp.Off.press is nondeterministic: goto to On and goto to Off",
    ),
    "goto and ignore in one cell": (
        lambda: lamp(Ignore(Light.Off, "press", "broken")),
        "row lamp.Off.press is nondeterministic: goto to On and ignore to Off",
    ),
    "foreign final state": (
        lambda: lamp(final={Colour.Red}),
        f"final state {Colour.Red!r} is not one of Light",
    ),
    "foreign pseudo state": (
        lambda: lamp(pseudo={Colour.Red}),
        f"pseudo state {Colour.Red!r} is not one of Light",
    ),
    "unreachable state": (
        lambda: Table("lamp", Light, Light.Off, [Ignore(Light.Off, "rub", "it stays off")], final={Light.Off}),
        "state On is unreachable from Off",
    ),
    "trap": (
        lambda: Table("lamp", Light, Light.Off, [Row(Light.Off, "press", Light.On)]),
        "state On is a trap: no row leads out of it; add a row or name it in final=",
    ),
}


@pytest.mark.parametrize("case", TABLE_CASES)
def test_table(case: str) -> None:
    build, message = TABLE_CASES[case]
    with pytest.raises(RulebookError) as caught:
        build()
    assert caught.value.problems == (message,)
    assert str(caught.value) == f"table lamp: {message}"


DEAD_ROW = "row lamp.On.press is dead: its source is unreachable"


def test_a_dead_row_is_named_with_its_state() -> None:
    with pytest.raises(RulebookError) as caught:
        Table("lamp", Light, Light.Off, [Row(Light.On, "press", Light.Off)], final={Light.Off})
    assert caught.value.problems == ("state On is unreachable from Off", DEAD_ROW)


FOREIGN_INITIAL = f"initial state {Colour.Red!r} is not one of Light"


def test_a_foreign_initial_state_is_named_first() -> None:
    with pytest.raises(RulebookError) as caught:
        lamp(initial=Colour.Red)
    assert caught.value.problems[0] == FOREIGN_INITIAL


def test_the_lamp_itself_is_well_formed() -> None:
    assert [e.id for e in lamp().gotos()] == ["lamp.Off.press", "lamp.On.press"]
    assert lamp().kind(Light.Off, "press") == "goto"
    assert lamp(Reject(Light.Off, "rub", "No", "why")).kind(Light.Off, "rub") == "reject"
    assert lamp().kind(Light.Off, "rub") == "impossible"


# -- rulebooks --------------------------------------------------------------------------------------------------------
class Toy:
    """A well-formed rulebook about two lamps; each case breaks one thing of it."""

    def __init__(self) -> None:
        self.table = lamp()
        self.lamps = Param("lamps", default=2, lo=1, hi=3)
        self.lamp = Sort("lamp", self.lamps.expr)
        self.room = Sort("room", 1)
        self.light = variable("light", self.table, sort=self.lamp, lock="hall")
        self.presses = variable("presses", Domain(3), lock="hall")
        self.power = variable("power", Domain.boolean(), True, world=True)
        self.open = variable("open", Domain.boolean(), sort=self.room, lock="hall")
        self.call = variable("call", Domain.of(Call), lock="hall")
        self.hand = Actor("hand")
        self.nature = Actor("nature", environment=True)
        self.ask = Effect(
            "ask", self.call.ref, Call.Ask, Call.Idle, [Return("ok"), Return("bad", truth={self.power.ref: False})]
        )
        self.press = Rule("press", self.hand, over=(self.lamp.index,), fires={self.lamp.light: "press"})
        self.cut = Rule("cut", self.nature, world=self.power.ref, truth={self.power.ref: False})
        self.begin = Rule("ask.begin", self.hand, begins=self.ask)
        self.answer = Rule("ask.answer", self.hand, outcome=(self.ask, ("ok", "bad")))

    def rulebook(self, *more: Rule, variables: tuple[Var, ...] = (), **changes: Any) -> Rulebook:
        """The rulebook with more rules and variables, and other fields replaced."""
        fields: dict[str, Any] = {
            "actors": (self.hand, self.nature),
            "params": (self.lamps,),
            "sorts": (self.lamp, self.room),
            "variables": (self.light, self.presses, self.power, self.open, self.call, *variables),
            "rules": (self.press, self.cut, self.begin, self.answer, *more),
            "effects": (self.ask,),
            "locks": ("hall",),
        }
        return Rulebook("toy", **(fields | changes))

    def rule(self, *args: Any, actor: Actor | None = None, **fields: Any) -> Rulebook:
        """The rulebook with one more rule."""
        return self.rulebook(Rule("extra", actor or self.hand, *args, **fields))

    def says(self, prop: Property) -> Rulebook:
        return self.rulebook(properties=(prop,))


def stray(name: str = "stray", domain: Any = None, **fields: Any) -> Var:
    """A variable that no rulebook lists."""
    start = fields.pop("initial", 0)
    return Var(name, domain or Domain.boolean(), const(start), **{"lock": "hall", **fields})


def _sort_not_listed() -> Rulebook:
    toy = Toy()
    return toy.rulebook(variables=(variable("x", Domain(1), sort=Sort("shed", 1), lock="hall"),))


def _indexed_by_another_sort() -> Rulebook:
    toy = Toy()
    return toy.rule(toy.lamp.at(toy.room.index).light == Light.On, over=(toy.room.index,))


def _mapped_to_another_sort() -> Rulebook:
    toy = Toy()
    rooms = Map("room_of", toy.lamp, toy.room, lambda i, params: 0)
    return toy.rule(toy.lamp.at(rooms.index()).light == Light.On, over=(toy.lamp.index,), then={})


def _another_lamp_table(toy: Toy) -> Rulebook:
    second = stray("other", Domain.of(Light), machine=lamp())
    return toy.rulebook(Rule("extra", toy.hand, fires={second.ref: "press"}), variables=(second,))


def _no_rule_fires() -> Rulebook:
    toy = Toy()
    return toy.rulebook(rules=(toy.cut, toy.begin, toy.answer))


CASES: dict[str, tuple[Callable[[Toy], Rulebook], str]] = {
    # duplicates
    "actor twice": (
        lambda t: t.rulebook(actors=(t.hand, t.nature, Actor("hand"))),
        "actor hand is declared 2 times",
    ),
    "parameter twice": (
        lambda t: t.rulebook(params=(t.lamps, Param("lamps", 1))),
        "parameter lamps is declared 2 times",
    ),
    "parameter whose default is out of range": (
        lambda t: t.rulebook(params=(t.lamps, Param("floors", 9, 1, 3))),
        "parameter floors has default 9; allowed are 1..3",
    ),
    "sort twice": (
        lambda t: t.rulebook(sorts=(t.lamp, t.room, Sort("room", 2))),
        "sort room is declared 2 times",
    ),
    "table twice": (
        lambda t: _another_lamp_table(t),
        "table lamp is declared 2 times",
    ),
    "variable twice": (
        lambda t: t.rulebook(variables=(stray("presses"),)),
        "variable presses is declared 2 times",
    ),
    "rule twice": (lambda t: t.rulebook(t.cut), "rule cut is declared 2 times"),
    "effect twice": (lambda t: t.rulebook(effects=(t.ask, t.ask)), "effect ask is declared 2 times"),
    "property twice": (
        lambda t: t.rulebook(properties=[Sometimes("dark", "It may be dark.", reached=~t.power.ref)] * 2),
        "property dark is declared 2 times",
    ),
    "run twice": (lambda t: t.rulebook(runs=[Run("a"), Run("a")]), "run a is declared 2 times"),
    # variables
    "no range": (
        lambda t: t.rulebook(variables=(stray(domain="0..3"),)),
        "variable stray has no range: declare Domain(hi), Domain.boolean(), Domain.of(Enum) or a Table",
    ),
    "range that reads variables": (
        lambda t: t.rulebook(variables=(stray(domain=Domain(t.presses.ref)),)),
        "the range of variable stray reads variables; it may read parameters only",
    ),
    "initial value that reads variables": (
        lambda t: t.rulebook(variables=(stray(initial=t.presses.ref),)),
        "the initial value of variable stray reads variables; it may read parameters only",
    ),
    "initial value of another enum": (
        lambda t: t.rulebook(variables=(stray(domain=Domain.of(Call), initial=Colour.Red),)),
        "variable stray starts at Colour.Red; allowed are the members of Call",
    ),
    "initial value out of range": (
        lambda t: t.rulebook(variables=(stray(initial=2),)),
        "variable stray starts at 2, outside 0..1",
    ),
    "sort not listed": (
        lambda t: _sort_not_listed(),
        "variable shed.x belongs to sort shed, which the rulebook does not list",
    ),
    "unknown lock domain": (
        lambda t: t.rulebook(variables=(stray(lock="attic"),)),
        "variable stray has lock domain 'attic'; allowed are hall",
    ),
    "no lock domain": (
        lambda t: t.rulebook(variables=(stray(lock=""),)),
        "variable stray has lock domain ''; allowed are hall",
    ),
    "lock domain of the world": (
        lambda t: t.rulebook(variables=(stray(world=True),)),
        "variable stray is the world's and cannot have a lock domain ('hall')",
    ),
    # rules: who, and what they read
    "unknown actor": (
        lambda t: t.rule(actor=Actor("ghost")),
        "rule extra belongs to actor ghost, which is not one of hand, nature",
    ),
    "guard that reads the world": (
        lambda t: t.rule(t.power.ref),
        "the guard of rule extra reads the world (power): the executor cannot know it; "
        "an environment rule says it in world=, a call's return in Return.when",
    ),
    "own update from the world": (
        lambda t: t.rule(then={t.presses.ref: t.power.ref}),
        "rule extra computes own presses from the world (power)",
    ),
    "own update from the world, for each": (
        lambda t: t.rule(each=(Each(t.room.index, then={t.room.open: t.power.ref}),)),
        "rule extra computes own room.open from the world (power)",
    ),
    "world condition of our own actor": (
        lambda t: t.rule(world=t.power.ref),
        "rule extra has a world condition, but hand is one of ours; allowed for environment actors",
    ),
    "world condition that writes our bookkeeping": (
        lambda t: t.rule(actor=t.nature, world=t.power.ref, then={t.presses.ref: 1}),
        "rule extra writes own variables under a world condition; only an actor that observes may",
    ),
    # rules: effects
    "begins an unlisted effect": (
        lambda t: t.rule(begins=Effect("shout", t.call.ref, Call.Ask, Call.Idle, [])),
        "rule extra begins effect shout, which the rulebook does not list",
    ),
    "outcome of an unlisted effect": (
        lambda t: t.rule(outcome=(Effect("shout", t.call.ref, Call.Ask, Call.Idle, [Return("ok")]), ("ok",))),
        "rule extra outcome effect shout, which the rulebook does not list",
    ),
    "outcome that the effect does not have": (
        lambda t: t.rule(outcome=(t.ask, ("maybe",))),
        "rule extra takes ask -> 'maybe'; ask returns ok, bad",
    ),
    # rules: machines
    "fires what is not a machine": (
        lambda t: t.rule(fires={t.presses.ref: "press"}),
        "rule extra fires 'press' in presses, which is not a machine",
    ),
    "fires an unknown event": (
        lambda t: t.rule(over=(t.lamp.index,), fires={t.lamp.light: "smash"}),
        "rule extra fires unknown event 'smash' in lamp.light; lamp has press",
    ),
    "fires where its guard never is": (
        lambda t: t.rule(
            (t.lamp.light == Light.On) & (t.lamp.light == Light.Off),
            over=(t.lamp.index,),
            fires={t.lamp.light: "press"},
        ),
        "rule extra fires lamp.press, but its guard allows only no state; the event exists in Off, On",
    ),
    # rules: updates
    "assigns to an expression": (
        lambda t: t.rule(then={t.presses.ref + 1: 0}),
        "rule extra assigns to (presses + 1), which is not a variable",
    ),
    "assigns a machine": (
        lambda t: t.rule(over=(t.lamp.index,), then={t.lamp.light: Light.On}),
        "rule extra assigns lamp.light directly; a machine moves only by an event of its table",
    ),
    "writes the world in then": (
        lambda t: t.rule(then={t.power.ref: True}),
        "rule extra writes world power in then=; use truth=",
    ),
    "writes its own in truth": (
        lambda t: t.rule(truth={t.presses.ref: 1}),
        "rule extra writes own presses in truth=; use then=",
    ),
    "sets a member of another enum": (
        lambda t: t.rule(then={t.call.ref: Colour.Red}),
        "rule extra sets call to Colour.Red; allowed are the members of Call",
    ),
    "writes twice": (
        lambda t: t.rule(then=[(t.presses.ref, 1), (t.presses.ref, 2)]),
        "rule extra writes presses twice",
    ),
    "writes in the rule and in its return": (
        lambda t: t.rule(outcome=(t.ask, ("bad",)), truth={t.power.ref: True}),
        "rule extra writes power twice",
    ),
    "fires twice": (
        lambda t: t.rule(over=(t.lamp.index,), fires=[(t.lamp.light, "press"), (t.lamp.light, "press")]),
        "rule extra writes lamp.light twice",
    ),
    # expressions
    "unknown parameter": (
        lambda t: t.rule(Param("floors", 1).expr == 1),
        "the guard of rule extra reads parameter floors, which the rulebook does not list",
    ),
    "number as an invariant": (
        lambda t: t.says(Invariant("five", "Five.", holds=5)),
        "property five uses 5, a number, as a truth value; compare it with something",
    ),
    "index bound within itself": (
        lambda t: t.says(Invariant("twice", "Twice.", holds=some(t.lamp, every(t.lamp, t.lamp.light == Light.On)))),
        "property twice binds index lamp within itself; give the inner one another name",
    ),
    "over what is no index": (
        lambda t: t.rule(over=(t.presses.ref,)),
        "rule extra is over presses, which is no index; allowed are job.index or job.named('other')",
    ),
    "over a sort that is not listed": (
        lambda t: t.rule(over=(Sort("shed", 1).index,)),
        "rule extra is about sort shed, which the rulebook does not list",
    ),
    "fires a machine that is not listed": (
        lambda t: t.rule(fires={stray("other", Domain.of(Light), machine=t.table).ref: "press"}),
        "rule extra fires 'press' in other, which the rulebook does not list",
    ),
    "number as a truth value": (
        lambda t: t.rule((t.presses.ref - 1) & (t.presses.ref == 1)),
        "the guard of rule extra uses presses - 1, a number, as a truth value; compare it with something",
    ),
    "unbound index": (
        lambda t: t.rule(t.lamp.light == Light.On),
        "the guard of rule extra uses index lamp of sort lamp, which is not in its over=",
    ),
    "unknown variable": (
        lambda t: t.rule(stray().ref),
        "the guard of rule extra reads variable stray, which the rulebook does not list",
    ),
    "next value in a guard": (
        lambda t: t.rule(t.presses.ref.next == 1),
        "the guard of rule extra reads the next value of presses; only step properties may",
    ),
    "index of another sort": (
        lambda t: _indexed_by_another_sort(),
        "the guard of rule extra indexes lamp.light by an element of room",
    ),
    "map to another sort": (
        lambda t: _mapped_to_another_sort(),
        "the guard of rule extra indexes lamp.light by an element of room",
    ),
    "unknown variable under a quantifier": (
        lambda t: t.rulebook(legal_end=every(t.lamp.index, (t.lamp.light == Light.On) & stray().ref)),
        "legal end reads variable stray, which the rulebook does not list",
    ),
    # effects
    "effect that nobody begins": (lambda t: t.rulebook(effects=(t.ask, _idle(t))), "effect idle is begun by no rule"),
    "return that nobody takes": (
        lambda t: t.rulebook(rules=(t.press, t.cut, t.begin, Rule("ask.ok", t.hand, outcome=(t.ask, ("ok",))))),
        "effect ask may return 'bad', which no rule takes",
    ),
    # properties
    "property without a sentence": (
        lambda t: t.says(Invariant("lit", "", holds=t.power.ref)),
        "property lit has no sentence a reviewer can read",
    ),
    "applies that reads variables": (
        lambda t: t.says(Invariant("lit", "It is lit.", holds=t.power.ref, applies=t.power.ref)),
        "the applies= of property lit reads variables; it may read parameters only",
    ),
    "step property about no rule": (
        lambda t: t.says(Step("lit", "It stays lit.", holds=t.power.ref, on="nobody.*")),
        "property lit is about rules 'nobody.*', but no rule matches",
    ),
    "next value in an invariant": (
        lambda t: t.says(Invariant("lit", "It is lit.", holds=t.power.ref.next)),
        "property lit reads the next value of power; only step properties may",
    ),
    "unknown variable in a leads-to": (
        lambda t: t.says(LeadsTo("lit", "It gets lit.", when=t.power.ref, then=stray().ref)),
        "property lit reads variable stray, which the rulebook does not list",
    ),
    # rows and runs
    "event that no rule fires": (
        lambda t: _no_rule_fires(),
        "no rule fires event 'press' of table lamp (rows lamp.Off.press, lamp.On.press)",
    ),
    "unfired row that does not exist": (
        lambda t: t.rulebook(unfired={"lamp.On.smash": "nobody does that"}),
        "unfired= names row lamp.On.smash, which does not exist",
    ),
    "run that expects nonsense": (
        lambda t: t.rulebook(runs=[Run("a", expect="MAYBE")]),
        "run a expects 'MAYBE'; allowed are PROVED and REFUTED",
    ),
    "run refuted by nothing": (
        lambda t: t.rulebook(runs=[Run("a", expect="REFUTED", by="luck")]),
        "run a is to be refuted by 'luck', which is not a property",
    ),
    "run with an unknown parameter": (
        lambda t: t.rulebook(runs=[Run("a", {"floors": 1})]),
        "run a sets unknown parameter 'floors'",
    ),
    "run with a value out of range": (
        lambda t: t.rulebook(runs=[Run("a", {"lamps": 9})]),
        "run a sets lamps=9; allowed are 1..3",
    ),
}


def _idle(toy: Toy) -> Effect:
    return Effect("idle", toy.call.ref, Call.Ask, Call.Idle, [])


def test_the_toy_itself_is_well_formed() -> None:
    assert [r.id for r in Toy().rulebook().rules] == ["press", "cut", "ask.begin", "ask.answer"]


@pytest.mark.parametrize("case", CASES)
def test_rulebook(case: str) -> None:
    build, message = CASES[case]
    with pytest.raises(RulebookError) as caught:
        build(Toy())
    assert caught.value.problems == (message,)
    assert str(caught.value) == f"rulebook toy: {message}"


def test_every_problem_is_named_at_once() -> None:
    toy = Toy()
    with pytest.raises(RulebookError) as caught:
        toy.rulebook(Rule("a", Actor("ghost")), Rule("b", toy.hand, toy.power.ref), runs=[Run("r", {"floors": 1})])
    assert len(caught.value.problems) == 3


def test_two_returns_may_write_the_same_variable() -> None:
    toy = Toy()
    returns = [Return("ok", truth={toy.power.ref: True}), Return("bad", truth={toy.power.ref: False})]
    ask = Effect("ask", toy.call.ref, Call.Ask, Call.Idle, returns)
    rules = (toy.press, Rule("begin", toy.hand, begins=ask), Rule("end", toy.hand, outcome=(ask, ("ok", "bad"))))
    assert toy.rulebook(rules=rules, effects=(ask,))


def test_a_guard_that_permits_one_of_the_event_s_states_is_enough() -> None:
    toy = Toy()
    on = Rule("on", toy.hand, toy.lamp.light == Light.Off, over=(toy.lamp.index,), fires={toy.lamp.light: "press"})
    assert toy.rulebook(on).rule("on") is on


def test_a_declared_unfired_row_is_not_missed() -> None:
    toy = Toy()
    excuse = {"lamp.Off.press": "the lamp is for show", "lamp.On.press": "the lamp is for show"}
    assert toy.rulebook(rules=(toy.cut, toy.begin, toy.answer), unfired=excuse)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lamps": 4}, "scope of toy: lamps=4 is out of range; allowed are 1..3"),
        ({"floors": 1}, "scope of toy: unknown parameter 'floors'; allowed are lamps"),
    ],
)
def test_scope(values: dict[str, int], message: str) -> None:
    with pytest.raises(RulebookError) as caught:
        Toy().rulebook().scope(values)
    assert str(caught.value) == message


def test_a_scope_cannot_leave_out_what_is_not_there() -> None:
    with pytest.raises(RulebookError, match=r"no rule matches 'smash\*', so it cannot be left out"):
        Toy().rulebook().scope(without=["smash*"])


def test_a_sort_s_variable_cannot_be_declared_twice() -> None:
    toy = Toy()
    with pytest.raises(ExprError, match=r"lamp\.light is declared twice"):
        variable("light", Domain(1), sort=toy.lamp)


def test_a_rulebook_without_locks_asks_for_none() -> None:
    free = variable("free", Domain(1))
    actor = Actor("any")
    assert Rulebook("free", [actor], [], [], [free], [Rule("stay", actor, then={free.ref: 1})], legal_end=FALSE)


def test_a_rulebook_without_rules_proves_nothing() -> None:
    with pytest.raises(RulebookError, match="there are no rules, so there is nothing to prove"):
        Rulebook("empty", [], [], [], [variable("free", Domain(1))], [])


def test_a_variable_without_a_range_is_named() -> None:
    with pytest.raises(RulebookError, match="variable x: has no range: declare Domain"):
        variable("x", 3)  # type: ignore[arg-type]


def test_a_name_that_means_something_on_a_sort_is_refused() -> None:
    for name in ("size", "index", "at", "named"):
        with pytest.raises(ExprError, match=f"'{name}' means something else on a sort"):
            variable(name, Domain(3), sort=Sort("queue", 2))


def test_numbers_that_no_engine_can_hold_are_refused() -> None:
    with pytest.raises(ExprError, match="2147483647 is too large for an expression"):
        variable("x", Domain(3)).ref + 2147483647


def test_members_of_another_enum_of_the_same_name_are_refused() -> None:
    class Light(State):  # not the lamp's
        Off, Broken = range(2)

    with pytest.raises(ExprError, match="allowed are the members of Light"):
        _ = Toy().lamp.light == Light.Broken


def test_one_class_or_one_index_may_stand_alone() -> None:
    toy = Toy()
    alone = Rule("alone", toy.hand, over=toy.lamp, outcome=(toy.ask, "ok"))
    assert alone.over == (toy.lamp.index,)
    assert alone.outcome == (toy.ask, ("ok",))


@pytest.mark.parametrize(
    ("hi", "start", "message"),
    [
        (-1, 0, "has range 0..-1; allowed are 0..0 to 0..65535"),
        (70_000, 0, "has range 0..70000; allowed are 0..0 to 0..65535"),
        (2, 3, "starts at 3, outside its range 0..2"),
    ],
)
def test_what_a_scope_makes_impossible_is_named(hi: int, start: int, message: str) -> None:
    top, first = Param("top", hi, -9, 99_999), Param("first", start, -9, 99)
    x, actor = variable("x", Domain(top.expr), first.expr), Actor("any")
    book = Rulebook("scoped", [actor], [top, first], [], [x], [Rule("stay", actor, then={x.ref: 0})])
    with pytest.raises(RulebookError, match=re.escape(message)):
        ground_model(book.scope())


def test_a_map_that_fails_is_named() -> None:
    sort = Sort("cat", 1)
    mood = variable("mood", Domain(1), sort=sort)
    broken, actor = Map("next_of", sort, sort, lambda i, values: 1 // i), Actor("any")
    rule = Rule("purr", actor, sort.at(broken.index()).mood == 0, sort)
    book = Rulebook("cats", [actor], [], [sort], [mood], [rule], maps=[broken])
    with pytest.raises(RulebookError, match="map next_of fails for cat 0: ZeroDivisionError"):
        ground_model(book.scope())


# -- completeness of the cases --------------------------------------------------------------------------------------
def messages_in(module: Any) -> list[tuple[int, re.Pattern[str]]]:
    """Every message of the module, as a pattern: strings that are yielded, or put into a list of problems."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Yield):
            values = [node.value]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr
            in (
                "append",
                "extend",
            )
        ):
            values = [a.elt if isinstance(a, ast.GeneratorExp) else a for a in node.args]
        found += [(v.lineno, re.compile(_pattern(v))) for v in values if isinstance(v, ast.JoinedStr)]
    return found


def _pattern(text: ast.JoinedStr) -> str:
    parts = [re.escape(v.value) if isinstance(v, ast.Constant) else ".*" for v in text.values]
    return "".join(map(str, parts))


@pytest.mark.parametrize(("module", "at_least"), [(table, 10), (validate, 35)])
def test_every_message_has_a_case(module: Any, at_least: int) -> None:
    pinned = [m for _, m in (*TABLE_CASES.values(), *CASES.values())] + [DEAD_ROW, FOREIGN_INITIAL]
    messages = messages_in(module)
    missing = [f"line {line}: {p.pattern}" for line, p in messages if not any(p.fullmatch(m) for m in pinned)]
    assert missing == []
    assert len(messages) >= at_least  # the search itself finds something
