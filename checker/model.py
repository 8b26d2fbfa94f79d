"""A rulebook in one scope, ground: flat state tuples and rule instances. What every engine and export reads.

Theory. `Model` numbers the state's slots (shared variables first, then each sort's, variable by variable) and turns
every rule into instances: one per binding of its `over` indices and, for an outcome, one per `Return` that it takes. An
instance is a ground guard, a list of table steps, and a list of simultaneous updates (target slot, expression over the
state before). Firing it:

1. the guard is false: not enabled; an event that its machine rejects here: not enabled either;
2. an event that is impossible here is a finding ("illegal"), a value outside its range is a finding ("range"); in both
   cases the step is counted, reported, and its target is not explored;
3. otherwise the target is a successor; step properties are judged on the pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from fnmatch import fnmatchcase

from attrs import evolve, field, frozen

from machines.expr import TRUE, Expr, ExprError, Var, all_of, const
from machines.ground import Grounding, ground
from machines.rulebook import Effect, Invariant, LeadsTo, Property, Return, Rule, Rulebook, Scope, Sometimes, Step
from machines.table import RulebookError, Table

HI_MAX = 65_535
"""The largest value of a variable that every engine can hold."""

StateTuple = tuple[int, ...]


@frozen(eq=False)
class Slot:
    """One position of the state tuple: variable `var` of element `element`, with values 0..hi."""

    number: int
    var: Var
    element: int | None
    hi: int
    initial: int

    @property
    def name(self) -> str:
        """As reports print it: `job1.state`."""
        return self.var.name if self.element is None else f"{self.var.sort.name}{self.element}.{self.var.name}"  # type: ignore[union-attr]


@frozen(eq=False)
class TableStep:
    """An instance fires `event` in the machine at `slot`. targets[s] is the new state, -1 impossible, -2 rejected.
    cells[s] numbers the table's cell for coverage, -1 where impossible."""

    slot: int
    table: Table
    event: str
    targets: tuple[int, ...]
    cells: tuple[int, ...]


@frozen(eq=False)
class Instance:
    """One rule for one binding (and one return): the unit that engines fire and count."""

    number: int
    rule: Rule
    binding: tuple[int, ...]
    ret: Return | None
    guard: Expr
    steps: tuple[TableStep, ...]
    updates: tuple[tuple[int, Expr], ...]

    @property
    def name(self) -> str:
        """`infer.ok[1]`, and `reset.ok~lie` for a return with a variant."""
        variant = f"~{self.ret.variant}" if self.ret and self.ret.variant else ""
        return self.rule.id + variant + (f"[{','.join(map(str, self.binding))}]" if self.binding else "")

    @property
    def fair_group(self) -> str:
        """Key of the fair actor instance (actor and element, with its sort); empty when nothing may be assumed."""
        key = self.rule.fair_key
        elements = [f"{i.args[0].name}{n}" for i, n in zip(self.rule.over, self.binding, strict=True)]
        return f"{key}[{','.join(elements)}]" if key and elements else key


@frozen(eq=False)
class GroundProperty:
    """One instance of a property. For leads-to, `holds` is the goal and `when` the trigger."""

    prop: Property
    binding: tuple[int, ...]
    holds: Expr
    when: Expr = TRUE

    @property
    def name(self) -> str:
        return self.prop.id + (f"[{','.join(map(str, self.binding))}]" if self.binding else "")


@frozen(eq=False)
class Pending:
    """Receptiveness of one return of one call: while `when` holds, exactly one of `takers` must hold."""

    name: str
    when: Expr
    takers: tuple[Expr, ...]


@frozen(eq=False)
class Model:
    """See the module. Raises RulebookError if grounding finds a problem (index out of range, double write)."""

    scope: Scope
    env: Grounding
    slots: tuple[Slot, ...]
    cells: tuple[str, ...] = field()  # ids of table cells, in coverage order
    instances: tuple[Instance, ...] = field()
    invariants: tuple[GroundProperty, ...] = field()
    steps: tuple[GroundProperty, ...] = field()
    sometimes: tuple[GroundProperty, ...] = field()
    leads_to: tuple[GroundProperty, ...] = field()
    not_applicable: tuple[str, ...] = field()
    pending: tuple[Pending, ...] = field()
    legal_end: Expr = field()

    @property
    def rulebook(self) -> Rulebook:
        return self.scope.rulebook

    @property
    def initial(self) -> StateTuple:
        return tuple(s.initial for s in self.slots)

    def show(self, state: StateTuple, before: StateTuple | None = None) -> str:
        """A state as text; with `before`, only what changed."""
        if before is None:
            return " ".join(f"{s.name}={s.var.show(v)}" for s, v in zip(self.slots, state, strict=True))
        changed = [
            f"{s.name}: {s.var.show(a)} -> {s.var.show(b)}"
            for s, a, b in zip(self.slots, before, state, strict=True)
            if a != b
        ]
        return ", ".join(changed) or "nothing changes"


def build(scope: Scope) -> Model:
    """Ground a rulebook in a scope."""
    try:
        return _Builder(scope).model()
    except ExprError as e:
        raise RulebookError(f"rulebook {scope.rulebook.name} in scope ({scope})", [str(e)]) from e


def with_rule(model: Model, rule: Rule) -> Model:
    """The model with one rule replaced by another of the same id; everything else is shared with the original.

    Raises RulebookError when the new rule is not well formed, or has other instances than the old one in this scope."""
    book = model.rulebook.replace(rule)
    builder = _Builder(Scope(book, model.scope.values, model.scope.without))
    old = [i for i in model.instances if i.rule.id == rule.id]
    if not old:
        raise RulebookError(f"rulebook {book.name}", [f"rule {rule.id} has no instance in this scope"])
    new = builder._instances(rule, old[0].number)
    if [i.name for i in new] != [i.name for i in old]:
        raise RulebookError(f"rulebook {book.name}", [f"rule {rule.id} would have other instances in this scope"])
    first, end = old[0].number, old[-1].number + 1
    instances = (*model.instances[:first], *new, *model.instances[end:])
    pending = model.pending
    if rule.outcome:
        fresh = iter(builder._pending(rule.outcome[0], list(instances)))
        ours = f"{rule.outcome[0].name}["
        pending = tuple(
            next(fresh) if p.name.startswith((ours, f"{rule.outcome[0].name} ")) else p for p in model.pending
        )
    return evolve(model, scope=builder.scope, instances=instances, pending=pending)


class _Builder:
    def __init__(self, scope: Scope) -> None:
        self.scope, self.book = scope, scope.rulebook
        bare = Grounding(scope.values, {}, {})
        self.sizes = {s.name: ground(s.size, bare).value for s in self.book.sorts}
        self.slots: list[Slot] = []
        places: dict[Var, int] = {}
        for var in sorted(self.book.variables, key=self._place):
            places[var] = len(self.slots)
            hi, initial = ground(var.domain.hi, bare).value, ground(var.initial, bare).value
            if not 0 <= hi <= HI_MAX:
                raise ExprError(f"variable {var.path} has range 0..{hi}; allowed are 0..0 to 0..{HI_MAX}")
            if not 0 <= initial <= hi:
                raise ExprError(f"variable {var.path} starts at {initial}, outside its range 0..{hi}")
            for element in [None] if var.sort is None else range(self.sizes[var.sort.name]):
                self.slots.append(Slot(len(self.slots), var, element, hi, initial))
        self.env = Grounding(scope.values, self.sizes, places)
        self.cell_ids = [e.id for t in self.book.tables for e in t.entries.values()]
        self.cell_number = {name: n for n, name in enumerate(self.cell_ids)}

    def _place(self, var: Var) -> int:
        return -1 if var.sort is None else self.book.sorts.index(var.sort)

    def model(self) -> Model:
        instances: list[Instance] = []
        for rule in self.book.rules:
            if not any(fnmatchcase(rule.id, pattern) for pattern in self.scope.without):
                instances.extend(self._instances(rule, len(instances)))
        props = [p for p in self.book.properties if self._applies(p)]
        return Model(
            scope=self.scope,
            env=self.env,
            slots=tuple(self.slots),
            cells=tuple(self.cell_ids),
            instances=tuple(instances),
            invariants=self._properties(props, Invariant),
            steps=self._properties(props, Step),
            sometimes=self._properties(props, Sometimes),
            leads_to=self._properties(props, LeadsTo),
            not_applicable=tuple(p.id for p in self.book.properties if not self._applies(p)),
            pending=tuple(p for e in self.book.effects for p in self._pending(e, instances)),
            legal_end=ground(self.book.legal_end, self.env),
        )

    def _applies(self, prop: Property) -> bool:
        return bool(ground(prop.applies, self.env).value)

    def _bindings(self, over: tuple[Expr, ...]) -> list[dict[Expr, int]]:
        ranges = [range(self.sizes[i.args[0].name]) for i in over]
        return [dict(zip(over, values, strict=True)) for values in itertools.product(*ranges)]

    def _instances(self, rule: Rule, start: int) -> list[Instance]:
        """Instances whose guard is not constantly false."""
        out: list[Instance] = []
        for binding in self._bindings(rule.over):
            for ret in rule.returns or (None,):
                guard = ground(all_of(rule.full_guard, rule.world, ret.when if ret else True), self.env, binding)
                if guard.is_const and not guard.value:
                    continue
                steps, updates = self._effects(rule, ret, binding)
                number = start + len(out)
                out.append(Instance(number, rule, tuple(binding.values()), ret, guard, steps, updates))
        return out

    def _effects(
        self, rule: Rule, ret: Return | None, binding: Mapping[Expr, int]
    ) -> tuple[tuple[TableStep, ...], tuple[tuple[int, Expr], ...]]:
        steps: list[TableStep] = []
        updates: dict[int, Expr] = {}

        def write(target: Expr, value: Expr, at: Mapping[Expr, int]) -> None:
            slot = ground(target, self.env, at).args[0]
            if slot in updates or any(s.slot == slot for s in steps):
                raise ExprError(f"rule {rule.id} writes {self.slots[slot].name} twice")
            updates[slot] = ground(value, self.env, at)

        def fire(target: Expr, event: str, at: Mapping[Expr, int]) -> None:
            slot = ground(target, self.env, at).args[0]
            if slot in updates or any(s.slot == slot for s in steps):
                raise ExprError(f"rule {rule.id} writes {self.slots[slot].name} twice")
            steps.append(self._table_step(slot, event))

        for target, event in rule.fires:
            fire(target, event, binding)
        for target, value in (*rule.full_then, *rule.truth, *(ret.truth if ret else ())):
            write(target, value, binding)
        for part in (*rule.each, *(ret.each if ret else ())):
            for more in self._bindings((part.index,)):
                at = {**binding, **more}
                for target, event in part.fires:
                    fire(target, event, at)
                for target, value in (*part.then, *part.truth):
                    write(target, value, at)
        kept = {k: v for k, v in updates.items() if not (v.op == "slot" and v.args == (k, False))}
        return tuple(steps), tuple(sorted(kept.items(), key=lambda kv: kv[0]))

    def _table_step(self, slot: int, event: str) -> TableStep:
        table: Table = self.slots[slot].var.machine
        targets: list[int] = []
        cells: list[int] = []
        for state in table.states:
            entry = table.entry(state, event)
            targets.append(-1 if entry is None else -2 if entry.kind == "reject" else entry.target.code)
            cells.append(-1 if entry is None else self.cell_number[entry.id])
        return TableStep(slot, table, event, tuple(targets), tuple(cells))

    def _properties(self, props: list[Property], kind: type[Property]) -> tuple[GroundProperty, ...]:
        out: list[GroundProperty] = []
        for p in props:
            if not isinstance(p, kind):
                continue
            for binding in self._bindings(p.over):
                match p:
                    case Invariant() | Step():
                        holds, when = p.holds, const(True)
                    case Sometimes():
                        holds, when = p.reached, const(True)
                    case LeadsTo():
                        holds, when = p.then, p.when
                    case _:
                        raise AssertionError(p)
                at = tuple(binding.values())
                out.append(GroundProperty(p, at, ground(holds, self.env, binding), ground(when, self.env, binding)))
        return tuple(out)

    def _pending(self, effect: Effect, instances: list[Instance]) -> list[Pending]:
        """What receptiveness demands of one call: each return it may bring is taken by exactly one rule."""
        over: tuple[Expr, ...] = () if effect.over is None else (effect.over.index,)
        present = {i.rule.id for i in instances}
        out = []
        for binding in self._bindings(over):
            for ret in effect.returns:
                when = ground(all_of(effect.pending, ret.when), self.env, binding)
                if when.is_const and not when.value:
                    continue
                takers = tuple(
                    ground(r.full_guard, self.env, binding)
                    for r in self.book.rules
                    if r.outcome and r.outcome[0] is effect and ret.observed in r.outcome[1] and r.id in present
                )
                at = f"[{','.join(map(str, binding.values()))}]" if binding else ""
                out.append(Pending(f"{effect.name}{at} -> {ret.name}", when, takers))
        return out
