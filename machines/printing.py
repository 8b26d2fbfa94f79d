"""Prints ground expressions in the languages of the engines and exports: Python, C, Promela."""

from __future__ import annotations

from collections.abc import Callable

from machines.expr import SYMBOLS, Expr, ExprError


def to_python(e: Expr, slot: Callable[[int, bool], str]) -> str:
    """A ground tree as a Python expression; `slot(k, primed)` prints a state slot. Booleans come out as bool or int."""

    def rec(x: Expr) -> str:
        return to_python(x, slot)

    match e.op:
        case "const":
            return str(e.value)
        case "slot":
            return slot(e.args[0], e.args[1])
        case "and":
            return "(" + " and ".join(map(rec, e.args)) + ")"
        case "or":
            return "(" + " or ".join(map(rec, e.args)) + ")"
        case "not":
            return f"(not {rec(e.args[0])})"
        case "ite":
            return f"({rec(e.args[1])} if {rec(e.args[0])} else {rec(e.args[2])})"
        case "sum":
            return "(" + " + ".join(rec(a) if a.is_const else f"(1 if {rec(a)} else 0)" for a in e.args) + ")"
        case "add" | "sub" | "eq" | "lt" | "le":
            return f"({rec(e.args[0])} {SYMBOLS[e.op]} {rec(e.args[1])})"
        case _:
            raise ExprError(f"({e}) is not ground: it still has an open {e.op}")


def to_c(e: Expr, slot: Callable[[int, bool], str]) -> str:
    """A ground tree as a C expression over int; also valid Promela (which prints `ite` as ``(a -> b : c)``)."""
    return _c_like(e, slot, "?")


def to_promela(e: Expr, slot: Callable[[int, bool], str]) -> str:
    """A ground tree as a Promela expression."""
    return _c_like(e, slot, "->")


def _c_like(e: Expr, slot: Callable[[int, bool], str], then: str) -> str:
    def rec(x: Expr) -> str:
        return _c_like(x, slot, then)

    match e.op:
        case "const":
            return str(e.value)
        case "slot":
            return slot(e.args[0], e.args[1])
        case "and":
            return "(" + " && ".join(map(rec, e.args)) + ")"
        case "or":
            return "(" + " || ".join(map(rec, e.args)) + ")"
        case "not":
            return f"(!{rec(e.args[0])})"
        case "ite":
            return f"({rec(e.args[0])} {then} {rec(e.args[1])} : {rec(e.args[2])})"
        case "sum":
            return "(" + " + ".join(rec(a) if a.is_const else f"({rec(a)} {then} 1 : 0)" for a in e.args) + ")"
        case "add" | "sub" | "eq" | "lt" | "le":
            return f"({rec(e.args[0])} {SYMBOLS[e.op]} {rec(e.args[1])})"
        case _:
            raise ExprError(f"({e}) is not ground: it still has an open {e.op}")
