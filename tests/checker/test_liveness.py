"""Leads-to: rulebooks whose answer is known by hand, and an oracle that enumerates lassos in another way."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from attrs import evolve
from hypothesis import event, given, settings
from hypothesis import strategies as st

from checker.graph import Graph, from_python
from checker.liveness import Outcome, Vacuous, check
from checker.model import build
from checker.result import Finding
from checker.vector import holds
from machines.expr import Domain, Expr, Param, Sort, State, Var
from machines.rulebook import Actor, Effect, LeadsTo, Return, Rule, Rulebook, variable

CLIENT = Actor("client", environment=True)
SERVER = Actor("server")
OTHER = Actor("other")


def book(variables: Iterable[Var], rules: Iterable[Rule], goal: LeadsTo, **more: object) -> Rulebook:
    rules = tuple(rules)
    actors = tuple(dict.fromkeys(r.actor for r in rules))
    params = more.pop("params", ())
    return Rulebook("toy", actors, params, variables=variables, rules=rules, properties=[goal], **{"sorts": (), **more})


def judge(rulebook: Rulebook, **values: int) -> tuple[Graph, Outcome]:
    graph = from_python(build(rulebook.scope(values)))
    (outcome,) = check(graph).values()
    if isinstance(outcome, Finding):
        assert_is_fair_lasso(graph, outcome)
    return graph, outcome


def refuted(rulebook: Rulebook) -> Finding:
    outcome = judge(rulebook)[1]
    assert isinstance(outcome, Finding)
    return outcome


def proved(rulebook: Rulebook) -> bool:
    return judge(rulebook)[1] is None


# -- what a lasso must be -------------------------------------------------------------------------------------------
def assert_is_fair_lasso(graph: Graph, finding: Finding) -> None:
    """Read from the printed steps alone: they are edges, the loop closes, is fair, avoids the goal after a trigger."""
    model, trace, loop = graph.model, finding.trace, finding.loop
    assert loop is not None
    assert trace[0].state == model.initial
    assert trace[loop].state == trace[-1].state
    out = successors(graph)
    for before, after in pairwise(trace):
        assert (after.instance, after.state) in out[before.state]
    group_of = {i.name: i.fair_group for i in model.instances}
    cycle = trace[loop:]
    enabled = [{group_of[name] for name, _ in out[step.state]} - {""} for step in cycle]
    always = set.intersection(*enabled)
    assert always <= {group_of[step.instance] for step in cycle[1:]}
    rows = np.array([step.state for step in trace])
    broken = False
    for g in model.leads_to:
        when, then = holds(g.when, rows), holds(g.holds, rows)
        broken |= any(when[n] and not then[n:].any() for n in range(loop + 1))
    assert broken


def successors(graph: Graph) -> dict[tuple[int, ...], set[tuple[str, tuple[int, ...]]]]:
    out: dict[tuple[int, ...], set[tuple[str, tuple[int, ...]]]] = {
        graph.state(n): set() for n in range(len(graph.states))
    }
    for s, t, i in zip(graph.source, graph.target, graph.instance, strict=True):
        out[graph.state(s)].add((graph.model.instances[i].name, graph.state(t)))
    return out


# -- known answers ----------------------------------------------------------------------------------------------------
def request_book(*, server: Actor, noise: bool = False) -> Rulebook:
    asked, flip = variable("asked", Domain.boolean()), variable("flip", Domain.boolean())
    rules = [
        Rule("client.ask", CLIENT, asked.ref == 0, then={asked.ref: 1}),
        Rule("server.serve", server, asked.ref == 1, then={asked.ref: 0}),
    ]
    if noise:
        rules.append(Rule("client.flip", CLIENT, then={flip.ref: 1 - flip.ref}))
    goal = LeadsTo("served", "A request is served", when=asked.ref == 1, then=asked.ref == 0)
    return book([asked, flip] if noise else [asked], rules, goal)


def test_a_fair_server_serves() -> None:
    assert proved(request_book(server=SERVER))


def test_a_fair_server_serves_whatever_the_client_does_meanwhile() -> None:
    assert proved(request_book(server=SERVER, noise=True))


def test_an_unfair_server_starves_the_request() -> None:
    finding = refuted(request_book(server=Actor("server", environment=True)))
    assert finding.rules == ["client.ask"]
    assert finding.loop == 1


def test_two_unfair_clients_the_second_never_asks() -> None:
    """Nothing forces an environment to move: a goal that needs its step is not reached."""
    asked = variable("asked", Domain(2))
    rules = [
        Rule("client.first", CLIENT, asked.ref == 0, then={asked.ref: 1}),
        Rule("client.second", CLIENT, asked.ref == 1, then={asked.ref: 2}),
    ]
    finding = refuted(book([asked], rules, LeadsTo("g", "goes on", when=asked.ref == 1, then=asked.ref == 2)))
    assert finding.rules == ["client.first"]


def jobs_book(*, over_job: bool) -> Rulebook:
    """A server that may serve any waiting job; each job waits again once it has been served."""
    job = Sort("job", Param("jobs", 2, 1, 3).expr)
    waiting = variable("waiting", Domain.boolean(), 1, sort=job)
    served = LeadsTo("served", "Each job is served", when=waiting.ref == 1, then=waiting.ref == 0, over=(job.index,))
    again = Rule("client.again", CLIENT, waiting.ref == 0, over=(job.index,), then={waiting.ref: 1})
    if over_job:
        serve = [Rule("server.serve", SERVER, waiting.ref == 1, over=(job.index,), then={waiting.ref: 0})]
    else:  # one rule per job without an element: one fair group "server" for all of them
        serve = [
            Rule(f"server.serve{n}", SERVER, job.at(n).waiting == 1, then={job.at(n).waiting: 0}) for n in range(2)
        ]
    return book([waiting], [again, *serve], served, sorts=[job], params=[job.size.args[0]])


def test_fairness_is_per_actor_and_element() -> None:
    assert proved(jobs_book(over_job=True))


def test_one_group_for_all_jobs_may_serve_one_job_for_ever() -> None:
    finding = refuted(jobs_book(over_job=False))
    assert finding.rules == ["server.serve1", "client.again[1]"]
    assert finding.loop == 0


def test_a_terminal_state_stutters_for_ever() -> None:
    at = variable("at", Domain(2))
    rules = [
        Rule("server.right", SERVER, at.ref == 0, then={at.ref: 1}),
        Rule("server.wrong", SERVER, at.ref == 0, then={at.ref: 2}),
    ]
    rulebook = book([at], rules, LeadsTo("g", "arrives", when=at.ref == 0, then=at.ref == 1))
    finding = refuted(rulebook)
    assert finding.rules == ["server.wrong"]
    assert finding.loop == 1
    assert finding.steps(build(rulebook.scope()))[-1] == "    --- and nothing more happens, for ever"


class Call(State):
    Idle, Read = range(2)


def call_book(*, vendor: bool) -> Rulebook:
    call = variable("call", Domain.of(Call))
    read = Effect("read", call.ref, Call.Read, Call.Idle, [Return("ok")], vendor=vendor)
    rules = [
        Rule("server.read", SERVER, begins=read),
        Rule("server.read_ok", SERVER, outcome=(read, ("ok",))),
    ]
    goal = LeadsTo("returns", "The call returns", when=call.ref == Call.Read, then=call.ref == Call.Idle)
    return book([call], rules, goal, effects=[read])


def test_a_vendor_call_need_not_return() -> None:
    finding = refuted(call_book(vendor=True))
    assert finding.rules == ["server.read"]
    assert finding.loop == 1


def test_a_call_of_our_own_returns() -> None:
    assert proved(call_book(vendor=False))


def test_weak_fairness_asks_nothing_of_an_actor_that_is_disabled_again_and_again() -> None:
    """The server may serve only while the gate is open, and the client opens and shuts it for ever."""
    asked, gate = variable("asked", Domain.boolean(), 1), variable("gate", Domain.boolean())
    rules = [
        Rule("client.gate", CLIENT, then={gate.ref: 1 - gate.ref}),
        Rule("server.serve", SERVER, (asked.ref == 1) & (gate.ref == 1), then={asked.ref: 0}),
    ]
    goal = LeadsTo("served", "The request is served", when=asked.ref == 1, then=asked.ref == 0)
    finding = refuted(book([asked, gate], rules, goal))
    assert finding.loop == 0  # the gate is shut at the start and nothing fair is enabled: it may stay so
    assert finding.rules == []
    both = [*rules, Rule("other.open", OTHER, gate.ref == 0, then={gate.ref: 1})]
    finding = refuted(book([asked, gate], both, goal))
    assert finding.rules == ["client.gate", "client.gate"]  # open and shut: each of the two was disabled on the way
    assert finding.loop == 0


def test_a_cycle_shows_every_fair_group() -> None:
    """Three fair actors each turn their own bit for ever; the goal is unreachable. The loop has all three."""
    bits = [variable(f"bit{n}", Domain.boolean()) for n in range(3)]
    goal_bit = variable("goal", Domain.boolean())
    actors = [Actor(f"a{n}") for n in range(3)]
    rules = [
        Rule(f"a{n}.turn", actor, then={bit.ref: 1 - bit.ref})
        for n, (actor, bit) in enumerate(zip(actors, bits, strict=True))
    ]
    rules.append(Rule("client.goal", CLIENT, goal_bit.ref == 0, then={goal_bit.ref: 1}))
    goal = LeadsTo("g", "arrives", when=goal_bit.ref == 0, then=goal_bit.ref == 1)
    finding = refuted(book([*bits, goal_bit], rules, goal))
    assert set(finding.rules) == {"a0.turn", "a1.turn", "a2.turn"}
    assert finding.loop == 0


def test_the_goal_at_the_moment_of_the_trigger_counts() -> None:
    at = variable("at", Domain(1))
    rules = [Rule("server.go", SERVER, at.ref == 0, then={at.ref: 1})]
    assert proved(book([at], rules, LeadsTo("g", "holds at once", when=at.ref == 1, then=at.ref == 1)))


def test_a_trigger_that_never_holds_is_vacuous() -> None:
    at = variable("at", Domain(2))
    rules = [Rule("server.go", SERVER, at.ref == 0, then={at.ref: 1})]
    outcome = judge(book([at], rules, LeadsTo("g", "says nothing", when=at.ref == 2, then=at.ref == 0)))[1]
    assert outcome == Vacuous("g", "its trigger holds in no reachable state")


def test_the_prefix_is_the_shortest_one_through_a_trigger() -> None:
    """The dead end is one step away, but only by way of the trigger (two steps) does it refute the property."""
    at, asked = variable("at", Domain(2)), variable("asked", Domain.boolean())
    rules = [
        Rule("client.shortcut", CLIENT, at.ref == 0, then={at.ref: 2}),
        Rule("client.ask", CLIENT, (at.ref == 0) & (asked.ref == 0), then={asked.ref: 1}),
        Rule("server.drop", SERVER, (at.ref == 0) & (asked.ref == 1), then={at.ref: 2, asked.ref: 0}),
    ]
    goal = LeadsTo("g", "is answered", when=(asked.ref == 1) & (at.ref == 0), then=at.ref == 1)
    assert refuted(book([at, asked], rules, goal)).rules == ["client.ask", "server.drop"]


def test_more_fair_groups_than_bits_in_a_word() -> None:
    """70 fair elements: the last one alone is kept from its turn, in the second word of the bit sets."""
    n = 70
    rules, at = [], variable("at", Domain(n))
    for k in range(n):
        actor = Actor(f"a{k}")
        rules.append(Rule(f"a{k}.idle", actor, at.ref == 0, then={at.ref: 0}))
    rules.append(Rule("last.go", Actor("last"), at.ref == 0, then={at.ref: n}))
    goal = LeadsTo("g", "goes", when=at.ref == 0, then=at.ref == n)
    assert proved(book([at], rules, goal))
    lazy = [*rules[:-1], Rule("last.go", Actor("last", environment=True), at.ref == 0, then={at.ref: n})]
    assert len(refuted(book([at], lazy, goal)).rules) == n


# -- the oracle -------------------------------------------------------------------------------------------------------
SIZE = 5


def random_book(
    edges: list[tuple[int, int, int]], fair: list[bool], when: frozenset[int], then: frozenset[int]
) -> Rulebook:
    """States 0..SIZE-1, and one rule per edge (source, target, actor)."""
    at = variable("at", Domain(SIZE - 1))
    actors = [Actor(f"a{k}", environment=not f) for k, f in enumerate(fair)]
    rules = [Rule(f"e{n}.go", actors[k], at.ref == s, then={at.ref: t}) for n, (s, t, k) in enumerate(edges)]
    goal = LeadsTo("g", "random", when=_is_one_of(at.ref, when), then=_is_one_of(at.ref, then))
    return book([at], rules, goal)


def _is_one_of(x: Expr, members: frozenset[int]) -> Expr:
    return x.isin(*sorted(members)) if members else x < 0


def fair_lasso_exists(
    edges: list[tuple[int, int, int]], fair: list[bool], when: frozenset[int], then: frozenset[int]
) -> bool:
    """Enumerate lassos: from each entry, search over (state, groups that have shown a witness) for the entry again."""
    groups = {k for _, _, k in edges if fair[k]}
    enabled = {s: {k for a, _, k in edges if a == s and fair[k]} for s in range(SIZE)}
    reach = closure({0}, [(s, t) for s, t, _ in edges])
    kept = [(s, t, k) for s, t, k in edges if s not in then and t not in then]
    for entry in closure({s for s in reach if s in when and s not in then}, [(s, t) for s, t, _ in kept]):
        start = (entry, frozenset(groups - enabled[entry]))
        product = closure({start}, [
            ((s, seen), (t, seen | (groups - enabled[t]) | ({k} & groups)))
            for s, t, k in kept
            for seen in subsets(groups)
        ])  # fmt: skip
        if (entry, frozenset(groups)) in product:
            return True
    return False


def closure(seeds: set, pairs: list) -> set:
    seen = set(seeds)
    while new := {b for a, b in pairs if a in seen} - seen:
        seen |= new
    return seen


def subsets(items: Iterable[int]) -> list[frozenset[int]]:
    out = [frozenset()]
    for x in items:
        out += [s | {x} for s in out]
    return out


states = st.integers(0, SIZE - 1)
edge_lists = st.lists(st.tuples(states, states, st.integers(0, 2)), min_size=1, max_size=9, unique=True)
triggers = st.frozensets(states, min_size=1, max_size=SIZE)
goals = st.frozensets(states, max_size=2)


@settings(max_examples=400, deadline=None)
@given(edge_lists, st.lists(st.booleans(), min_size=3, max_size=3), triggers, goals)
def test_agrees_with_an_enumeration_of_lassos(edges, fair, when, then) -> None:
    outcome = judge(random_book(edges, fair, when, then))[1]
    reachable = closure({0}, [(s, t) for s, t, _ in edges])
    event("vacuous" if isinstance(outcome, Vacuous) else "proved" if outcome is None else "refuted")
    assert isinstance(outcome, Vacuous) == (not (when & reachable))
    assert isinstance(outcome, Finding) == fair_lasso_exists(edges, fair, when, then)


def test_the_oracle_can_say_both() -> None:
    loop = [(0, 1, 0), (1, 0, 1)]
    assert fair_lasso_exists(loop, [True, True, True], frozenset({0}), frozenset())
    assert not fair_lasso_exists(loop, [True, True, True], frozenset({0}), frozenset({1}))
    assert fair_lasso_exists(loop, [False, True, True], frozenset({0}), frozenset({1}))


# -- the graph ---------------------------------------------------------------------------------------------------------
def test_a_graph_gives_shortest_paths_and_depths() -> None:
    graph = from_python(build(jobs_book(over_job=True).scope({"jobs": 3})))
    for n in range(len(graph.states)):
        assert len(graph.path_to(n)) - 1 == graph.depth[n]
        assert graph.path_to(n)[-1].state == graph.state(n)


def test_a_graph_refuses_edges_out_of_order() -> None:
    graph = from_python(build(jobs_book(over_job=True).scope()))
    with pytest.raises(ValueError, match="ordered by source"):
        evolve(graph, source=graph.source[::-1])
