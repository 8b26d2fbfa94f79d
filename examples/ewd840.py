"""Termination detection on a ring (Dijkstra, Feijen, van Gasteren, EWD 840; the TLA+ module EWD840 by Stephan Merz).

Nodes 0..N-1 work and wake each other by messages that arrive at once. Node 0 wants to know when all are passive. It
sends a token around the ring, to N-1 first. A node keeps the token while it works, then hands it down. One that has
woken a node behind the token's back is black: it blackens the token as it hands it on, and is white again. A white
token that comes back to a white, passive node 0 means that all have terminated.

The published count is 302 distinct states with 3 nodes, from 192 initial states (any set of active nodes, any colours,
the token anywhere and black). A rulebook has one initial state. So here the token is nowhere at first, in one extra
state before the start, and one rule chooses among the 192: the reachable states are the published ones and that one.
The other published count, 1,566 with 4 nodes, comes out the same way. (The published numbers of *generated* states,
2,001 and 15,986, count a step once for every disjunct of its guard that is true. With one rule per disjunct, so do we.)

Fairness is the module's: weak, of the system's steps. The module asks it of all of them together, a rulebook of each
node apart. It is the same here, because only the node that holds the token has such a step.

    check-states examples.ewd840:RULEBOOK
"""

from __future__ import annotations

from machines.expr import Domain, Expr, Map, Param, Sort, State, any_of, const, every, ite, some
from machines.rulebook import Actor, Each, Invariant, LeadsTo, Rule, Rulebook, Run, Sometimes, variable

NODES_MAX = 4
NODES = Param("nodes", default=3, lo=2, hi=NODES_MAX, about="how many nodes are on the ring")


class Color(State):
    White, Black = range(2)


WHITE, BLACK = const(Color.White), const(Color.Black)

node = Sort("node", NODES.expr)
# A set of nodes, for the start to choose: number s stands for the set of all i whose bit is set in s.
subset = Sort("subset", ite(NODES.expr == 2, 4, ite(NODES.expr == 3, 8, 16)))
bit = Sort("bit", 2)
BITS = [Map(f"bit{i}", subset, bit, lambda s, _, i=i: s >> i & 1) for i in range(NODES_MAX)]  # type: ignore[misc]

VARIABLES = (
    variable("token", Domain(NODES.expr), NODES.expr, about="the node that holds it; N: nowhere, before the start"),
    variable("token_color", Domain.of(Color), BLACK),
    variable("active", Domain.boolean(), sort=node),
    variable("color", Domain.of(Color), WHITE, sort=node),
)
token, token_color = (v.ref for v in VARIABLES[:2])
other = node.named("other")

INITIATOR = Actor("initiator", about="node 0, which wants to know")
NODE = Actor("node", about="hands the token on")
WORK = Actor("work", about="the computation that is watched; it may go on for ever", environment=True)
START = Actor("start", about="chooses the initial state", environment=True)


def member(index: Expr, chosen: Expr) -> Expr:
    """Node `index` is in the set of nodes `chosen`."""
    return any_of(*((index == i) & (of.index(chosen) == 1) for i, of in enumerate(BITS)))


awake, black = subset.named("awake"), subset.named("black")

RULES = (
    Rule(
        "start.choose",
        START,
        token == NODES.expr,
        over=(awake, black, node.index),
        then={token: node.index},
        each=(
            Each(
                other,
                then={
                    node.at(other).active: member(other, awake),
                    node.at(other).color: ite(member(other, black), BLACK, WHITE),
                },
            ),
        ),
    ),
    Rule(
        "initiator.probe",
        INITIATOR,
        (token == 0) & ((token_color == BLACK) | (node.at(0).color == BLACK)),
        then={token: NODES.expr - 1, token_color: WHITE, node.at(0).color: WHITE},
    ),
    Rule(
        "node.pass",
        NODE,
        (node.index > 0) & (token == node.index) & (~node.active | (node.color == BLACK) | (token_color == BLACK)),
        over=(node.index,),
        then={
            token: node.index - 1,
            token_color: ite(node.color == BLACK, BLACK, token_color),
            node.color: WHITE,
        },
    ),
    Rule(
        "work.send",
        WORK,
        (token != NODES.expr) & (node.index != other) & node.active,
        over=(node.index, other),
        then={node.at(other).active: True, node.color: ite(other > node.index, BLACK, node.color)},
    ),
    Rule("work.finish", WORK, node.active, over=(node.index,), then={node.active: False}),
)

all_passive = every(node.index, ~node.active)
detected = (token == 0) & (token_color == WHITE) & (node.at(0).color == WHITE) & ~node.at(0).active
white_on_its_way = (token_color == WHITE) & (token > 0) & (token != NODES.expr)

PROPERTIES = (
    Invariant("detection_is_true", "Termination is detected only when all are passive", holds=~detected | all_passive),
    Invariant(
        "dijkstra",
        "All above the token are passive, or some node up to it is black, or the token is (Dijkstra's P0, P1, P2)",
        holds=every(node.index, (node.index <= token) | ~node.active)
        | some(node.index, (node.index <= token) & (node.color == BLACK))
        | (token_color == BLACK),
    ),
    Sometimes("detects", "Termination can be detected", reached=detected),
    Sometimes("overtaken", "Node 0 can be woken behind a white token", reached=white_on_its_way & node.at(0).active),
    LeadsTo(
        "termination_is_detected",
        "Once all nodes are passive, node 0 detects it",
        when=(token != NODES.expr) & all_passive,
        then=detected,
    ),
)

RULEBOOK = Rulebook(
    "ewd840",
    actors=(INITIATOR, NODE, WORK, START),
    params=(NODES,),
    sorts=(node, subset, bit),
    maps=BITS,
    variables=VARIABLES,
    rules=RULES,
    properties=PROPERTIES,
    legal_end=detected,
    runs=(
        Run("three", {"nodes": 3}, liveness=True, about="302 states and the one before the start"),
        Run("four", {"nodes": 4}, liveness=True, about="1,566 states and the one before the start"),
    ),
    about=__doc__ or "",
)
