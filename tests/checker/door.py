"""A small rulebook for tests: a door, opened at most `size` times before it is oiled; a careless policy slams it."""

from __future__ import annotations

from typing import Any

from machines.expr import Domain, Param, State
from machines.rulebook import Actor, Effect, Invariant, LeadsTo, Return, Rule, Rulebook, Run, Sometimes, Step, variable
from machines.table import Reject, Row, Table


class Door(State):
    Closed, Open = range(2)


class Manner(State):
    Careful, Careless = range(2)


class Call(State):
    Idle, Knock = range(2)


TABLE = Table(
    "door",
    Door,
    Door.Closed,
    [
        Row(Door.Closed, "open", Door.Open),
        Row(Door.Open, "close", Door.Closed),
        Reject(Door.Open, "open", "AlreadyOpen", "it cannot be opened twice"),
    ],
)
SIZE = Param("size", default=1, lo=1, hi=3)
MANNER = Param("manner", default=Manner.Careful, kind="policy", choices=Manner)
VARIABLES = (
    variable("door", TABLE),
    variable("used", Domain(SIZE.expr)),
    variable("damage", Domain.boolean()),
    variable("call", Domain.of(Call)),
)
door, used, damage, call = (v.ref for v in VARIABLES)
GUEST = Actor("guest", environment=True)
PORTER = Actor("porter")
KNOCK = Effect("knock", call, Call.Knock, Call.Idle, [Return("heard"), Return("unheard")])

RULES = (
    Rule("open", GUEST, used < SIZE.expr, fires={door: "open"}, then={used: used + 1}),
    Rule("close", PORTER, fires={door: "close"}, guard=door == Door.Open),
    Rule("oil", PORTER, (used == SIZE.expr) & (door == Door.Closed), then={used: 0}),
    Rule(
        "slam",
        GUEST,
        MANNER.is_(Manner.Careless) & (door == Door.Open),
        then={damage: True},
        unreachable="only the careless policy slams",
    ),
    Rule("knock", GUEST, door == Door.Closed, begins=KNOCK),
    Rule("knock.heard", GUEST, outcome=(KNOCK, ("heard",))),
    Rule("knock.unheard", GUEST, outcome=(KNOCK, ("unheard",))),
)
INTACT = Invariant("intact", "The door is never damaged.", "§1", holds=~damage)
COUNTED = Step("counted", "Opening is counted.", "§2", holds=used.next == used + 1, on="open")
WORN = Sometimes("worn", "The door may need oil.", "§3", reached=used == SIZE.expr)
CLOSES = LeadsTo("closes", "An open door is closed in the end.", "§4", when=door == Door.Open, then=door == Door.Closed)
PROPERTIES = (INTACT, COUNTED, WORN, CLOSES)
RUNS = (
    Run("small", liveness=True),
    Run("careless", {"manner": Manner.Careless.code}, expect="REFUTED", by="intact"),
    Run("large", {"size": 3}),
    Run("huge", {"size": 3}, tier="nightly"),
)


def door_rulebook(*more: Rule, **changes: Any) -> Rulebook:
    """The door with more rules, or other fields replaced."""
    fields: dict[str, Any] = {
        "actors": (GUEST, PORTER),
        "params": (SIZE, MANNER),
        "sorts": (),
        "variables": VARIABLES,
        "rules": (*RULES, *more),
        "effects": (KNOCK,),
        "properties": PROPERTIES,
        "runs": RUNS,
        "about": "a door",
    }
    return Rulebook("door", **(fields | changes))


RULEBOOK = door_rulebook()
