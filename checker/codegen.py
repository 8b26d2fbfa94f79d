"""A model as C source: how its states are packed, and its rules and properties as functions over packed states.

Theory. Each slot gets as many bits as its highest value needs, in one 64-bit word of the state's Key; the top bit of
word 0 is always set (an all-zero Key means "empty" to search.c). A rule instance becomes one block: its guard, its
table steps, its updates with their range checks, the successor (the Key with the written fields replaced), the step
properties, `emit`. The blocks stand in the order of the instances, because the order of discovery is part of what both
engines agree on.

A *unit* is a piece of code that may differ between variants of one model: the block of an instance, the check of one
pending return. It is a `Block`: a test, and what to do where the test holds. The tests of all units stand one after
another; each body is a function of its own (compilers take long over long functions). A unit's *alternatives* are more
such functions; `chosen[unit]` says at run time which one speaks. So hundreds of mutants of one model cost one
compilation. Inside a body, what the guard implies is used to say less (`simplify`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import TypeVar

from attrs import evolve, frozen

from checker.model import Instance, Model, Pending, Slot, TableStep
from checker.result import DEADLOCK, ILLEGAL, RANGE, RECEPTIVE
from checker.simplify import Known, always, simplify
from machines.expr import Expr
from machines.printing import to_c

__all__ = ["CodegenError", "Field", "Layout", "NativeError", "Variant", "property_ids", "source"]

WORD_BITS = 64
HIGHEST_VALUE = 65535
NO_INSTANCE = 65535

T = TypeVar("T")
Variant = Mapping[int, Instance] | Model
"""What differs: instances by number; or a whole model with the same slots and instances."""


class NativeError(RuntimeError):
    """The C engine could not do its work: one line."""


class CodegenError(NativeError):
    """The model cannot be written in C: one line saying what, where, and what is allowed."""


# -- packing ------------------------------------------------------------------------------------------------------
@frozen
class Field:
    """Where a slot lies in the Key."""

    word: int
    shift: int
    bits: int

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1


@frozen
class Layout:
    """The packing of one model's states into `words` 64-bit words."""

    fields: tuple[Field, ...]
    words: int

    @classmethod
    def of(cls, slots: Sequence[Slot]) -> Layout:
        """First fit, in the order of the slots; a slot never straddles two words."""
        used = [0]
        fields = []
        for slot in slots:
            _check_range(slot)
            bits = slot.hi.bit_length()
            word = next((w for w, n in enumerate(used) if n + bits <= _room(w)), len(used))
            if word == len(used):
                used.append(0)
            fields.append(Field(word, used[word] if bits else 0, bits))
            used[word] += bits
        return cls(tuple(fields), len(used))

    def pack(self, state: Sequence[int]) -> list[int]:
        words = [0] * self.words
        words[0] = 1 << (WORD_BITS - 1)
        for field, value in zip(self.fields, state, strict=True):
            words[field.word] |= value << field.shift
        return words

    def read(self, slot: int) -> str:
        """The slot of Key `s` as a C expression."""
        f = self.fields[slot]
        return f"((int)(s.word[{f.word}] >> {f.shift}) & {f.mask})" if f.bits else "0"


def _room(word: int) -> int:
    return WORD_BITS - 1 if word == 0 else WORD_BITS


def _check_range(slot: Slot) -> None:
    if not 0 <= slot.hi <= HIGHEST_VALUE:
        raise CodegenError(f"variable {slot.name} has range 0..{slot.hi}; allowed are 0..{HIGHEST_VALUE} at most")
    if not 0 <= slot.initial <= slot.hi:
        raise CodegenError(f"variable {slot.name} starts at {slot.initial}, outside 0..{slot.hi}")


def property_ids(model: Model) -> tuple[str, ...]:
    """The numbering of properties that the C program uses."""
    own = [g.prop.id for g in (*model.invariants, *model.steps)]
    return tuple(dict.fromkeys([DEADLOCK, RANGE, ILLEGAL, RECEPTIVE, *own]))


def sometimes_ids(model: Model) -> tuple[str, ...]:
    return tuple(g.prop.id for g in model.sometimes)


@frozen
class Block:
    """One unit of code, or an alternative of one: C text over Key `s`. tests: all must hold; there is at least one."""

    tests: tuple[str, ...]
    body: str


# -- the program --------------------------------------------------------------------------------------------------
def source(model: Model, variants: Sequence[Variant] = ()) -> str:
    """The whole program: the model's constants, search.c, the model's rules and properties."""
    if len(model.instances) >= NO_INSTANCE:
        raise CodegenError(f"{model.rulebook.name} has {len(model.instances)} instances; at most {NO_INSTANCE - 1}")
    fixed = resources.files("checker").joinpath("search.c").read_text(encoding="utf-8")
    return _Printer(model, variants).program(fixed)


def as_model(model: Model, variant: Variant, number: int) -> Model:
    """A variant as a model; raises CodegenError when it is not one of this model."""
    if isinstance(variant, Model):
        if [s.hi for s in variant.slots] != [s.hi for s in model.slots] or variant.initial != model.initial:
            raise CodegenError(f"variant {number} has other variables than the model")
        if [i.name for i in variant.instances] != [i.name for i in model.instances]:
            raise CodegenError(f"variant {number} has other rule instances than the model")
        if [p.name for p in variant.pending] != [p.name for p in model.pending]:
            raise CodegenError(f"variant {number} has other pending returns than the model")
        return variant
    instances = list(model.instances)
    for n, instance in variant.items():
        if not 0 <= n < len(instances) or instance.number != n:
            raise CodegenError(
                f"variant {number} replaces instance {n} by number {instance.number}; "
                f"allowed are equal numbers in 0..{len(instances) - 1}"
            )
        instances[n] = instance
    return evolve(model, instances=tuple(instances))


class _Printer:
    def __init__(self, model: Model, variants: Sequence[Variant]) -> None:
        self.model = model
        self.variants = [as_model(model, v, n) for n, v in enumerate(variants)]
        self.layout = Layout.of(model.slots)
        self.props = {name: n for n, name in enumerate(property_ids(model))}
        self.constants: dict[str, str] = {}  # text of a table -> its name
        self.bodies: dict[str, str] = {}  # what an instance does when its guard holds -> the function's name

    def program(self, fixed: str) -> str:
        units = self._units()
        rules = [*self._functions(units), *self._judge(units), *self._fire(units), *self._legal_end()]
        tables = [f"static const int {name}[] = {text};" for text, name in self.constants.items()]
        # A function per body: compilers take more than linear time for one function with everything in it.
        bodies = [
            f"static void __attribute__((noinline)) {name}(const Key s) {text}" for text, name in self.bodies.items()
        ]
        return "\n".join([*self._header(len(units)), fixed, *tables, *bodies, *rules, *self._choose(units)]) + "\n"

    def _header(self, units: int) -> list[str]:
        fields = self.layout.fields

        def array(name: str, values: Iterable[int]) -> str:
            return f"static const unsigned char {name}[] = {{{', '.join(map(str, values)) or '0'}}};"

        initial = ", ".join(f"{w:#x}u" for w in self.layout.pack(self.model.initial))
        return [
            f"/* Generated from rulebook {_comment(self.model.rulebook.name)}. Do not edit. */",
            "#define _GNU_SOURCE",
            "#define BODY static __attribute__((noinline))",
            *(f"#include <{h}>" for h in ("stdint.h", "stdio.h", "stdlib.h", "string.h", "time.h", "sys/mman.h")),
            *(
                f"#define {name} {value}"
                for name, value in {
                    "WORDS": self.layout.words,
                    "SLOTS": len(self.model.slots),
                    "INSTANCES": len(self.model.instances),
                    "CELLS": len(self.model.cells),
                    "PROPERTIES": len(self.props),
                    "SOMETIMES": len(self.model.sometimes),
                    "UNITS": units,
                    "NO_INSTANCE": NO_INSTANCE,
                    "P_DEADLOCK": self.props[DEADLOCK],
                    "P_RANGE": self.props[RANGE],
                    "P_ILLEGAL": self.props[ILLEGAL],
                    "P_RECEPTIVE": self.props[RECEPTIVE],
                    "INITIAL": f"{{{{{initial}}}}}",
                }.items()
            ),
            array("SLOT_WORD", (f.word for f in fields)),
            array("SLOT_SHIFT", (f.shift for f in fields)),
            array("SLOT_BITS", (f.bits for f in fields)),
        ]

    # -- units and their alternatives ---------------------------------------------------------------------------
    def _units(self) -> list[list[Block]]:
        """For each unit (instances, then pending returns) the distinct blocks; the model's own first."""
        units: list[list[Block]] = []
        for n, inst in enumerate(self.model.instances):
            instances = _by_identity([inst, *(v.instances[n] for v in self.variants)])
            units.append(list(dict.fromkeys(self._instance(v) for v in instances)))
        for n, pending in enumerate(self.model.pending):
            returns = _by_identity([pending, *(v.pending[n] for v in self.variants)])
            units.append(list(dict.fromkeys(self._pending(n, p) for p in returns)))
        return units

    def _functions(self, units: list[list[Block]]) -> list[str]:
        """Each block's body as a function. Alternatives test for themselves."""
        out = []
        for u, blocks in enumerate(units):
            for k, block in enumerate(blocks):
                test = f"    if (!({' && '.join(block.tests)})) return;\n" if k else ""
                out.append(f"BODY void unit_{u}_{k}(const Key s) {{\n{test}{block.body}\n}}")
            if len(blocks) > 1:
                names = ", ".join(f"unit_{u}_{k}" for k in range(len(blocks)))
                out.append(f"static void (*const unit_{u}[])(const Key) = {{{names}}};")
        return out

    def _calls(self, units: list[list[Block]], first: int) -> list[str]:
        """Call each unit (numbered from `first`) where its tests hold. Neighbours often begin with the same test, such
        as which call is being made: it is made once for all of them."""
        out = []
        numbered = enumerate(units, first)
        for test, group in itertools.groupby(numbered, key=lambda u: u[1][0].tests[0] if len(u[1]) == 1 else ""):
            if not test:
                out += [self._choice(unit, blocks) for unit, blocks in group]
                continue
            calls = [_call(unit, blocks[0].tests[1:]) for unit, blocks in group]
            out.append(f"    if ({test}) {{ {' '.join(calls)} }}")
        return out

    def _choice(self, unit: int, blocks: list[Block]) -> str:
        return f"    if (chosen[{unit}]) unit_{unit}[chosen[{unit}]](s); else {_call(unit, blocks[0].tests)}"

    def _choose(self, units: list[list[Block]]) -> list[str]:
        """`choose(variant)`: 0 is the model itself, k + 1 its k-th variant."""
        out = ["static void choose(unsigned variant) {", "    switch (variant) {"]
        for k, variant in enumerate(self.variants, 1):
            blocks = {
                n: self._instance(inst)
                for n, (own, inst) in enumerate(zip(self.model.instances, variant.instances, strict=True))
                if inst is not own
            } | {
                len(self.model.instances) + n: self._pending(n, pending)
                for n, (own, pending) in enumerate(zip(self.model.pending, variant.pending, strict=True))
                if pending is not own
            }
            sets = " ".join(f"chosen[{u}] = {units[u].index(block)};" for u, block in blocks.items())
            out.append(f"    case {k}: {sets} break;")
        return [*out, "    }", "}"]

    # -- states -------------------------------------------------------------------------------------------------
    def _text(self, e: Expr, after: Mapping[int, str] | None = None) -> str:
        """A ground expression over Key s; `after` names the locals that hold next values."""

        def slot(n: int, primed: bool) -> str:
            return after[n] if primed and after and n in after else self.layout.read(n)

        return to_c(e, slot)

    def _tests(self, e: Expr) -> tuple[str, ...]:
        return tuple(self._text(c) for c in e.conjuncts() or (e,))

    def _judge(self, units: list[list[Block]]) -> list[str]:
        out = ["static void judge(const Key s) {"]
        for n, g in enumerate(self.model.invariants):
            prop = self.props[g.prop.id]
            out.append(
                f"    if (!{self._text(g.holds)}) found({prop}, K_INVARIANT, {n}, 0, NO_INSTANCE, NULL, NULL, 0);"
            )
        out += self._calls(units[len(self.model.instances) :], first=len(self.model.instances))
        for n, g in enumerate(self.model.sometimes):
            out.append(f"    if (!seen[{n}] && {self._text(g.holds)}) seen[{n}] = 1;")
        return [*out, "}"]

    def _pending(self, number: int, pending: Pending) -> Block:
        takers = " + ".join(f"({self._text(t)} ? 1 : 0)" for t in pending.takers) or "0"
        return Block(
            self._tests(pending.when),
            f"    const int n = {takers}; "
            f"if (n != 1) found(P_RECEPTIVE, K_RECEPTIVE, {number}, n, NO_INSTANCE, NULL, NULL, 0);",
        )

    def _legal_end(self) -> list[str]:
        return [f"static int legal_end(const Key s) {{ return {self._text(self.model.legal_end)} ? 1 : 0; }}"]

    # -- steps --------------------------------------------------------------------------------------------------
    def _fire(self, units: list[list[Block]]) -> list[str]:
        out = ["static void fire(const Key s) {"]
        return [*out, *self._calls(units[: len(self.model.instances)], first=0), "}"]

    def _table(self, values: tuple[int, ...]) -> str:
        text = "{" + ", ".join(map(str, values)) + "}"
        return self.constants.setdefault(text, f"TABLE_{len(self.constants)}")

    def _instance(self, inst: Instance) -> Block:
        """`x<slot>` is a machine's next state, `t<slot>` a variable's next value."""
        known = Known.of(self.model, inst)
        meets = {s.slot: {s.targets[v] for v in known.now.get(s.slot, range(len(s.targets)))} for s in inst.steps}
        suspects = [(k, s) for k, s in enumerate(inst.steps) if -1 in meets[s.slot]]
        updates = [(slot, simplify(value, known)) for slot, value in inst.updates]
        written = {s.slot: f"x{s.slot}" for s in inst.steps} | {slot: f"t{slot}" for slot, _ in updates}
        out = [f"    const int x{s.slot} = {self._table(s.targets)}[{self.layout.read(s.slot)}];" for s in inst.steps]
        out += self._rejects([s for s in inst.steps if -2 in meets[s.slot]])
        out.append(f"    transitions++; fired[{inst.number}]++; /* {_comment(inst.name)} */")
        out += [self._cell(s, f"x{s.slot} >= 0" if -1 in meets[s.slot] else "") for s in inst.steps]
        out += self._illegal(inst, suspects)
        out += [f"    const int t{slot} = {self._text(value)};" for slot, value in updates]
        for slot, value in updates:
            if not self._stays(slot, value, known):
                out += self._range(inst, slot, written)
        out += self._successor(written)
        out += self._step_properties(inst, known, written)
        return Block(self._tests(inst.guard), "\n".join([*out, f"    emit(t, {inst.number});"]))

    def _rejects(self, steps: list[TableStep]) -> list[str]:
        """The cell that rejects was used, though nothing happens."""
        if not steps:
            return []
        cells = [self._cell(s, f"x{s.slot} == -2") for s in steps]
        return [*cells, f"    if ({' || '.join(f'x{s.slot} == -2' for s in steps)}) return;"]

    def _cell(self, step: TableStep, test: str) -> str:
        """Mark the cell that the step meets in this state as used."""
        condition = f"if ({test}) " if test else ""
        return f"    {condition}cell_used[{self._table(step.cells)}[{self.layout.read(step.slot)}]] = 1;"

    def _stays(self, slot: int, value: Expr, known: Known) -> bool:
        """Whether a new value is in range for certain."""
        return always((value >= 0) & (value <= self.model.slots[slot].hi), self.model, known)

    def _illegal(self, inst: Instance, suspects: list[tuple[int, TableStep]]) -> list[str]:
        """An impossible event: the state after shows the machines that did move; the first that did not is named."""
        if not suspects:
            return []
        moved = ", ".join(f"{s.slot}, x{s.slot} < 0 ? {self.layout.read(s.slot)} : x{s.slot}" for s in inst.steps)
        which = "".join(f"x{s.slot} < 0 ? {k} : " for k, s in suspects[:-1]) + str(suspects[-1][0])
        value = "".join(f"x{s.slot} < 0 ? {self.layout.read(s.slot)} : " for _, s in suspects[:-1])
        value += self.layout.read(suspects[-1][1].slot)
        many = len(inst.steps)
        return [
            f"    if ({' || '.join(f'x{s.slot} < 0' for _, s in suspects)}) {{",
            f"        const int changes[] = {{{moved}}};",
            f"        found(P_ILLEGAL, K_ILLEGAL, {which}, {value}, {inst.number}, &s, changes, {many});",
            "        return;",
            "    }",
        ]

    def _range(self, inst: Instance, slot: int, written: Mapping[int, str]) -> list[str]:
        """A value outside its range: the first one is named; the state after shows all written values."""
        changes = ", ".join(f"{n}, {name}" for n, name in written.items())
        return [
            f"    if (t{slot} < 0 || t{slot} > {self.model.slots[slot].hi}) {{",
            f"        const int changes[] = {{{changes}}};",
            f"        found(P_RANGE, K_RANGE, {slot}, t{slot}, {inst.number}, &s, changes, {len(written)});",
            "        return;",
            "    }",
        ]

    def _successor(self, written: Mapping[int, str]) -> list[str]:
        out = ["    Key t = s;"]
        for word in range(self.layout.words):
            here = [(self.layout.fields[slot], name) for slot, name in written.items()]
            here = [(f, name) for f, name in here if f.word == word and f.bits]
            if here:
                mask = sum(f.mask << f.shift for f, _ in here)
                parts = " | ".join(f"(uint64_t){name} << {f.shift}" for f, name in here)
                out.append(f"    t.word[{word}] = (s.word[{word}] & ~{mask:#x}ull) | {parts};")
        return out

    def _step_properties(self, inst: Instance, known: Known, written: Mapping[int, str]) -> list[str]:
        """Those that are not true of every step of this instance."""
        out = []
        for n, g in enumerate(self.model.steps):
            if not g.prop.about_rule(inst.rule.id):  # type: ignore[attr-defined]
                continue
            holds = simplify(g.holds, known)
            if not always(holds, self.model, known):
                prop = self.props[g.prop.id]
                out.append(
                    f"    if (!{self._text(holds, written)}) found({prop}, K_STEP, {n}, 0, {inst.number}, &t, NULL, 0);"
                )
        return out


def _call(unit: int, tests: tuple[str, ...]) -> str:
    condition = f"if ({' && '.join(tests)}) " if tests else ""
    return f"{condition}unit_{unit}_0(s);"


def _by_identity(versions: list[T]) -> list[T]:
    """Most variants share the model's own objects, which need be printed only once."""
    return list({id(v): v for v in versions}.values())


def _comment(text: str) -> str:
    return text.replace("*/", "* /").replace("\\", "/")
