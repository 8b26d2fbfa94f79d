"""From a symbolic expression to a ground one: put in a scope and element numbers, fold constants.

A ground tree has only constants, state slots (a position in the state tuple, now or next) and operators. Folding keeps
the value in every state; parts that the scope decides, such as a policy's guard, disappear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import frozen

from machines.expr import FALSE, TRUE, Expr, ExprError, Map, Var, const, same


@frozen(eq=False)
class Grounding:
    """One scope: values of the parameters, and where each variable's copies lie in the state tuple."""

    params: Mapping[str, int]
    sizes: Mapping[str, int]
    slots: Mapping[Var, int]  # first slot of the variable; element i lies at slots[var] + i

    def slot(self, var: Var, element: int | None) -> int:
        if var.sort is None:
            return self.slots[var]
        if element is None or not 0 <= element < self.sizes[var.sort.name]:
            raise ExprError(f"{var.path}: element {element} is out of range; the scope has {self.sizes[var.sort.name]}")
        return self.slots[var] + element


def ground(e: Expr, env: Grounding, binding: Mapping[Expr, int] | None = None) -> Expr:
    """The tree for one scope, with element numbers for its open indices (`binding`)."""
    bound = binding or {}

    def rec(x: Expr) -> Expr:
        return ground(x, env, bound)

    match e.op:
        case "const" | "slot":
            return e
        case "param":
            return const(env.params[e.args[0].name])
        case "index":
            return const(_bound(e, bound))
        case "map":
            source = rec(e.args[1]).value
            return const(_mapped(e.args[0], source, env))
        case "ref":
            var, index, primed = e.args
            element = None if index is None else rec(index).value
            return Expr("slot", (env.slot(var, element), primed))
        case "count" | "every" | "some":
            index, body = e.args
            items = [ground(body, env, {**bound, index: i}) for i in range(env.sizes[index.args[0].name])]
            return fold_count(items) if e.op == "count" else fold_and(items) if e.op == "every" else fold_or(items)
        case _:
            return fold(e.op, [rec(a) for a in e.args])


def _mapped(map_: Map, source: int, env: Grounding) -> int:
    try:
        return map_.function(source, env.params)
    except Exception as error:  # the user's code
        what = f"{type(error).__name__}: {error}"
        raise ExprError(f"map {map_.name} fails for {map_.source.name} {source}: {what}") from error


def _bound(index: Expr, binding: Mapping[Expr, int]) -> int:
    for key, element in binding.items():
        if key.args == index.args:
            return element
    raise ExprError(f"index {index} is not bound here: name it in the rule's or property's `over`")


def fold(op: str, args: list[Expr]) -> Expr:
    """Build a ground node, folding constants."""
    if op == "and":
        return fold_and(args)
    if op == "or":
        return fold_or(args)
    if op == "ite":
        test, a, b = args
        if test.is_const:
            return a if test.value else b
        return a if same(a, b) else Expr("ite", (test, a, b))
    if op == "not":
        (a,) = args
        return const(not a.value) if a.is_const else a.args[0] if a.op == "not" else Expr("not", (a,))
    a, b = args
    if a.is_const and b.is_const:
        return const(_OPS[op](a.value, b.value))
    if op == "eq" and same(a, b):
        return TRUE
    if op in ("add", "sub") and b.is_const and b.value == 0:
        return a
    if op == "add" and a.is_const and a.value == 0:
        return b
    return Expr(op, (a, b))


_OPS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "eq": lambda a, b: int(a == b),
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
}


def fold_and(items: Iterable[Expr]) -> Expr:
    flat: list[Expr] = []
    for x in items:
        if x.is_const and not x.value:
            return FALSE
        flat.extend(x.conjuncts())
    return TRUE if not flat else flat[0] if len(flat) == 1 else Expr("and", tuple(flat))


def fold_or(items: Iterable[Expr]) -> Expr:
    flat: list[Expr] = []
    for x in items:
        if x.is_const:
            if x.value:
                return TRUE
            continue
        flat.extend(x.args if x.op == "or" else (x,))
    return FALSE if not flat else flat[0] if len(flat) == 1 else Expr("or", tuple(flat))


def fold_count(items: Iterable[Expr]) -> Expr:
    known = 0
    open_: list[Expr] = []
    for x in items:
        if x.is_const:
            known += int(bool(x.value))
        else:
            open_.append(x)
    return const(known) if not open_ else Expr("sum", (*open_, const(known)))
