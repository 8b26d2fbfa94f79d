"""Bounded-integer expressions: the one language of guards, updates and properties.

Theory. A rulebook's state is a finite tuple of small non-negative integers: enum members are coded by their position
in their enum, booleans as 0 and 1. An expression is a small immutable tree over those variables, built by operator
overloading (``&`` ``|`` ``~`` ``==`` ``<`` ``+`` ``-`` and the functions below), never by strings. A variable may
belong to a *sort* (job, sequence, ...): then it exists once per element, and ``job.state`` means "the state of the
job this rule is about". ``job.at(i).state`` names another element.

A tree is used in two forms. *Symbolic*: as written, with parameters and element indices open. *Ground*: after
`ground()` has put in one scope and one binding of the indices; only constants, state slots and operators are left,
and constants are folded. Engines and exports print ground trees (`to_python`, `to_c`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from attrs import field, frozen

__all__ = [
    "FALSE", "TRUE", "Domain", "Expr", "ExprError", "Map", "Param", "Sort", "State", "Value", "Var",
    "all_of", "any_of", "code_of", "const", "count", "every", "ite", "some",
]  # fmt: skip


class ExprError(TypeError):
    """An expression was built from something that cannot be part of one."""


class State(enum.Enum):
    """Base of every enum whose members appear in expressions. A member is coded by its position in its enum."""

    @property
    def code(self) -> int:
        return list(type(self)).index(self)

    def __str__(self) -> str:
        return self.name


Value: TypeAlias = "Expr | State | bool | int"


def code_of(value: State | bool | int) -> int:
    """The integer that stands for a value in a state tuple."""
    return value.code if isinstance(value, State) else int(value)


@frozen(eq=False, slots=True)
class Expr:
    """One node: an operator and its arguments. Build with operators and the functions of this module."""

    op: str
    args: tuple[Any, ...] = ()

    # -- building -----------------------------------------------------------------------------------------------
    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return _binary("eq", self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return ~_binary("eq", self, other)

    __hash__ = object.__hash__

    def __lt__(self, other: Value) -> Expr:
        return _binary("lt", self, other)

    def __le__(self, other: Value) -> Expr:
        return _binary("le", self, other)

    def __gt__(self, other: Value) -> Expr:
        return _binary("lt", const(other), self)

    def __ge__(self, other: Value) -> Expr:
        return _binary("le", const(other), self)

    def __add__(self, other: Value) -> Expr:
        return _binary("add", self, other)

    def __radd__(self, other: Value) -> Expr:
        return _binary("add", const(other), self)

    def __sub__(self, other: Value) -> Expr:
        return _binary("sub", self, other)

    def __rsub__(self, other: Value) -> Expr:
        return _binary("sub", const(other), self)

    def __and__(self, other: Value) -> Expr:
        return all_of(self, other)

    def __or__(self, other: Value) -> Expr:
        return any_of(self, other)

    def __invert__(self) -> Expr:
        return _negation(self)

    def __bool__(self) -> bool:
        raise ExprError(
            f"the expression ({self}) has no truth value while it is being built: "
            "use & | ~ instead of and, or, not, and x.isin(a, b) instead of x in (a, b)"
        )

    def isin(self, *members: Value) -> Expr:
        """True when the value equals one of the members."""
        if not members:
            raise ExprError(f"({self}).isin() needs at least one member")
        return any_of(*(self == m for m in members))

    @property
    def next(self) -> Expr:
        """The same variable in the state after the step (step properties only)."""
        if self.op != "ref":
            raise ExprError(f"only a variable has a next value, not ({self})")
        var, index, _ = self.args
        return Expr("ref", (var, index, True))

    # -- reading ------------------------------------------------------------------------------------------------
    @property
    def is_const(self) -> bool:
        return self.op == "const"

    @property
    def value(self) -> int:
        """The integer of a constant."""
        return int(self.args[0])

    def __str__(self) -> str:
        return _show(self, 0)

    def children(self) -> Iterator[Expr]:
        for a in self.args:
            if isinstance(a, Expr):
                yield a

    def walk(self) -> Iterator[Expr]:
        """Every node of the tree, this one first."""
        yield self
        for a in self.children():
            yield from a.walk()

    def variables(self) -> frozenset[Var]:
        """The variables it reads (now or next)."""
        return frozenset(n.args[0] for n in self.walk() if n.op == "ref")

    def conjuncts(self) -> tuple[Expr, ...]:
        """The parts of a conjunction, flattened; a single expression is its own only conjunct; TRUE has none."""
        if self.op == "and":
            return tuple(c for a in self.args for c in a.conjuncts())
        return () if self.is_const and self.value else (self,)


NUMBER_MAX = 1_000_000
"""Sums of a few numbers of this size still fit every engine's integers."""


def const(value: object) -> Expr:
    """A constant; expressions pass through."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, State):
        return Expr("const", (value.code, f"{type(value).__name__}.{value.name}", type(value)))
    if isinstance(value, bool | int):
        if abs(value) > NUMBER_MAX:
            raise ExprError(f"{value} is too large for an expression; allowed are {-NUMBER_MAX}..{NUMBER_MAX}")
        return Expr("const", (int(value), str(value)))
    raise ExprError(f"{value!r} cannot be part of an expression: allowed are State members, bools, ints, expressions")


TRUE = const(True)
FALSE = const(False)


def _binary(op: str, left: object, right: object) -> Expr:
    a, b = const(left), const(right)
    if op in ("eq", "lt", "le"):
        for x, y in ((a, b), (b, a)):
            _check_comparable(x, y)
    return Expr(op, (a, b))


def _check_comparable(x: Expr, y: Expr) -> None:
    """An enum variable may be compared with members of its own enum only."""
    if x.op == "ref" and y.is_const and x.args[0].domain.enum is not None:
        owner = x.args[0].domain.enum
        if not is_member(y, owner):
            raise ExprError(f"{x} is compared with {y.args[1]}; allowed are the members of {owner.__name__}")


def is_member(e: Expr, enum_type: type[State]) -> bool:
    """A constant that was written as a member of just this enum."""
    return e.is_const and e.args[2:] == (enum_type,)


def all_of(*parts: Value) -> Expr:
    """Conjunction of any number of parts; empty is TRUE."""
    flat = [c for p in parts for c in const(p).conjuncts()]
    return TRUE if not flat else flat[0] if len(flat) == 1 else Expr("and", tuple(flat))


def any_of(*parts: Value) -> Expr:
    """Disjunction of any number of parts; empty is FALSE."""
    flat: list[Expr] = []
    for p in map(const, parts):
        flat.extend(p.args if p.op == "or" else (p,))
    return FALSE if not flat else flat[0] if len(flat) == 1 else Expr("or", tuple(flat))


def _negation(e: Expr) -> Expr:
    """The negation, pushed down to comparisons, so that every conjunct of a guard lies open."""
    match e.op:
        case "not":
            return e.args[0]  # type: ignore[no-any-return]
        case "and":
            return any_of(*(_negation(a) for a in e.args))
        case "or":
            return all_of(*(_negation(a) for a in e.args))
        case _:
            return Expr("not", (e,))


def ite(test: Expr, then: Value, otherwise: Value) -> Expr:
    """`then` where `test` holds, else `otherwise`."""
    return Expr("ite", (const(test), const(then), const(otherwise)))


def count(index: Expr | Sort, body: Expr) -> Expr:
    """For how many elements of the index's sort `body` holds."""
    return Expr("count", (_index(index), const(body)))


def every(index: Expr | Sort, body: Expr) -> Expr:
    """`body` holds for every element of the index's sort."""
    return Expr("every", (_index(index), const(body)))


def some(index: Expr | Sort, body: Expr) -> Expr:
    """`body` holds for some element of the index's sort."""
    return Expr("some", (_index(index), const(body)))


def _index(value: Expr | Sort) -> Expr:
    index = value.index if isinstance(value, Sort) else value
    if index.op != "index":
        raise ExprError(f"({index}) is not an index of a sort; use job.index or job.named('other')")
    return index


# -- what expressions are about -----------------------------------------------------------------------------------
@frozen
class Param:
    """A number fixed for a whole run: part of the scope, a vendor fact or a policy.

    kind: "scope" (how large), "fact" (what the vendor's device does, §14; True is the good value), "policy" (our
    choice).
    """

    name: str
    default: int = field(converter=code_of)
    lo: int = 0
    hi: int = 1
    kind: str = "scope"
    about: str = ""
    choices: type[State] | None = None

    @property
    def expr(self) -> Expr:
        return Expr("param", (self,))

    def is_(self, member: State) -> Expr:
        """True when an enum-valued parameter has this member."""
        return Expr("eq", (self.expr, const(member)))

    def show(self, value: int) -> str:
        return str(list(self.choices)[value]) if self.choices else str(value)


@frozen(eq=False)
class Domain:
    """The values a variable may take: 0..hi. `hi` may depend on the scope. For an enum, its members."""

    hi: Expr = field(converter=const)
    enum: type[State] | None = None

    @classmethod
    def boolean(cls) -> Domain:
        return cls(1)

    @classmethod
    def of(cls, members: type[State]) -> Domain:
        return cls(len(members) - 1, members)


@frozen(eq=False, slots=True)
class Var:
    """A declared variable. `world` ones are the device's truth: only the checker has them.

    lock: the lock domain of §5.2 that protects it (own variables). machine: the table that moves it, if any.
    """

    name: str
    domain: Domain
    initial: Expr
    sort: Sort | None = None
    world: bool = False
    lock: str = ""
    about: str = ""
    machine: Any = None

    @property
    def path(self) -> str:
        return f"{self.sort.name}.{self.name}" if self.sort else self.name

    @property
    def ref(self) -> Expr:
        """The variable as an expression (of its sort's own index, if it has a sort)."""
        return Expr("ref", (self, self.sort.index if self.sort else None, False))

    def show(self, value: int) -> str:
        if self.domain.enum is not None:
            members = list(self.domain.enum)
            return members[value].name if 0 <= value < len(members) else f"?{value}"
        return str(value)


class _View:
    """The variables of one element: `job.at(i)`."""

    __slots__ = ("_index", "_sort")

    def __init__(self, sort: Sort, index: Expr) -> None:
        self._sort, self._index = sort, index

    def __getattr__(self, name: str) -> Expr:
        return Expr("ref", (self._sort.find(name), self._index, False))


class Sort:
    """A family of interchangeable elements (job, sequence, node); each has its own copy of the sort's variables.

    size: how many there are; an expression over parameters.
    """

    def __init__(self, name: str, size: Value) -> None:
        self.name = name
        self.size = const(size)
        self.index = Expr("index", (self, name))
        self.variables: dict[str, Var] = {}

    def __repr__(self) -> str:
        return f"Sort({self.name!r})"

    def named(self, name: str) -> Expr:
        """Another index over the same sort, for rules and quantifiers about two elements."""
        return Expr("index", (self, name))

    def at(self, index: Value) -> Any:
        """The variables of element `index`: `job.at(i).state`."""
        return _View(self, const(index))

    def add(self, var: Var) -> Expr:
        if hasattr(type(self), var.name) or var.name in self.__dict__:
            raise ExprError(
                f"{self.name}.{var.name}: the name {var.name!r} means something else on a sort; take another"
            )
        if var.name in self.variables:
            raise ExprError(f"{self.name}.{var.name} is declared twice")
        self.variables[var.name] = var
        return var.ref

    def find(self, name: str) -> Var:
        try:
            return self.variables[name]
        except KeyError:
            known = ", ".join(self.variables) or "none yet"
            raise AttributeError(f"sort {self.name} has no variable {name!r}; declared are: {known}") from None

    def __getattr__(self, name: str) -> Expr:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.find(name).ref


@frozen(eq=False)
class Map:
    """A constant function from the elements of one sort to those of another, fixed by the scope (a job's sequence)."""

    name: str
    source: Sort
    target: Sort
    function: Callable[[int, Mapping[str, int]], int]

    def of(self, index: Expr | None = None) -> Any:
        """The target's variables for the element that `index` (default: the source's own index) is mapped to."""
        return self.target.at(self.index(index))

    def index(self, index: Expr | None = None) -> Expr:
        """The target element as an index expression."""
        return Expr("map", (self, self.source.index if index is None else index))


def same(a: Expr, b: Expr) -> bool:
    """Structural equality."""
    if a.op != b.op or len(a.args) != len(b.args):
        return False
    if a.is_const:
        return a.value == b.value
    return all(
        same(x, y) if isinstance(x, Expr) and isinstance(y, Expr) else x is y or (not isinstance(x, Expr) and x == y)
        for x, y in zip(a.args, b.args, strict=True)
    )


# -- printing -----------------------------------------------------------------------------------------------------
SYMBOLS = {"eq": "==", "lt": "<", "le": "<=", "add": "+", "sub": "-"}


def _show(e: Expr, level: int) -> str:
    """As a reviewer would write it; used in docs, diagrams and errors."""

    def wrap(text: str, own: int) -> str:
        return f"({text})" if own < level else text

    match e.op:
        case "const":
            return str(e.args[1])
        case "param":
            return str(e.args[0].name)
        case "index":
            return str(e.args[1])
        case "map":
            return f"{e.args[0].name}[{e.args[1]}]"
        case "slot":
            return f"s{e.args[0]}" + ("'" if e.args[1] else "")
        case "ref":
            var, index, primed = e.args
            tick = "'" if primed else ""
            if var.sort is None:
                return f"{var.name}{tick}"
            if index.op == "index" and index.args[1] == var.sort.name:
                return f"{var.path}{tick}"
            owner = var.sort.name if index.op == "map" and index.args[1].op == "index" else f"{var.sort.name}[{index}]"
            return f"{owner}.{var.name}{tick}"
        case "and":
            return wrap(" & ".join(_show(a, 3) for a in e.args), 2)
        case "or":
            members = _membership(e)
            if members is not None:
                return members
            return wrap(" | ".join(_show(a, 2) for a in e.args), 1)
        case "not":
            inner = e.args[0]
            if inner.op == "eq":
                return wrap(f"{_show(inner.args[0], 4)} != {_value(inner.args[1])}", 3)
            return f"~{_show(inner, 5)}"
        case "ite":
            return wrap(f"{_show(e.args[1], 1)} if {_show(e.args[0], 1)} else {_show(e.args[2], 1)}", 0)
        case "sum":
            return "(" + " + ".join(_show(a, 4) for a in e.args) + ")"
        case "count" | "every" | "some":
            return f"{e.op}({e.args[0]}: {e.args[1]})"
        case _:
            return wrap(f"{_show(e.args[0], 4)} {SYMBOLS[e.op]} {_value(e.args[1])}", 3)


def _value(e: Expr) -> str:
    """A constant on the right of a comparison: the member without its enum."""
    return str(e.args[1]).rsplit(".", 1)[-1] if e.is_const else _show(e, 4)


def _membership(e: Expr) -> str | None:
    """`x in {A, B}` for a disjunction of equalities over one term."""
    if not all(a.op == "eq" and a.args[1].is_const and same(a.args[0], e.args[0].args[0]) for a in e.args):
        return None
    return f"{_show(e.args[0].args[0], 4)} in {{{', '.join(_value(a.args[1]) for a in e.args)}}}"
