"""The two engines mean the same: on random rulebooks and on the examples; the protocol has a test of its own.

Compared is everything that an `Exploration` says, the traces included. One engine could be wrong in the other's favour
only by the same mistake in Python and in C; `test_a_wrong_printer_is_noticed` shows that a mistake in one is seen.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from attrs import define, field
from hypothesis import HealthCheck, Phase, given, settings
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from checker import codegen, native
from checker.explore import explore
from checker.graph import Graph, from_python
from checker.model import build
from checker.native import Program
from checker.result import Exploration, Limits
from examples import two_phase_commit
from machines.printing import to_c
from tests.checker.strategies import Drawn, rulebooks

SAME = ("states", "transitions", "depth", "fired", "cells", "reached", "findings", "complete", "stopped")
BOOKS, BOOKS_NIGHTLY = 150, 300
LIMITS = Limits(states=1500)
QUICK = ("-O0",)  # a program is compiled for each; it runs for a millisecond


def differences(a: Exploration, b: Exploration) -> list[str]:
    """The fields in which two explorations differ; the order in which findings were made counts too."""
    named = [name for name in SAME if getattr(a, name) != getattr(b, name)]
    return named + (["order of findings"] if list(a.findings) != list(b.findings) else [])


def same_graph(a: Graph, b: Graph) -> bool:
    arrays = ("states", "source", "target", "instance", "parent", "parent_instance")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays)


def has_cycle(graph: Graph) -> bool:
    """Some state can be left and reached again; standing still does not count."""
    n = len(graph.states)
    edges = coo_matrix((np.ones(len(graph.source), dtype=np.int8), (graph.source, graph.target)), shape=(n, n))
    many, _ = connected_components(edges, directed=True, connection="strong")
    return bool(many < n)


@define
class Statistics:
    """What the random rulebooks were like: a comparison of rulebooks that do nothing would show nothing."""

    asked: int
    books: int = 0
    violated: int = 0
    cyclic: int = 0
    bounded: int = 0
    kinds: Counter[str] = field(factory=Counter)


@pytest.fixture(scope="module", params=[BOOKS, pytest.param(BOOKS_NIGHTLY, marks=pytest.mark.nightly)])
def drawn(request: pytest.FixtureRequest) -> Statistics:
    """Compare the engines on random rulebooks; the same ones every time, so that a red run can be repeated."""
    seen = Statistics(request.param)

    @settings(
        max_examples=request.param,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(rulebooks())
    def compare(drawn: Drawn) -> None:
        model = build(drawn.book.scope())
        program = Program(model, flags=QUICK)
        ours, theirs = explore(model, limits=LIMITS), program.explore(limits=LIMITS)
        assert differences(ours, theirs) == []
        seen.books += 1
        seen.violated += bool(ours.findings)
        seen.bounded += not ours.complete
        seen.kinds.update(list(ours.findings))
        if ours.complete:
            exploration, graph = program.graph()
            assert differences(ours, exploration) == []
            assert same_graph(graph, from_python(model))
            seen.cyclic += has_cycle(graph)

    compare()
    return seen


def test_on_random_rulebooks(drawn: Statistics) -> None:
    assert drawn.books >= drawn.asked


def test_the_random_rulebooks_say_something(drawn: Statistics) -> None:
    assert drawn.violated >= 0.3 * drawn.books
    assert drawn.cyclic >= 0.3 * drawn.books
    assert drawn.bounded >= 1 or drawn.asked < BOOKS_NIGHTLY  # in the fast tier test_native.py compares bounded ones
    for kind in ("deadlock", "range", "illegal", "receptive", "invariant", "step", "step_each"):
        assert drawn.kinds[kind] >= 3, f"{kind}: {drawn.kinds}"


@pytest.mark.parametrize("managers", [1, 3, 4])
def test_on_two_phase_commit(managers: int) -> None:
    model = build(two_phase_commit.RULEBOOK.scope({"managers": managers}))
    program = Program(model)
    assert differences(explore(model), program.explore()) == []
    exploration, graph = program.graph()
    assert differences(explore(model), exploration) == []
    assert same_graph(graph, from_python(model))


# -- the negative control -----------------------------------------------------------------------------------------
class Noticed(Exception):
    """The engines differ: what a negative control waits for."""


def compare_until_they_differ(most: int) -> None:
    """Raises Noticed at the first random rulebook on which the engines differ."""

    @settings(
        max_examples=most,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(rulebooks())
    def compare(drawn: Drawn) -> None:
        model = build(drawn.book.scope())
        if differences(explore(model, limits=LIMITS), Program(model, flags=QUICK).explore(limits=LIMITS)):
            raise Noticed

    compare()


WRONG_PRINTERS = {
    "<= as <": lambda text: text.replace(" <= ", " < "),
    "&& as ||": lambda text: text.replace(" && ", " || "),
    "+ 1 as + 2": lambda text: text.replace(" + 1)", " + 2)"),
    "== as <=": lambda text: text.replace(" == ", " <= "),
}


@pytest.mark.parametrize("mistake", WRONG_PRINTERS)
def test_a_wrong_printer_is_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = WRONG_PRINTERS[mistake]
    monkeypatch.setattr(codegen, "to_c", lambda e, slot: wrong(to_c(e, slot)))
    with pytest.raises(Noticed):
        compare_until_they_differ(most=60)


WRONG_SEARCHES = {
    "settled in another order": ("ring[ring_first++ & (RING - 1)]);\n}", "ring[--ring_end & (RING - 1)]);\n}"),
    "compared by place only": ("if (same(&table[i], &x->key)) {", "if (1) {"),
}


@pytest.mark.parametrize("mistake", WRONG_SEARCHES)
def test_a_wrong_search_is_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = WRONG_SEARCHES[mistake]
    real = codegen.source

    def broken(*args: object) -> str:
        text = real(*args)
        assert right in text
        return text.replace(right, wrong)

    monkeypatch.setattr(native.codegen, "source", broken)
    with pytest.raises(Noticed):
        compare_until_they_differ(most=60)
