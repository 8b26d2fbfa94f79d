"""Ground expressions over many states at once, with numpy: what liveness and whole-graph questions evaluate.

Theory. A ground tree reads state slots only, so over an array of states it is one column expression per node. Rows are
taken in blocks, so the temporaries stay small whatever the number of states is. Truth values are "not zero", as in C.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from machines.expr import Expr, ExprError

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

BLOCK_ROWS = 1 << 18

_ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "eq": np.equal, "lt": np.less, "le": np.less_equal,
}  # fmt: skip


def holds(e: Expr, states: Array) -> Array:
    """For each row of `states` (n, slots): is the ground expression true there? (n,) bool."""
    out = np.empty(len(states), dtype=bool)
    for at in range(0, len(states), BLOCK_ROWS):
        out[at : at + BLOCK_ROWS] = _evaluate(e, states[at : at + BLOCK_ROWS]) != 0
    return out


def evaluate(e: Expr, states: Array) -> Array:
    """The value of a ground expression for each row of `states`. (n,) int32."""
    out = np.empty(len(states), dtype=np.int32)
    for at in range(0, len(states), BLOCK_ROWS):
        out[at : at + BLOCK_ROWS] = _evaluate(e, states[at : at + BLOCK_ROWS])
    return out


def _evaluate(e: Expr, states: Array) -> Array:
    """One node: an int32 column, or a scalar array for a constant."""

    def value(child: Expr) -> Array:
        return _evaluate(child, states)

    def truth(child: Expr) -> Array:
        return np.asarray(value(child) != 0)

    match e.op:
        case "const":
            return np.asarray(e.value, dtype=np.int32)
        case "slot":
            if e.args[1]:
                raise ExprError(f"({e}) reads the next state; a single state has none")
            return np.asarray(states[:, e.args[0]], dtype=np.int32)
        case "and":
            return reduce(np.logical_and, map(truth, e.args)).astype(np.int32)
        case "or":
            return reduce(np.logical_or, map(truth, e.args)).astype(np.int32)
        case "not":
            return np.logical_not(truth(e.args[0])).astype(np.int32)
        case "ite":
            return np.where(truth(e.args[0]), value(e.args[1]), value(e.args[2]))
        case "sum":
            return reduce(np.add, (value(a) if a.is_const else truth(a).astype(np.int32) for a in e.args))
        case op if op in _ARITHMETIC:
            return _ARITHMETIC[op](value(e.args[0]), value(e.args[1])).astype(np.int32)
        case _:
            raise ExprError(f"({e}) is not ground: it still has an open {e.op}")
