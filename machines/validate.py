"""What is wrong with a rulebook, found when it is built: each problem says what, where, and what is allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from machines.expr import Domain, Expr, Param, Sort, State, Var, is_member

if TYPE_CHECKING:
    from machines.rulebook import Effect, Property, Rule, Rulebook

BUILT_IN_PROPERTIES = ("deadlock", "range", "illegal", "receptive")
"""What every run checks without being asked; `Run.by` may name one of them."""


def problems_of(book: Rulebook) -> list[str]:
    """Every problem of the rulebook, in the order a reader would meet them. Empty when it is well formed."""
    found = list(_duplicates(book))
    if not book.rules:
        found.append("there are no rules, so there is nothing to prove")
    found += [p for q in book.params for p in _param(q)]
    found += [p for v in book.variables for p in _variable(book, v)]
    found += [p for r in book.rules for p in _rule(book, r)]
    found += [p for e in book.effects for p in _effect(book, e)]
    found += [p for q in book.properties for p in _property(book, q)]
    found += _expression("legal end", book.legal_end, book, (), truth=True)
    found += _unfired_rows(book)
    found += _runs(book)
    return found


def _duplicates(book: Rulebook) -> Iterator[str]:
    groups: dict[str, Iterable[str]] = {
        "actor": (a.name for a in book.actors),
        "parameter": (p.name for p in book.params),
        "sort": (s.name for s in book.sorts),
        "table": (t.name for t in book.tables),
        "variable": (v.path for v in book.variables),
        "rule": (r.id for r in book.rules),
        "effect": (e.name for e in book.effects),
        "property": (p.id for p in book.properties),
        "run": (r.name for r in (*book.runs, *book.mutation_runs)),
    }
    for kind, names in groups.items():
        for name, n in Counter(names).items():
            if n > 1:
                yield f"{kind} {name} is declared {n} times"


def _param(param: Param) -> Iterator[str]:
    if not param.lo <= param.default <= param.hi:
        yield f"parameter {param.name} has default {param.default}; allowed are {param.lo}..{param.hi}"


def _variable(book: Rulebook, var: Var) -> Iterator[str]:
    where = f"variable {var.path}"
    if not isinstance(var.domain, Domain):
        yield f"{where} has no range: declare Domain(hi), Domain.boolean(), Domain.of(Enum) or a Table"
        return
    for part, expr in (("range", var.domain.hi), ("initial value", var.initial)):
        if expr.variables():
            yield f"the {part} of {where} reads variables; it may read parameters only"
        yield from _expression(f"the {part} of {where}", expr, book, ())
    if var.initial.is_const and var.domain.hi.is_const and not 0 <= var.initial.value <= var.domain.hi.value:
        yield f"{where} starts at {var.initial.value}, outside 0..{var.domain.hi.value}"
    if var.domain.enum is not None and var.initial.args[2:] not in ((), (var.domain.enum,)):
        yield f"{where} starts at {var.initial}; allowed are the members of {var.domain.enum.__name__}"
    if var.sort is not None and var.sort not in book.sorts:
        yield f"{where} belongs to sort {var.sort.name}, which the rulebook does not list"
    if book.locks and not var.world and var.lock not in book.locks:
        yield f"{where} has lock domain {var.lock!r}; allowed are {', '.join(book.locks)}"
    if var.world and var.lock:
        yield f"{where} is the world's and cannot have a lock domain ({var.lock!r})"


# -- rules --------------------------------------------------------------------------------------------------------
def _rule(book: Rulebook, rule: Rule) -> Iterator[str]:
    where = f"rule {rule.id}"
    if rule.actor not in book.actors:
        known = ", ".join(a.name for a in book.actors)
        yield f"{where} belongs to actor {rule.actor.name}, which is not one of {known}"
    for part, expr in (("guard", rule.full_guard), ("world condition", rule.world)):
        yield from _expression(f"the {part} of {where}", expr, book, rule.over, truth=True)
    for index in rule.over:
        yield from _listed_sort(where, index, book)
    yield from _reads_world(rule)
    yield from _fires(book, rule)
    yield from _writes(book, rule)
    for part in ("begins", "outcome"):
        effect = rule.begins if part == "begins" else rule.outcome[0] if rule.outcome else None
        if effect is not None and effect not in book.effects:
            yield f"{where} {part} effect {effect.name}, which the rulebook does not list"
    if rule.outcome:
        effect, classes = rule.outcome
        for name in classes:
            if name not in effect.classes:
                yield f"{where} takes {effect.name} -> {name!r}; {effect.name} returns {', '.join(effect.classes)}"


def _world(expr: Expr) -> list[str]:
    return sorted(v.path for v in expr.variables() if v.world)


def _reads_world(rule: Rule) -> Iterator[str]:
    """Guards and own updates read own variables; only environment rules have a world condition."""
    where = f"rule {rule.id}"
    if bad := _world(rule.full_guard):
        yield (
            f"the guard of {where} reads the world ({', '.join(bad)}): the executor cannot know it; "
            "an environment rule says it in world=, a call's return in Return.when"
        )
    own = [*rule.full_then, *(u for e in rule.each for u in e.then)]
    for target, value in own:
        if bad := _world(value):
            yield f"{where} computes own {target} from the world ({', '.join(bad)})"
    if rule.world.variables():
        if not rule.actor.environment and not rule.actor.observes:
            yield f"{where} has a world condition, but {rule.actor.name} is one of ours; allowed for environment actors"
        elif (own or rule.fires) and not rule.actor.observes:
            yield f"{where} writes own variables under a world condition; only an actor that observes may"


def _fires(book: Rulebook, rule: Rule) -> Iterator[str]:
    where = f"rule {rule.id}"
    for target, event in [*rule.fires, *(f for e in rule.each for f in e.fires)]:
        var = target.args[0] if target.op == "ref" else None
        if not isinstance(var, Var) or var.machine is None:
            yield f"{where} fires {event!r} in {target}, which is not a machine"
        elif var not in book.variables:
            yield f"{where} fires {event!r} in {target}, which the rulebook does not list"
        elif event not in var.machine.events:
            known = ", ".join(var.machine.events)
            yield f"{where} fires unknown event {event!r} in {target}; {var.machine.name} has {known}"
    for target, event in rule.fires:
        var = target.args[0] if target.op == "ref" else None
        if not isinstance(var, Var) or var.machine is None or event not in var.machine.events:
            continue
        allowed = _states_allowed(rule.full_guard, target, var)
        if not any(var.machine.entry(s, event) for s in allowed):
            sources = [s.name for s in var.machine.states if var.machine.entry(s, event)]
            yield (
                f"{where} fires {var.machine.name}.{event}, but its guard allows only "
                f"{', '.join(s.name for s in allowed) or 'no state'}; the event exists in {', '.join(sources)}"
            )


def _states_allowed(guard: Expr, target: Expr, var: Var) -> list[State]:
    """The states of one machine that the guard's conjuncts about that machine alone permit."""
    states = list(var.domain.enum or ())
    own = [c for c in guard.conjuncts() if _only_about(c, target)]
    return [s for s in states if all(_evaluate(c, s.code) for c in own)]


def _only_about(e: Expr, target: Expr) -> bool:
    refs = [n for n in e.walk() if n.op in ("ref", "param", "index", "count", "every", "some")]
    about = [n for n in refs if n.op == "ref"]
    index = target.args[1]
    return (
        bool(about)
        and all(n.args[0] is target.args[0] and (index is None or str(n.args[1]) == str(index)) for n in about)
        and not any(n.op in ("param", "count", "every", "some") for n in refs)
    )


def _evaluate(e: Expr, value: int) -> int:
    """Evaluate an expression whose only variable has this value."""
    match e.op:
        case "const":
            return e.value
        case "ref":
            return value
        case "and":
            return int(all(_evaluate(a, value) for a in e.args))
        case "or":
            return int(any(_evaluate(a, value) for a in e.args))
        case "not":
            return int(not _evaluate(e.args[0], value))
        case "ite":
            return _evaluate(e.args[1] if _evaluate(e.args[0], value) else e.args[2], value)
        case op:
            a, b = (_evaluate(x, value) for x in e.args)
            return {"eq": int(a == b), "lt": int(a < b), "le": int(a <= b), "add": a + b, "sub": a - b}[op]


def _writes(book: Rulebook, rule: Rule) -> Iterator[str]:
    where = f"rule {rule.id}"
    parts = [(t, v, "then", rule.over) for t, v in rule.full_then]
    parts += [(t, v, "truth", rule.over) for t, v in rule.truth]
    parts += [(t, v, "truth", rule.over) for r in rule.returns for t, v in r.truth]
    for e in (*rule.each, *(e for r in rule.returns for e in r.each)):
        over = (*rule.over, e.index)
        parts += [(t, v, "then", over) for t, v in e.then] + [(t, v, "truth", over) for t, v in e.truth]
    for target, value, part, over in parts:
        if target.op != "ref" or target.args[2]:
            yield f"{where} assigns to ({target}), which is not a variable"
            continue
        var: Var = target.args[0]
        if var.machine is not None:
            yield f"{where} assigns {target} directly; a machine moves only by an event of its table"
        if var.world != (part == "truth"):
            kind, right = ("world", "truth") if var.world else ("own", "then")
            yield f"{where} writes {kind} {target} in {part}=; use {right}="
        enum = var.domain.enum
        if part == "then" and enum is not None and value.is_const and not is_member(value, enum):
            yield f"{where} sets {target} to {value}; allowed are the members of {enum.__name__}"
        yield from _expression(f"an update of {where}", target, book, over)
        yield from _expression(f"an update of {where}", value, book, over)
    yield from _written_twice(rule)


def _written_twice(rule: Rule) -> Iterator[str]:
    """Updates are simultaneous, so each target has one; two returns exclude each other and may both write one."""
    targets = [t for t, _ in (*rule.full_then, *rule.truth, *rule.fires)]
    targets += [t for e in rule.each for t, _ in (*e.then, *e.truth, *e.fires)]
    ways = [[*targets, *(t for t, _ in r.truth), *(t for e in r.each for t, _ in e.truth)] for r in rule.returns] or [
        targets
    ]
    twice = {name for way in ways for name, n in Counter(map(str, way)).items() if n > 1}
    for name in sorted(twice):
        yield f"rule {rule.id} writes {name} twice"


# -- expressions, effects, properties, runs -------------------------------------------------------------------------
def _expression(
    where: str, expr: Expr, book: Rulebook, over: Iterable[Expr], primed: bool = False, truth: bool = False
) -> Iterator[str]:
    """Unknown variables, parameters and indices; next values outside step properties; numbers as truth values."""
    if truth:
        yield from _truth(where, expr)
    yield from _walk(where, expr, book, frozenset(i.args for i in over), primed)


def _walk(where: str, e: Expr, book: Rulebook, bound: frozenset[tuple[Sort, str]], primed: bool) -> Iterator[str]:
    match e.op:
        case "param":
            if e.args[0] not in book.params:
                yield f"{where} reads parameter {e.args[0].name}, which the rulebook does not list"
        case "index":
            if e.args not in bound:
                yield f"{where} uses index {e.args[1]} of sort {e.args[0].name}, which is not in its over="
        case "ref":
            var, index, is_next = e.args
            if var not in book.variables:
                yield f"{where} reads variable {var.path}, which the rulebook does not list"
            if is_next and not primed:
                yield f"{where} reads the next value of {var.path}; only step properties may"
            if index is not None:
                sort = index.args[0] if index.op == "index" else index.args[0].target if index.op == "map" else var.sort
                if sort is not var.sort:
                    yield f"{where} indexes {var.path} by an element of {sort.name}"
                yield from _walk(where, index, book, bound, primed)
        case "count" | "every" | "some":
            yield from _listed_sort(where, e.args[0], book)
            if e.args[0].args in bound:
                yield f"{where} binds index {e.args[0]} within itself; give the inner one another name"
            yield from _truth(where, e.args[1])
            yield from _walk(where, e.args[1], book, bound | {e.args[0].args}, primed)
        case "and" | "or" | "not":
            for child in e.children():
                yield from _truth(where, child)
                yield from _walk(where, child, book, bound, primed)
        case _:
            for child in e.children():
                yield from _walk(where, child, book, bound, primed)


def _listed_sort(where: str, index: Expr, book: Rulebook) -> Iterator[str]:
    if index.op != "index":
        yield f"{where} is over {index}, which is no index; allowed are job.index or job.named('other')"
    elif index.args[0] not in book.sorts:
        yield f"{where} is about sort {index.args[0].name}, which the rulebook does not list"


def _truth(where: str, e: Expr) -> Iterator[str]:
    """Only truth values may be combined by & | ~: the engines would differ on what a number means there."""
    if not _is_truth(e):
        yield f"{where} uses {e}, a number, as a truth value; compare it with something"


def _is_truth(e: Expr) -> bool:
    match e.op:
        case "const":
            return e.value in (0, 1)
        case "ref":
            domain = e.args[0].domain
            return domain.enum is None and domain.hi.is_const and domain.hi.value <= 1
        case "param":
            return bool(e.args[0].hi <= 1)
        case "ite":
            return _is_truth(e.args[1]) and _is_truth(e.args[2])
        case op:
            return op not in ("add", "sub", "count")


def _effect(book: Rulebook, effect: Effect) -> Iterator[str]:
    if not any(r.begins is effect for r in book.rules):
        yield f"effect {effect.name} is begun by no rule"
    taken = {c for r in book.rules if r.outcome and r.outcome[0] is effect for c in r.outcome[1]}
    for name in effect.classes:
        if name not in taken:
            yield f"effect {effect.name} may return {name!r}, which no rule takes"
    over = () if effect.over is None else (effect.over.index,)
    for ret in effect.returns:
        yield from _expression(f"return {effect.name} -> {ret.name}", ret.when, book, over, truth=True)


def _property(book: Rulebook, prop: Property) -> Iterator[str]:
    from machines.rulebook import Invariant, LeadsTo, Sometimes, Step

    where = f"property {prop.id}"
    if not prop.says:
        yield f"{where} has no sentence a reviewer can read"
    if prop.applies.variables():
        yield f"the applies= of {where} reads variables; it may read parameters only"
    match prop:
        case Invariant():
            exprs = [prop.holds]
        case Step():
            exprs = [prop.holds]
            for pattern in prop.on:
                if not any(fnmatchcase(r.id, pattern) for r in book.rules):
                    yield f"{where} is about rules {pattern!r}, but no rule matches"
        case Sometimes():
            exprs = [prop.reached]
        case LeadsTo():
            exprs = [prop.when, prop.then]
        case _:
            exprs = []
    yield from _expression(f"the applies= of {where}", prop.applies, book, (), truth=True)
    for index in prop.over:
        yield from _listed_sort(where, index, book)
    for e in exprs:
        yield from _expression(where, e, book, prop.over, primed=isinstance(prop, Step), truth=True)


def _unfired_rows(book: Rulebook) -> Iterator[str]:
    fired: dict[object, set[str]] = {}
    for rule in book.rules:
        for target, event in [*rule.fires, *(f for e in rule.each for f in e.fires)]:
            if target.op == "ref" and target.args[0].machine is not None:
                fired.setdefault(target.args[0].machine, set()).add(event)
    for table in book.tables:
        for event in table.events:
            if event not in fired.get(table, set()):
                rows = [e.id for e in table.entries.values() if e.event == event and e.id not in book.unfired]
                if rows:
                    yield f"no rule fires event {event!r} of table {table.name} (rows {', '.join(rows)})"
    known = {e.id for t in book.tables for e in t.entries.values()}
    for row in book.unfired:
        if row not in known:
            yield f"unfired= names row {row}, which does not exist"


def _runs(book: Rulebook) -> Iterator[str]:
    known = {p.name: p for p in book.params}
    names = {p.id for p in book.properties} | set(BUILT_IN_PROPERTIES)
    for run in (*book.runs, *book.mutation_runs):
        if run.expect not in ("PROVED", "REFUTED"):
            yield f"run {run.name} expects {run.expect!r}; allowed are PROVED and REFUTED"
        if run.expect == "REFUTED" and run.by not in names:
            yield f"run {run.name} is to be refuted by {run.by!r}, which is not a property"
        for name, value in run.values.items():
            if name not in known:
                yield f"run {run.name} sets unknown parameter {name!r}"
            elif not known[name].lo <= value <= known[name].hi:
                yield f"run {run.name} sets {name}={value}; allowed are {known[name].lo}..{known[name].hi}"
