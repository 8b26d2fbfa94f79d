"""Rules as Python functions: the same guards, rows and updates that the checker explores, for any number of jobs.

Theory. The checker grounds a rule for each job of a scope; here it is compiled once, over records: `s` holds the shared
variables, `e` is the element (job, sequence) that the rule is about. Of the world nothing is left: its variables are
not there, and what a call brought back is chosen by the caller, who observed it. A function first evaluates the guard,
then the target of every row and every new value, and only then assigns: a rule is one step, or none.

Parameters are put in as constants, so a policy's dead branches disappear. The source is registered in `linecache`:
tracebacks and debuggers show it.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from attrs import frozen

from machines.expr import TRUE, Expr, State, Var, const
from machines.ground import fold, fold_and
from machines.printing import to_python
from machines.rulebook import Each, Rule, Rulebook
from machines.table import Table
from runtime.places import possible_at

__all__ = ["CompiledRule", "IllegalTransition", "Program", "Rejected"]

Key = tuple[str, str]
"""What is read or written: (whose, variable). Whose: "shared", "own" (the rule's element), or "any" (of some sort)."""

IMPOSSIBLE, REJECTED = -1, -2


class IllegalTransition(RuntimeError):
    """A rule would fire an event where it is impossible. Nothing was changed; it is a bug, and proved away."""


class Rejected(RuntimeError):
    """A rule would fire an event that its machine rejects there. Nothing was changed. `status` is the table's."""

    def __init__(self, text: str, status: str) -> None:
        self.status = status
        super().__init__(text)


@frozen(eq=False)
class CompiledRule:
    """One rule. sort: name of the sort that it is about, or "". guard(s, e) -> bool; fire(s, e) -> whether it fired.
    may(s) -> bool: what the guard asks of the shared variables alone; where it is False nobody need be asked.

    reads, writes: what the guard reads and the rule writes. places: values of the sort's place (`Program.places`) with
    which the guard may hold; None: the sort has no place. phases: the same of `Program.phase`. changes_phase: it may.
    """

    rule: Rule
    id: str
    sort: str
    guard: Callable[[Any, Any], bool]
    fire: Callable[[Any, Any], bool]
    may: Callable[[Any], bool]
    reads: frozenset[Key]
    writes: frozenset[Key]
    places: frozenset[int] | None = None
    phases: frozenset[int] | None = None
    changes_phase: bool = False

    def __repr__(self) -> str:
        return f"<rule {self.id}>"


class Program:
    """A rulebook's own side, compiled under `values` (parameters by name; they need not lie in the checker's ranges).

    places: per sort the variable by which the engine finds elements (`runtime.places`), or "". phase: the shared one
    that says most about all, or "".
    records: per sort the class of its elements; `shared()` and `element(sort)` make them in their initial state.
    Rules whose guard reads the world (the device, faults) are left out; `rules` has the others by id.
    """

    def __init__(self, book: Rulebook, values: Mapping[str, int]) -> None:
        self.book = book
        self.values = {p.name: values.get(p.name, p.default) for p in book.params}
        own = [v for v in book.variables if not v.world]
        self._shared_vars = [v for v in own if v.sort is None]
        self._sort_vars = {s.name: [v for v in own if v.sort is s] for s in book.sorts}
        links = {s.name: [m.name for m in book.maps if m.source is s] for s in book.sorts}
        self.phase = next((v.name for v in self._shared_vars if v.machine), "")
        self.places = {sort: _place(book, variables) for sort, variables in self._sort_vars.items()}
        self._shared_class = _record("Shared", [v.name for v in self._shared_vars] + [_all(s.name) for s in book.sorts])
        self.records = {
            name: _record(
                f"{name.capitalize()}Record", [v.name for v in variables] + links[name] + ["tag", "key", "place"]
            )
            for name, variables in self._sort_vars.items()
        }
        self._initial = {sort: self._initial_of(variables) for sort, variables in self._sort_vars.items()}
        self.rules = {r.id: self.compiled(r) for r in book.rules if not _of_the_world(r)}

    @staticmethod
    def of(book: Rulebook, values: Mapping[str, int]) -> Program:
        """The same for the same rulebook and parameters: nothing in it changes, and compiling takes its time."""
        return _program(book, tuple(sorted(values.items())))

    def shared(self) -> Any:
        s = self._shared_class()
        for name, value in self._initial_of(self._shared_vars):
            setattr(s, name, value)
        for name in self.records:
            setattr(s, _all(name), {})
        return s

    def element(self, sort: str) -> Any:
        """A new element with its variables at their initial values; its links are still to be set."""
        e = self.records[sort]()
        for name, value in self._initial[sort]:
            setattr(e, name, value)
        return e

    def values_of(self, s: Any) -> dict[str, Any]:
        """Every variable of the shared record and of its elements, as plain data: the elements by sort, each with what
        the journal calls it."""
        found: dict[str, Any] = {v.name: getattr(s, v.name) for v in self._shared_vars}
        for sort, variables in self._sort_vars.items():
            elements = getattr(s, _all(sort))
            found[sort] = [{"element": e.key, **{v.name: getattr(e, v.name) for v in variables}} for e in elements]
        return found

    def with_values(self, values: Mapping[str, Any]) -> Any:
        """A shared record with these values, which `values_of` made of another one. Links are still to be set."""
        s = self.shared()
        for v in self._shared_vars:
            setattr(s, v.name, values[v.name])
        for sort, variables in self._sort_vars.items():
            for given in values[sort]:
                e = self.element(sort)
                e.key = given["element"]
                for v in variables:
                    setattr(e, v.name, given[v.name])
                getattr(s, _all(sort))[e] = None
        return s

    def _initial_of(self, variables: Iterable[Var]) -> list[tuple[str, int]]:
        return [(v.name, localised(v.initial, self.values, {}).value) for v in variables]

    def compiled(self, rule: Rule) -> CompiledRule:
        """Also for a rule that is not the rulebook's: something to wait for."""
        guard = localised(rule.full_guard, self.values, _binding(rule))
        source, tables = _source(rule, guard, self.values)
        namespace: dict[str, Any] = {**tables, "illegal": _illegal(rule)}
        name = f"<rule {rule.id}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), namespace)
        sort = rule.over[0].args[0].name if rule.over else ""
        reads, writes = frozenset(_reads(guard)), frozenset(_writes(rule))
        return CompiledRule(
            rule, rule.id, sort, namespace["guard"], namespace["fire"], namespace["may"], reads, writes,
            places=self._possible(guard, "e", self.places.get(sort, ""), self._sort_vars.get(sort, [])),
            phases=self._possible(guard, "s", self.phase, self._shared_vars),
            changes_phase=("shared", self.phase) in writes,
        )  # fmt: skip

    @staticmethod
    def _possible(guard: Expr, owner: str, name: str, variables: Iterable[Var]) -> frozenset[int] | None:
        found = [v for v in variables if v.name == name]
        return possible_at(guard, f"{owner}.{name}", range(len(found[0].machine.states))) if found else None


@lru_cache(maxsize=16)
def _program(book: Rulebook, values: tuple[tuple[str, int], ...]) -> Program:
    return Program(book, dict(values))


def _all(sort: str) -> str:
    """The shared attribute that holds every element of a sort: a dict of elements, in the order of their coming."""
    return f"{sort}_elements"


def _place(book: Rulebook, variables: Iterable[Var]) -> str:
    """The first variable with a table, if no rule changes that of another element."""
    others = {name for rule in book.rules for whose, name in _writes(rule) if whose == "any"}
    return next((v.name for v in variables if v.machine and v.name not in others), "")


def _record(name: str, slots: Iterable[str]) -> type[Any]:
    return type(name, (), {"__slots__": tuple(slots), "__module__": __name__})


def _of_the_world(rule: Rule) -> bool:
    """A step of the environment that reads the device's truth and changes nothing of ours."""
    return rule.actor.environment and not (rule.fires or rule.then or rule.begins or rule.outcome)


# -- expressions over records ------------------------------------------------------------------------------------------
Binding = Mapping[tuple[Any, ...], str]
"""From an index (its arguments) to the Python name of the element."""


def _binding(rule: Rule) -> dict[tuple[Any, ...], str]:
    return {index.args: "e" for index in rule.over}


def localised(x: Expr, values: Mapping[str, int], names: Binding) -> Expr:
    """The tree with parameters folded in and every variable replaced by the Python name it has here."""
    match x.op:
        case "const" | "slot":
            return x
        case "param":
            return const(values[x.args[0].name])
        case "ref":
            var, index, _ = x.args
            owner = "s" if index is None else _element(index, names)
            return Expr("slot", (f"{owner}.{var.name}", False))
        case "index":  # compared with another index
            return Expr("slot", (names[x.args], False))
        case "count" | "every" | "some":
            raise ValueError(f"({x}) quantifies over all elements; a rule reads its own and shared variables only")
        case _:
            return fold(x.op, [localised(a, values, names) for a in x.args])


def _element(index: Expr, names: Binding) -> str:
    if index.op == "map":
        link, source = index.args
        return f"{_element(source, names)}.{link.name}"
    return names[index.args]


def _text(x: Expr) -> str:
    return to_python(x, lambda name, _: str(name))


def _reads(guard: Expr) -> Iterator[Key]:
    for node in guard.walk():
        if node.op == "slot":
            owner, _, name = str(node.args[0]).rpartition(".")
            yield ({"s": "shared", "e": "own"}.get(owner, "any"), name)


def _writes(rule: Rule) -> Iterator[Key]:
    for target, _ in (*rule.fires, *rule.full_then):
        var, index, _ = target.args
        if var.world:
            continue
        yield ("shared" if index is None else "own" if index.op == "index" else "any", var.name)
    for part in rule.each:
        for target, _ in (*part.fires, *part.then):
            yield ("any", target.args[0].name)


# -- source ------------------------------------------------------------------------------------------------------------
def _source(rule: Rule, guard: Expr, values: Mapping[str, int]) -> tuple[str, dict[str, Any]]:
    """The functions `guard`, `may` and `fire`, and the tables that they look rows up in."""
    tables: dict[str, Any] = {}
    names = _binding(rule)
    shared = fold_and([part for part in guard.conjuncts() if all(whose == "shared" for whose, _ in _reads(part))])
    lines = [
        "def guard(s, e):",
        f"    return bool({_text(guard)})",
        "",
        "def may(s):",
        f"    return bool({_text(shared)})",
    ]
    lines += ["", "def fire(s, e):"]
    if guard is not TRUE:
        lines += [f"    if not {_text(guard)}:", "        return False"]
    evaluated, assigned = [], []
    for k, (target, event) in enumerate(rule.fires):
        evaluated += _row(f"t{k}", target, event, names, tables)
        assigned.append(f"    {_target(target, names)} = t{k}")
    for k, (target, value) in enumerate((t, v) for t, v in rule.full_then if not t.args[0].world):
        new = localised(value, values, names)
        if new.is_const:
            assigned.append(f"    {_target(target, names)} = {new.value}")
        else:
            evaluated.append(f"    v{k} = {_text(new)}")
            assigned.append(f"    {_target(target, names)} = v{k}")
    for k, part in enumerate(rule.each):
        more, set_ = _each(k, part, values, names, tables)
        evaluated += more
        assigned += set_
    return "\n".join([*lines, *evaluated, *assigned, "    return True"]) + "\n", tables


def _target(target: Expr, names: Binding) -> str:
    var, index, _ = target.args
    return f"{'s' if index is None else _element(index, names)}.{var.name}"


def _row(to: str, target: Expr, event: str, names: Binding, tables: dict[str, Any], indent: str = "    ") -> list[str]:
    """Look the row up; where there is none, nothing has been changed yet."""
    table: Table = target.args[0].machine
    name = f"{table.name}_{event}"
    tables[name] = _targets(table, event)
    at = _target(target, names)
    return [
        f"{indent}{to} = {name}[{at}]",
        f"{indent}if {to} < 0:",
        f"{indent}    illegal({table.name!r}, {event!r}, {at}, {to})",
    ]


def _targets(table: Table, event: str) -> tuple[int, ...]:
    """Per state its code after the event; negative where there is none."""

    def target(state: State) -> int:
        entry = table.entry(state, event)
        if entry is None:
            return IMPOSSIBLE
        return REJECTED if entry.kind == "reject" else entry.target.code

    return tuple(target(state) for state in table.states)


def _each(
    k: int, part: Each, values: Mapping[str, int], names: Mapping[tuple[Any, ...], str], tables: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """A part that happens for every element: new values are collected first, so that all see the state before."""
    sort = part.index.args[0].name
    inner = {**names, part.index.args: "o"}
    evaluate = [f"    each{k} = []", f"    for o in s.{_all(sort)}:"]
    targets, collected = [], []
    for i, (target, event) in enumerate(part.fires):
        evaluate += _row(f"t{k}_{i}", target, event, inner, tables, indent=" " * 8)
        targets.append(_target(target, inner))
        collected.append(f"t{k}_{i}")
    for target, value in part.then:
        if not target.args[0].world:
            targets.append(_target(target, inner))
            collected.append(_text(localised(value, values, inner)))
    if not targets:
        return [], []
    new = [f"n{i}" for i in range(len(targets))]
    evaluate.append(f"        each{k}.append((o, {', '.join(collected)}))")
    assign = [f"    for o, {', '.join(new)} in each{k}:"]
    assign += [f"        {t} = {n}" for t, n in zip(targets, new, strict=True)]
    return evaluate, assign


def _illegal(rule: Rule) -> Callable[[str, str, int, int], None]:
    tables = {ref.args[0].machine.name: ref.args[0].machine for ref, _ in _fired(rule)}

    def illegal(machine: str, event: str, code: int, found: int) -> None:
        table = tables[machine]
        state = list(table.states)[code]
        allowed = ", ".join(e for e in table.events if table.entry(state, e)) or "nothing"
        text = f"rule {rule.id}: {machine} is {state.name}, where {event} is not possible; possible are {allowed}"
        if found == REJECTED:
            raise Rejected(text, table.entries[state, event].status)
        raise IllegalTransition(text)

    return illegal


def _fired(rule: Rule) -> Iterator[tuple[Expr, str]]:
    yield from rule.fires
    for part in rule.each:
        yield from part.fires
