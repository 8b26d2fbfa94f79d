"""What constrains each guard conjunct and each update: take it away, and see which property falls.

Theory. A *mutant* is the rulebook with one thing removed from one rule: a conjunct of its guard, an update, or an event
that it fires. It is explored in a row of small scopes, as it stands. What happens is put in one of these classes:

- **killed**: an independent property is refuted, or the fair runs of a small scope refute a leads-to;
- **restated**: only assertions about the step fall that read nothing but what the rule's guard reads: true by
  construction of the guard, so not counted as a kill;
- **illegal**: only a missing row falls; **invalid**: the rulebook is rejected before any search. Neither is counted;
- **equivalent**: in every scope in which the rule can fire, the reachable set is exactly the original's;
- **open**: it survives and reaches other states: nothing constrains this, or no scope here shows it. A finding.

A conjunct over parameters alone says for which policy a rule exists; it is no run-time guard and is not mutated.

    python -m checker.mutants [MODULE:RULEBOOK] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from attrs import asdict, evolve, frozen

from checker import liveness
from checker.cli import DEFAULT_TARGET, Failure, load
from checker.exits import Exit
from checker.graph import Array
from checker.model import Model, build, with_rule
from checker.native import NativeError, Program
from checker.result import ILLEGAL, Exploration, Finding, Limits
from machines.expr import Expr, all_of
from machines.rulebook import Property, Rule, Rulebook, Run, Step
from machines.table import RulebookError

T = TypeVar("T")

WORKERS = 2
BATCH = 64  # variants compiled into one program
STATES_LIMIT = 40_000_000  # a mutant that explodes beyond this is not called anything but open

KILLED, RESTATED, ILLEGAL_ROW, INVALID, EQUIVALENT, OPEN = (
    "killed", "restated", "illegal", "invalid", "equivalent", "open",
)  # fmt: skip


@frozen(eq=False)
class Mutant:
    """One removal. kind: "guard", "update" or "event"; what: the removed text."""

    rule: Rule
    kind: str
    what: str

    @property
    def id(self) -> str:
        return f"{self.rule.id}: {self.kind} {self.what}"


@frozen(eq=False)
class Fate:
    """What became of a mutant. by: the properties that fell; run: where that was decided."""

    mutant: Mutant
    fate: str
    by: tuple[str, ...] = ()
    run: str = ""


# -- making mutants -----------------------------------------------------------------------------------------------
def mutants_of(book: Rulebook) -> list[Mutant]:
    """Every guard conjunct, every update of an own variable and every fired event, removed in turn."""
    return [m for rule in book.rules for m in _mutants_of_rule(rule)]


def _mutants_of_rule(rule: Rule) -> Iterator[Mutant]:
    conjuncts = rule.guard.conjuncts()
    for n, conjunct in enumerate(conjuncts):
        if conjunct.variables():
            rest = all_of(*conjuncts[:n], *conjuncts[n + 1 :])
            yield Mutant(evolve(rule, guard=rest), "guard", str(conjunct))
    for n, (target, value) in enumerate(rule.then):
        yield Mutant(evolve(rule, then=_without(rule.then, n)), "update", f"{target} := {value}")
    for n, (target, event) in enumerate(rule.fires):
        yield Mutant(evolve(rule, fires=_without(rule.fires, n)), "event", f"{target} {event}")
    for k, part in enumerate(rule.each):
        for n, (target, value) in enumerate(part.then):
            less = evolve(part, then=_without(part.then, n))
            yield Mutant(evolve(rule, each=_with(rule.each, k, less)), "update", f"each {target} := {value}")
        for n, (target, event) in enumerate(part.fires):
            less = evolve(part, fires=_without(part.fires, n))
            yield Mutant(evolve(rule, each=_with(rule.each, k, less)), "event", f"each {target} {event}")


def _without(items: tuple[T, ...], n: int) -> tuple[T, ...]:
    return items[:n] + items[n + 1 :]


def _with(items: tuple[T, ...], n: int, item: T) -> tuple[T, ...]:
    return (*items[:n], item, *items[n + 1 :])


# -- judging one exploration ----------------------------------------------------------------------------------------
def restates(book: Rulebook, prop_id: str, rule: Rule) -> bool:
    """An assertion about a step of this rule that reads nothing but what the rule's guard reads."""
    prop = next((p for p in book.properties if p.id == prop_id), None)
    if not isinstance(prop, Step) or not prop.about_rule(rule.id):
        return False
    return prop.holds.variables() <= rule.full_guard.variables()


def sort_findings(book: Rulebook, original: Rule, found: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The class of what was found, and by which properties; `open` for nothing."""
    ids = tuple(found)
    independent = tuple(i for i in ids if i != ILLEGAL and not restates(book, i, original))
    if independent:
        return KILLED, independent
    restated = tuple(i for i in ids if i != ILLEGAL)
    if restated:
        return RESTATED, restated
    return (ILLEGAL_ROW, ids) if ids else (OPEN, ())


def _found(exploration: Exploration, reference: Exploration) -> list[str]:
    """Properties that fell, sometimes-properties that the original reaches and the mutant does not included."""
    fell = sorted(exploration.findings, key=lambda p: exploration.findings[p].length)
    missed = sorted(reference.reached - exploration.reached) if exploration.complete else []
    return [*fell, *missed]


# -- the study ----------------------------------------------------------------------------------------------------
@frozen(eq=False)
class _Seen:
    """What one scope says of one mutant."""

    fate: str
    by: tuple[str, ...]
    same_set: bool


Report = Callable[[str], None]


def grounds_of(book: Rulebook) -> tuple[Run, ...]:
    """The rulebook's own scopes for the study, or else its fast runs that are to be PROVED."""
    return book.mutation_runs or tuple(r for r in book.runs if r.tier == "fast" and r.expect == "PROVED")


def study(book: Rulebook, grounds: Sequence[Run], report: Report = lambda line: None) -> list[Fate]:
    """Explore every mutant, scope by scope; what one scope has killed is not explored in the next."""
    mutants = mutants_of(book)
    fates: dict[Mutant, Fate] = {}
    weak: dict[Mutant, Fate] = {}
    same_set: dict[Mutant, bool] = {}
    for ground in grounds:
        left = [m for m in mutants if m not in fates]
        seen = _in_one_scope(book, ground, left, fates)
        for mutant, s in seen.items():
            if s.fate == KILLED:
                fates[mutant] = Fate(mutant, KILLED, s.by, ground.name)
                continue
            if s.fate != OPEN:
                weak.setdefault(mutant, Fate(mutant, s.fate, s.by, ground.name))
            same_set[mutant] = same_set.get(mutant, True) and s.same_set
        report(f"{ground.name}: {len(seen)} mutants explored, {sum(s.fate == KILLED for s in seen.values())} killed")
    for mutant in mutants:
        if mutant not in fates:
            survivor = Fate(mutant, EQUIVALENT if same_set.get(mutant, False) else OPEN)
            fates[mutant] = weak.get(mutant, survivor)
    return [fates[m] for m in mutants]


def _in_one_scope(
    book: Rulebook, ground: Run, mutants: Sequence[Mutant], fates: dict[Mutant, Fate]
) -> dict[Mutant, _Seen]:
    model = build(book.scope(ground.values, ground.without))
    present = {i.rule.id for i in model.instances}
    variants: dict[Mutant, Model] = {}
    for mutant in mutants:
        if mutant.rule.id in present:
            try:
                variants[mutant] = with_rule(model, mutant.rule)
            except RulebookError as e:
                fates[mutant] = Fate(mutant, INVALID, e.problems)
    items = list(variants.items())
    batches = [items[n : n + BATCH] for n in range(0, len(items), BATCH)]
    with ThreadPoolExecutor(WORKERS) as pool:
        results = pool.map(lambda batch: _explore_batch(book, model, ground, batch), batches)
    return {m: s for part in results for m, s in part.items()}


def _explore_batch(
    book: Rulebook, model: Model, ground: Run, batch: Sequence[tuple[Mutant, Model]]
) -> dict[Mutant, _Seen]:
    program = Program(model, variants=[v for _, v in batch])
    reference = program.explore(traces=False)
    _demand_clean(ground, reference, _leads_to(program, None) if ground.liveness else ())
    states = program.reachable()
    seen: dict[Mutant, _Seen] = {}
    for k, (mutant, _) in enumerate(batch):
        exploration = program.explore(variant=k, traces=False, limits=Limits(states=STATES_LIMIT))
        original = book.rule(mutant.rule.id)
        fate, by = sort_findings(book, original, _found(exploration, reference))
        if fate != KILLED and ground.liveness and exploration.complete:
            by_leads_to = _leads_to(program, k)
            fate, by = (KILLED, by_leads_to) if by_leads_to else (fate, by)
        seen[mutant] = _Seen(fate, by, fate != KILLED and _same_set(program, k, exploration, states))
    return seen


def _demand_clean(ground: Run, reference: Exploration, leads_to: tuple[str, ...]) -> None:
    """A scope in which the original itself is refuted would kill every mutant."""
    if found := (*reference.findings, *leads_to):
        raise RulebookError(f"mutation run {ground.name}", [f"the rulebook itself is refuted by {', '.join(found)}"])


def _leads_to(program: Program, k: int | None) -> tuple[str, ...]:
    _, graph = program.graph(variant=k)
    return tuple(p for p, outcome in liveness.check(graph).items() if isinstance(outcome, Finding))


def _same_set(program: Program, k: int, exploration: Exploration, states: Array) -> bool:
    """Exactly the original's reachable set, compared state by state."""
    if not exploration.complete or exploration.states != len(states):
        return False
    return bool(np.array_equal(program.reachable(k), states))


# -- reporting ------------------------------------------------------------------------------------------------------
MEANING = {
    KILLED: "an independent property falls",
    RESTATED: "only assertions fall that read nothing but what the guard reads",
    ILLEGAL_ROW: "only a missing row falls",
    INVALID: "rejected when the rulebook is built",
    EQUIVALENT: "same reachable set, compared state by state, in every scope in which the rule can fire",
    OPEN: "survives and reaches other states: an open question",
}


def fingerprint(book: Rulebook) -> str:
    """Of everything that the study depends on: rules, properties and scopes."""
    parts = [m.id for m in mutants_of(book)]
    parts += [f"{p.id} {p.kind} {[str(v) for v in attrs_of(p)]}" for p in book.properties]
    parts += [str(r) for r in grounds_of(book)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def attrs_of(prop: Property) -> list[Expr]:
    """The expressions that make up a property."""
    return [v for v in asdict(prop, recurse=False).values() if isinstance(v, Expr)]


def as_markdown(book: Rulebook, fates: Sequence[Fate]) -> str:
    """The study as a page: counts, which property killed how many, and every mutant that was not killed."""
    counts = Counter(f.fate for f in fates)
    killers = Counter(f.by[0] for f in fates if f.fate == KILLED)
    lines = [
        f"# What constrains each guard and update of {book.name}",
        "",
        "Generated by `make mutants`; do not edit. Every guard conjunct, update and fired event was removed in turn.",
        "",
        f"Fingerprint of the rulebook: {fingerprint(book)}",
        "",
        "| fate | mutants | meaning |",
        "| --- | --- | --- |",
        *(f"| {fate} | {counts[fate]} | {meaning} |" for fate, meaning in MEANING.items()),
        f"| | {len(fates)} | |",
        "",
        "## Which property killed",
        "",
        "The one with the shortest counterexample.",
        "",
        "| property | mutants |",
        "| --- | --- |",
        *(f"| {prop} | {n} |" for prop, n in sorted(killers.items(), key=lambda kv: (-kv[1], kv[0]))),
    ]
    for fate in (OPEN, EQUIVALENT, RESTATED, ILLEGAL_ROW, INVALID):
        lines += ["", f"## {fate}: {MEANING[fate]}", ""]
        for f in fates:
            if f.fate == fate:
                by = f" ({', '.join(f.by)})" if f.fate == RESTATED else ""
                lines.append(f"- `{f.mutant.rule.id}` {f.mutant.kind} `{f.mutant.what}`{by}")
    return "\n".join(lines) + "\n"


def as_json(book: Rulebook, fates: Sequence[Fate]) -> str:
    """The study for machines."""
    rows = [
        {
            "rule": f.mutant.rule.id, "kind": f.mutant.kind, "removed": f.mutant.what,
            "fate": f.fate, "by": list(f.by), "run": f.run,
        }
        for f in fates
    ]  # fmt: skip
    return json.dumps({"rulebook": book.name, "fingerprint": fingerprint(book), "mutants": rows}, indent=1) + "\n"


def _fail(exit_: Exit, *lines: str) -> int:
    for line in lines:
        print(f"mutants: {line}", file=sys.stderr)
    return exit_


def main(args: Sequence[str]) -> int:
    """Exit code 0 when the study ended; its findings are in the report, not in the exit code."""
    parser = argparse.ArgumentParser(prog="python -m checker.mutants", description="The mutation study of a rulebook.")
    parser.add_argument("target", nargs="?", default=DEFAULT_TARGET, metavar="MODULE:RULEBOOK")
    parser.add_argument("--json", metavar="FILE", help="write every mutant with its fate")
    parser.add_argument("--markdown", metavar="FILE", help="write the page")
    options = parser.parse_args(args)
    try:
        book = load(options.target)
        started = time.monotonic()
        fates = study(book, grounds_of(book), lambda line: print(f"{time.monotonic() - started:7.0f} s  {line}"))
    except Failure as e:
        return _fail(e.exit, *e.lines)
    except NativeError as e:
        return _fail(Exit.NO_ENGINE, str(e))
    except RulebookError as e:
        return _fail(Exit.BAD_RULEBOOK, str(e))
    except KeyboardInterrupt:
        return _fail(Exit.INTERRUPTED, "interrupted")
    for path, text in ((options.json, as_json(book, fates)), (options.markdown, as_markdown(book, fates))):
        if path:
            Path(path).write_text(text, encoding="utf-8")
    counts = Counter(f.fate for f in fates)
    for fate, meaning in MEANING.items():
        print(f"{fate:11} {counts[fate]:5}  {meaning}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
