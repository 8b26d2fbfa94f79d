"""Prints ground expressions in the languages of the engines and exports: Python, C, Promela."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from machines.expr import SYMBOLS, Expr, ExprError

SlotPrinter = Callable[[int, bool], str]
"""How a state slot is written: its number, and whether its next value is meant."""


@frozen
class Language:
    """What differs between the languages. choice: a format of test, then, otherwise."""

    conjunction: str
    disjunction: str
    negation: str
    choice: str


PYTHON = Language(" and ", " or ", "not ", "({then} if {test} else {otherwise})")
C = Language(" && ", " || ", "!", "({test} ? {then} : {otherwise})")
PROMELA = Language(" && ", " || ", "!", "({test} -> {then} : {otherwise})")


def to_python(e: Expr, slot: SlotPrinter) -> str:
    """A ground tree as a Python expression. Booleans come out as bool or int."""
    return _print(e, slot, PYTHON)


def to_c(e: Expr, slot: SlotPrinter) -> str:
    """A ground tree as a C expression over int."""
    return _print(e, slot, C)


def to_promela(e: Expr, slot: SlotPrinter) -> str:
    """A ground tree as a Promela expression."""
    return _print(e, slot, PROMELA)


def _print(e: Expr, slot: SlotPrinter, language: Language) -> str:
    def rec(x: Expr) -> str:
        return _print(x, slot, language)

    match e.op:
        case "const":
            return str(e.value)
        case "slot":
            return slot(e.args[0], e.args[1])
        case "and":
            return "(" + language.conjunction.join(map(rec, e.args)) + ")"
        case "or":
            return "(" + language.disjunction.join(map(rec, e.args)) + ")"
        case "not":
            return f"({language.negation}{rec(e.args[0])})"
        case "ite":
            test, then, otherwise = map(rec, e.args)
            return language.choice.format(test=test, then=then, otherwise=otherwise)
        case "sum":
            counted = (
                rec(a) if a.is_const else language.choice.format(test=rec(a), then=1, otherwise=0) for a in e.args
            )
            return "(" + " + ".join(counted) + ")"
        case "add" | "sub" | "eq" | "lt" | "le":
            return f"({rec(e.args[0])} {SYMBOLS[e.op]} {rec(e.args[1])})"
        case _:
            raise ExprError(f"({e}) is not ground: it still has an open {e.op}")
