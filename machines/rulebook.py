"""Rules and rulebooks: the joint protocol of several machines as data.

Theory. A *rule* is one atomic step of one *actor*: a guard, the events it fires in the machines, and simultaneous
updates of a few bounded variables (every right-hand side reads the state before). Variables are *own* (the executor's
bookkeeping; they exist at run time) or *world* (the device's truth; they exist in the checker and, as its truth, in
the simulator). What an executor's rule may do with them:

====================  =======================  ==============================================================
part of the rule      may read                 meaning
====================  =======================  ==============================================================
``guard``             own                      may the executor take this step?
``fires, then, each`` own                      what its bookkeeping becomes
``truth``             own and world            what the step does to the world (the checker's ghost variables)
====================  =======================  ==============================================================

An *effect* is a call into CalRT, made with no lock held, therefore never one step: a rule **begins** it, another is
its **outcome**. What may come back is declared once, on the effect: each `Return` has the class that the executor
observes (`observed`), when the world can produce it (`when`), and what is then true of the world (`truth`). An
outcome rule names the classes it takes; the checker fires it when the world allows one of them, the runtime when that
one was observed.

Rules of an *environment* actor (client, device, fault injector) stand for what others may do. Their guards may read
the world (`world=`); such actors are never assumed fair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from attrs import evolve, field, frozen

from machines.expr import FALSE, TRUE, Domain, Expr, Map, Param, Sort, State, Value, Var, all_of, code_of, const
from machines.table import RulebookError, Table, as_tuple

__all__ = [
    "Actor", "Each", "Effect", "Invariant", "LeadsTo", "Property", "Return", "Rule", "Rulebook", "Run", "Scope",
    "Sometimes", "Step", "variable",
]  # fmt: skip


def _pairs(value: Mapping[Expr, Any] | Iterable[tuple[Expr, Any]]) -> tuple[tuple[Expr, Any], ...]:
    return tuple(value.items() if isinstance(value, Mapping) else value)


def _updates(value: Mapping[Expr, Any] | Iterable[tuple[Expr, Any]]) -> tuple[tuple[Expr, Expr], ...]:
    """The new values may be mixed (expressions, members, bools, ints); `const` refuses everything else."""
    return tuple((target, const(v)) for target, v in _pairs(value))


def _codes(values: Mapping[str, State | bool | int]) -> dict[str, int]:
    return {name: code_of(value) for name, value in values.items()}


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _indices(value: Any) -> tuple[Expr, ...]:
    """An index, a sort (its own index), or several of them."""
    items = value if isinstance(value, tuple | list) else (value,)
    return tuple(i.index if isinstance(i, Sort) else i for i in items)


def _outcome(value: Any) -> Any:
    """An effect and the classes taken; a single class may stand alone."""
    return value if value is None else (value[0], _names(value[1]))


@frozen
class Actor:
    """Who takes a step.

    environment: not ours (client, device, faults): never assumed fair. observes: a step of it may read the world and
    write our bookkeeping at once; only modelling actors do that, and each is named in the docs as an abstraction.
    """

    name: str
    about: str = ""
    environment: bool = False
    observes: bool = False


@frozen(eq=False)
class Each:
    """Part of a rule that happens for every element of a sort at once (a new generation, a wake-up of all)."""

    index: Expr
    fires: tuple[tuple[Expr, str], ...] = field(default=(), converter=_pairs)
    then: tuple[tuple[Expr, Expr], ...] = field(default=(), converter=_updates)
    truth: tuple[tuple[Expr, Expr], ...] = field(default=(), converter=_updates)


@frozen(eq=False)
class Return:
    """One thing a call may bring back.

    observed: the class that the executor sees; variant: tells several truths behind one class apart;
    when: the world can produce it; truth, each: what is then true of the world.
    """

    observed: str
    when: Expr = field(default=TRUE, converter=const)
    truth: tuple[tuple[Expr, Expr], ...] = field(default=(), converter=_updates)
    each: tuple[Each, ...] = ()
    variant: str = ""
    about: str = ""

    @property
    def name(self) -> str:
        return f"{self.observed}~{self.variant}" if self.variant else self.observed


@frozen(eq=False)
class Effect:
    """A call into CalRT. While it is made, variable `call` has the value `value`; otherwise `idle` or another call's.

    over: the sort it is made for (one call at a time per element), or None for a shared call.
    """

    name: str
    call: Expr
    value: State
    idle: State
    returns: tuple[Return, ...] = field(converter=as_tuple)
    over: Sort | None = None
    vendor: bool = True
    about: str = ""
    cites: str = ""

    @property
    def pending(self) -> Expr:
        """The call is being made."""
        return self.call == self.value

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r.observed for r in self.returns))


@frozen(eq=False)
class Rule:
    """One atomic step of one actor.

    over: indices it is about (one instance per element); begins, outcome: the effect it starts, the effect and observed
    classes it ends; fair: key of the fair actor instance it belongs to (default: the actor's name);
    unreachable: why this rule is allowed never to fire.
    """

    id: str
    actor: Actor
    guard: Expr = field(default=TRUE, converter=const)
    over: tuple[Expr, ...] = field(default=(), converter=_indices)
    fires: tuple[tuple[Expr, str], ...] = field(default=(), converter=_pairs)
    then: tuple[tuple[Expr, Expr], ...] = field(default=(), converter=_updates)
    each: tuple[Each, ...] = ()
    begins: Effect | None = None
    outcome: tuple[Effect, tuple[str, ...]] | None = field(default=None, converter=_outcome)
    world: Expr = field(default=TRUE, converter=const)
    truth: tuple[tuple[Expr, Expr], ...] = field(default=(), converter=_updates)
    cites: str = ""
    about: str = ""
    fair: str = ""
    unreachable: str = ""

    @property
    def full_guard(self) -> Expr:
        """The guard with what `begins` and `outcome` imply: no other call is being made, this one is."""
        if self.outcome:
            return all_of(self.outcome[0].pending, self.guard)
        if self.begins:
            return all_of(self.begins.call == self.begins.idle, self.guard)
        return self.guard

    @property
    def full_then(self) -> tuple[tuple[Expr, Expr], ...]:
        """The updates with the call variable's."""
        if self.begins:
            return (*self.then, (self.begins.call, const(self.begins.value)))
        if self.outcome:
            effect = self.outcome[0]
            return (*self.then, (effect.call, const(effect.idle)))
        return self.then

    @property
    def returns(self) -> tuple[Return, ...]:
        """The returns an outcome rule takes."""
        if not self.outcome:
            return ()
        effect, classes = self.outcome
        return tuple(r for r in effect.returns if r.observed in classes)

    @property
    def fair_key(self) -> str:
        """The fair actor it belongs to; empty when nothing may be assumed (environment, a vendor call's return)."""
        if self.actor.environment or (self.outcome and self.outcome[0].vendor):
            return ""
        return self.fair or self.actor.name


# -- properties ---------------------------------------------------------------------------------------------------
@frozen(eq=False)
class Property:
    """What must hold. says: a sentence a reviewer can read; applies: an expression over parameters; where it is false
    the property is "not applicable" to the run, never green."""

    id: str
    says: str
    cites: str = ""
    over: tuple[Expr, ...] = field(default=(), converter=_indices, kw_only=True)
    applies: Expr = field(default=TRUE, converter=const, kw_only=True)

    kind = "property"


@frozen(eq=False)
class Invariant(Property):
    """`holds` is true in every reachable state."""

    holds: Expr = field(converter=const, kw_only=True)
    kind = "invariant"


@frozen(eq=False)
class Step(Property):
    """`holds` is true of every step; it may read `x.next`. on: only the steps of these rules (patterns)."""

    holds: Expr = field(converter=const, kw_only=True)
    on: tuple[str, ...] = field(default=("*",), converter=_names, kw_only=True)
    kind = "step"

    def about_rule(self, rule_id: str) -> bool:
        return any(fnmatchcase(rule_id, pattern) for pattern in self.on)


@frozen(eq=False)
class Sometimes(Property):
    """`reached` is true in some reachable state (non-vacuity)."""

    reached: Expr = field(converter=const, kw_only=True)
    kind = "sometimes"


@frozen(eq=False)
class LeadsTo(Property):
    """Whenever `when` is true, `then` is true at that moment or later, if our actors are weakly fair."""

    when: Expr = field(converter=const, kw_only=True)
    then: Expr = field(converter=const, kw_only=True)
    kind = "leads-to"


# -- scopes and runs ------------------------------------------------------------------------------------------------
@frozen
class Run:
    """One exploration that belongs to a rulebook's campaign.

    values: parameters that differ from their defaults; expect: "PROVED" or "REFUTED" (then `by` names the property that
    must be among the refuted); liveness: evaluate leads-to too; without: rules left out (patterns);
    tier: "fast" or "nightly".
    """

    name: str
    values: Mapping[str, int] = field(factory=dict, converter=_codes)
    expect: str = "PROVED"
    by: str = ""
    liveness: bool = False
    without: tuple[str, ...] = field(default=(), converter=_names)
    tier: str = "fast"
    about: str = ""


@frozen(eq=False)
class Scope:
    """A rulebook's parameters with their values. Raises RulebookError for a value out of range or an unknown name."""

    rulebook: Rulebook
    values: Mapping[str, int]
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = {p.name: p for p in self.rulebook.params}
        return " ".join(f"{k}={shown[k].show(v)}" for k, v in self.values.items())


@frozen(eq=False)
class Rulebook:
    """Everything that may happen, validated. Raises RulebookError that names every problem and where it is.

    locks: the lock domains in their order (§5.2); empty if the rulebook has none. legal_end: where nothing need be
    enabled.
    unfired: rows that no rule fires, each with the reason why that is right (row id -> reason).
    mutation_runs: the small scopes of the mutation study, cheapest first.
    """

    name: str
    actors: tuple[Actor, ...] = field(converter=as_tuple)
    params: tuple[Param, ...] = field(converter=as_tuple)
    sorts: tuple[Sort, ...] = field(converter=as_tuple)
    variables: tuple[Var, ...] = field(converter=as_tuple)
    rules: tuple[Rule, ...] = field(converter=as_tuple)
    effects: tuple[Effect, ...] = field(default=(), converter=as_tuple)
    properties: tuple[Property, ...] = field(default=(), converter=as_tuple)
    maps: tuple[Map, ...] = field(default=(), converter=as_tuple)
    locks: tuple[str, ...] = field(default=(), converter=as_tuple)
    legal_end: Expr = field(default=FALSE, converter=const)
    runs: tuple[Run, ...] = field(default=(), converter=as_tuple)
    mutation_runs: tuple[Run, ...] = field(default=(), converter=as_tuple)
    unfired: Mapping[str, str] = field(factory=dict)
    about: str = ""

    def __attrs_post_init__(self) -> None:
        from machines.validate import problems_of

        problems = problems_of(self)
        if problems:
            raise RulebookError(f"rulebook {self.name}", problems)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Each distinct table, in declaration order."""
        return tuple(dict.fromkeys(v.machine for v in self.variables if v.machine is not None))

    def rule(self, rule_id: str) -> Rule:
        for r in self.rules:
            if r.id == rule_id:
                return r
        raise KeyError(f"rulebook {self.name} has no rule {rule_id!r}")

    def scope(self, values: Mapping[str, State | bool | int] | None = None, without: Iterable[str] = ()) -> Scope:
        """The default parameters with some replaced."""
        known = {p.name: p for p in self.params}
        chosen = {p.name: p.default for p in self.params}
        problems = []
        for name, value in _codes(values or {}).items():
            if name not in known:
                problems.append(f"unknown parameter {name!r}; allowed are {', '.join(known) or 'none'}")
            elif not known[name].lo <= value <= known[name].hi:
                problems.append(f"{name}={value} is out of range; allowed are {known[name].lo}..{known[name].hi}")
            else:
                chosen[name] = value
        without = tuple(without)
        for pattern in without:
            if not any(fnmatchcase(r.id, pattern) for r in self.rules):
                problems.append(f"no rule matches {pattern!r}, so it cannot be left out")
        if problems:
            raise RulebookError(f"scope of {self.name}", problems)
        return Scope(self, chosen, without)

    def replace(self, *rules: Rule, drop: Iterable[str] = (), **changes: Any) -> Rulebook:
        """A copy with rules of the same ids replaced, new ones appended, some dropped: for seeded bugs and what-ifs."""
        new = {r.id: r for r in rules}
        kept = [new.pop(r.id, r) for r in self.rules if r.id not in set(drop)]
        return evolve(self, rules=(*kept, *new.values()), **changes)


def variable(
    name: str,
    domain: Domain | Table,
    initial: Value | None = None,
    *,
    sort: Sort | None = None,
    world: bool = False,
    lock: str = "",
    about: str = "",
) -> Var:
    """Declare a variable; a Table as domain makes it that machine's state. Initial value: the table's, or 0."""
    table = domain if isinstance(domain, Table) else None
    values = Domain.of(table.states) if table else domain
    if not isinstance(values, Domain):
        hint = "declare Domain(hi), Domain.boolean(), Domain.of(Enum) or a Table"
        raise RulebookError(f"variable {name}", [f"has no range: {hint}, not {domain!r}"])
    start = const(initial if initial is not None else table.initial if table else 0)
    var = Var(name, values, start, sort, world, lock, about, table)
    if sort is not None:
        sort.add(var)
    return var
