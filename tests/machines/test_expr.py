"""Expressions: what may be built, how it is shown, and that grounding and every printer keep the meaning.

The oracle is `value_of`: a direct evaluator of symbolic trees, a few lines long and independent of grounding, folding
and the printers. Hypothesis draws trees; the ground tree must have the same value, printed as Python and compiled as C.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machines.expr import (
    FALSE,
    TRUE,
    Domain,
    Expr,
    ExprError,
    Map,
    Param,
    Sort,
    State,
    Value,
    all_of,
    any_of,
    const,
    count,
    every,
    ite,
    same,
    some,
)
from machines.ground import Grounding, fold, ground
from machines.printing import to_c, to_promela, to_python
from machines.rulebook import variable


class Mood(State):
    Calm, Cross, Asleep = range(3)


class Other(State):
    Calm, Cross = range(2)


CATS = Param("cats", default=2, lo=1, hi=3)
POLICY = Param("policy", default=Mood.Cross, hi=2, kind="policy", choices=Mood)
cat = Sort("cat", CATS.expr)
VARIABLES = (
    variable("food", Domain(3)),
    variable("awake", Domain.boolean()),
    variable("mood", Domain.of(Mood), sort=cat),
    variable("naps", Domain(3), sort=cat),
)
food, awake = (v.ref for v in VARIABLES[:2])
other = cat.named("other")
FRIEND = Map("friend", cat, cat, lambda i, params: (i + 1) % params["cats"])


# -- building -------------------------------------------------------------------------------------------------------
def test_an_expression_has_no_truth_value() -> None:
    with pytest.raises(ExprError, match=r"use & \| ~ instead of and, or, not"):
        bool(awake & (food == 1))


def test_python_s_and_is_refused_at_once() -> None:
    with pytest.raises(ExprError, match="no truth value"):
        _ = awake and food == 1


def test_foreign_things_are_refused() -> None:
    with pytest.raises(ExprError, match="'x' cannot be part of an expression"):
        _ = food == "x"


@pytest.mark.parametrize("value", [1, True, Other.Calm])
def test_an_enum_is_compared_with_its_own_members_only(value: Value) -> None:
    with pytest.raises(ExprError, match="allowed are the members of Mood"):
        _ = cat.mood == value


def test_only_a_variable_has_a_next_value() -> None:
    assert str(food.next == 1) == "food' == 1"
    with pytest.raises(ExprError, match="only a variable has a next value"):
        _ = (food + 1).next


def test_membership_needs_members() -> None:
    with pytest.raises(ExprError, match="needs at least one member"):
        cat.mood.isin()


def test_a_quantifier_needs_an_index() -> None:
    with pytest.raises(ExprError, match="is not an index of a sort"):
        every(food, awake)


def test_an_unknown_variable_of_a_sort_names_the_declared_ones() -> None:
    with pytest.raises(AttributeError, match="sort cat has no variable 'claws'; declared are: mood, naps"):
        _ = cat.claws


@pytest.mark.parametrize(
    ("expr", "shown"),
    [
        (cat.mood == Mood.Calm, "cat.mood == Calm"),
        (cat.mood != Mood.Calm, "cat.mood != Calm"),
        (cat.mood.isin(Mood.Calm, Mood.Cross), "cat.mood in {Calm, Cross}"),
        (cat.at(other).naps > 1, "1 < cat[other].naps"),
        (FRIEND.of().naps == 0, "cat.naps == 0"),
        (~awake & (food + 1 <= 2), "~awake & (food + 1) <= 2"),
        ((food == 1) | awake & (food == 2), "food == 1 | awake & food == 2"),
        (ite(awake, food, 0), "food if awake else 0"),
        (every(cat, cat.naps == 0), "every(cat: cat.naps == 0)"),
        (POLICY.is_(Mood.Asleep), "policy == Asleep"),
        (all_of(), "True"),
        (any_of(), "False"),
    ],
)
def test_shown_as_a_reviewer_would_write_it(expr: Expr, shown: str) -> None:
    assert str(expr) == shown


def test_conjuncts_are_flattened() -> None:
    parts = all_of(awake, (food == 1) & (food < 2), TRUE)
    assert [str(c) for c in parts.conjuncts()] == ["awake", "food == 1", "food < 2"]
    assert TRUE.conjuncts() == ()
    assert FALSE.conjuncts() == (FALSE,)


def test_variables_are_those_read_now_or_next() -> None:
    assert all_of(awake, food.next == 1, cat.naps == 0).variables() == {VARIABLES[1], VARIABLES[0], VARIABLES[3]}


# -- grounding ------------------------------------------------------------------------------------------------------
SIZE = 2
PARAMS = {"cats": SIZE, "policy": Mood.Cross.code}
SLOTS = {VARIABLES[0]: 0, VARIABLES[1]: 1, VARIABLES[2]: 2, VARIABLES[3]: 2 + SIZE}
ENV = Grounding(PARAMS, {"cat": SIZE}, SLOTS)


def test_an_open_index_must_be_bound() -> None:
    with pytest.raises(ExprError, match="index other is not bound here"):
        ground(cat.at(other).naps == 0, ENV, {cat.index: 0})


def test_an_element_out_of_range_is_named() -> None:
    with pytest.raises(ExprError, match=r"cat\.naps: element 5 is out of range; the scope has 2"):
        ground(cat.at(5).naps == 0, ENV)


def test_a_tree_that_is_not_ground_is_not_printed() -> None:
    for printer in (to_python, to_c, to_promela):
        with pytest.raises(ExprError, match="is not ground"):
            printer(POLICY.expr, lambda k, primed: f"s{k}")


@pytest.mark.parametrize(
    ("expr", "folded"),
    [
        (POLICY.is_(Mood.Cross), "True"),
        (POLICY.is_(Mood.Calm) & awake, "False"),
        (POLICY.is_(Mood.Cross) & awake, "s1"),
        (POLICY.is_(Mood.Cross) | awake, "True"),
        (ite(POLICY.is_(Mood.Calm), food, 3), "3"),
        (food + 0, "s0"),
        (food == food, "True"),
        (~~awake, "s1"),
        (count(cat, POLICY.is_(Mood.Cross)), "2"),
        (every(cat, cat.naps == 0), "s4 == 0 & s5 == 0"),
        (FRIEND.of().naps == 0, "s5 == 0"),
    ],
)
def test_constants_are_folded(expr: Expr, folded: str) -> None:
    got = ground(expr, ENV, {cat.index: 0})
    expected = {"True": "1", "False": "0"}.get(folded, folded) if got.is_const else folded
    assert (str(got.value) if got.is_const else str(got).replace("(", "").replace(")", "")) == expected


def test_structural_equality() -> None:
    assert same(food + 1 == 2, food + 1 == 2)
    assert not same(food + 1 == 2, food + 1 == 3)
    assert not same(food == 1, awake == 1)


# -- the same meaning everywhere --------------------------------------------------------------------------------------
Binding = Mapping[str, int]


def value_of(e: Expr, state: tuple[int, ...], binding: Binding) -> int:
    """The oracle: what a symbolic tree means."""

    def rec(x: Expr, more: Binding = binding) -> int:
        return value_of(x, state, more)

    def over(index: Expr, body: Expr) -> list[bool]:
        return [bool(rec(body, {**binding, index.args[1]: i})) for i in range(SIZE)]

    match e.op:
        case "const":
            return e.value
        case "param":
            return PARAMS[e.args[0].name]
        case "index":
            return binding[e.args[1]]
        case "map":
            return int(e.args[0].function(rec(e.args[1]), PARAMS))
        case "ref":
            var, index, _ = e.args
            return state[SLOTS[var] + (0 if index is None else rec(index))]
        case "and":
            return int(all(rec(a) for a in e.args))
        case "or":
            return int(any(rec(a) for a in e.args))
        case "not":
            return int(not rec(e.args[0]))
        case "ite":
            return rec(e.args[1]) if rec(e.args[0]) else rec(e.args[2])
        case "count":
            return sum(over(*e.args))
        case "every":
            return int(all(over(*e.args)))
        case "some":
            return int(any(over(*e.args)))
    a, b = (rec(x) for x in e.args)
    return {"add": a + b, "sub": a - b, "eq": int(a == b), "lt": int(a < b), "le": int(a <= b)}[e.op]


indices = st.sampled_from([cat.index, other, FRIEND.index()])
numbers = st.recursive(
    st.one_of(
        st.integers(0, 3).map(const),
        st.just(food),
        st.just(CATS.expr),
        indices.map(lambda i: cat.at(i).naps),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda ab: ab[0] + ab[1]),
        st.tuples(inner, inner).map(lambda ab: ab[0] - ab[1]),
    ),
    max_leaves=4,
)
atoms = st.one_of(
    st.just(awake),
    st.booleans().map(const),
    st.sampled_from(Mood).map(POLICY.is_),
    st.tuples(indices, st.sampled_from(Mood)).map(lambda im: cat.at(im[0]).mood == im[1]),
    st.tuples(indices, st.lists(st.sampled_from(Mood), min_size=1)).map(lambda im: cat.at(im[0]).mood.isin(*im[1])),
    st.tuples(numbers, numbers, st.integers(0, 5)).map(
        lambda t: [t[0] == t[1], t[0] != t[1], t[0] < t[1], t[0] <= t[1], t[0] > t[1], t[0] >= t[1]][t[2]]
    ),
)
truths = st.recursive(
    atoms,
    lambda inner: st.one_of(
        inner.map(lambda a: ~a),
        st.lists(inner, max_size=3).map(lambda parts: all_of(*parts)),
        st.lists(inner, max_size=3).map(lambda parts: any_of(*parts)),
        st.tuples(inner, inner, inner).map(lambda t: ite(*t)),
        inner.map(lambda a: every(cat, a)),
        inner.map(lambda a: some(other, a)),
        inner.map(lambda a: count(cat, a) == 1),
        st.tuples(inner, numbers, numbers).map(lambda t: ite(*t) <= 2),
    ),
    max_leaves=8,
)
states = st.tuples(*(st.integers(0, hi) for hi in (3, 1, 2, 2, 3, 3)))
bindings = st.fixed_dictionaries({"cat": st.integers(0, SIZE - 1), "other": st.integers(0, SIZE - 1)})


def grounded(e: Expr, binding: Binding) -> Expr:
    return ground(e, ENV, {cat.index: binding["cat"], other: binding["other"]})


@given(truths, states, bindings)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=300)
def test_a_ground_tree_printed_as_python_means_the_same(e: Expr, state: tuple[int, ...], binding: Binding) -> None:
    text = to_python(grounded(e, binding), lambda k, primed: f"s[{k}]")
    assert bool(eval(text, {"s": state})) == bool(value_of(e, state, binding))


def test_a_ground_tree_printed_as_c_means_the_same(tmp_path: Path) -> None:
    """Many drawn trees in one C program, each in a state of its own."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    drawn: list[tuple[Expr, tuple[int, ...], Binding]] = []

    @given(truths, states, bindings)
    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200, database=None)
    def draw(e: Expr, state: tuple[int, ...], binding: Binding) -> None:
        drawn.append((e, state, binding))

    draw()
    lines = ["#include <stdio.h>", "int main(void) {"]
    for e, state, binding in drawn:
        text = to_c(grounded(e, binding), lambda k, primed: f"s[{k}]")
        lines.append(f'{{ const int s[] = {{{", ".join(map(str, state))}}}; (void)s; printf("%d", !!({text})); }}')
    source, program = tmp_path / "t.c", tmp_path / "t"
    source.write_text("\n".join([*lines, "}"]))
    subprocess.run(["cc", "-w", "-o", str(program), str(source)], check=True)
    got = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    assert got == "".join(str(int(bool(value_of(*case)))) for case in drawn)
    assert {"0", "1"} == set(got)


def test_a_printer_that_is_wrong_is_seen() -> None:
    """Negative control: the oracle and the printed tree differ when the tree was folded wrongly."""
    wrong = fold("add", [ground(food, ENV), const(1)])
    text = to_python(wrong, lambda k, primed: f"s[{k}]")
    assert eval(text, {"s": (3, 0, 0, 0, 0, 0)}) != value_of(food, (3, 0, 0, 0, 0, 0), {})


def test_promela_prints_ite_its_own_way() -> None:
    e = ground(ite(awake, food, 0), ENV)
    assert to_c(e, lambda k, primed: f"s{k}") == "(s1 ? s0 : 0)"
    assert to_promela(e, lambda k, primed: f"s{k}") == "(s1 -> s0 : 0)"
