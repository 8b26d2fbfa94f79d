"""Which lock domains of §5.2 each rule needs: docs/lock-domains.md, generated.

Theory. §5.2 protects five groups of data by five locks with a fixed order. Here a rule is one step behind one monitor,
which is all five locks at once: so the order cannot be broken, and what must not happen while one is held (a call of
CalRT) is asked for in one place, `Engine.must_be_outside`. What remains of §5.2 is which data belong together, and that
is declared: every own variable names its lock. From that follows what each rule would have to hold, and this page
shows it to whoever wants the monitor split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from machines.expr import Expr, Var
from machines.protocol import RULEBOOK
from machines.rulebook import Rule, Rulebook

__all__ = ["DOCUMENT", "page", "reads", "writes"]

DOCUMENT = Path(__file__).parents[1] / "docs" / "lock-domains.md"


def reads(rule: Rule) -> frozenset[str]:
    """Domains of what the step looks at: its guard, the states that its events move, and what new values come from."""
    moved = [target for target, _ in rule.fires]
    values = [value for target, value in rule.full_then if not _variable(target).world]
    for part in rule.each:
        moved += [target for target, _ in part.fires]
        values += [value for target, value in part.then if not _variable(target).world]
    return _locks(_variables((rule.full_guard, *moved, *values)))


def writes(rule: Rule) -> frozenset[str]:
    """Domains of what the step changes."""
    targets = [target for target, _ in (*rule.fires, *rule.full_then)]
    targets += [target for part in rule.each for target, _ in (*part.fires, *part.then)]
    return _locks(_variable(target) for target in targets)


def _variable(ref: Expr) -> Var:
    found: Var = ref.args[0]
    return found


def _variables(expressions: Iterable[Expr]) -> Iterator[Var]:
    return (_variable(node) for x in expressions for node in x.walk() if node.op == "ref")


def _locks(variables: Iterable[Var]) -> frozenset[str]:
    return frozenset(v.lock for v in variables if not v.world)


# -- the page ----------------------------------------------------------------------------------------------------------
def page(book: Rulebook = RULEBOOK) -> str:
    """docs/lock-domains.md."""
    return "\n".join(_lines(book)) + "\n"


def _lines(book: Rulebook) -> Iterator[str]:
    yield from (
        "# Rules and lock domains",
        "",
        "GENERATED from machines/protocol by `python -m runtime.domains`. Do not edit: a test compares.",
        "",
        "§5.2 has five locks. The executor has one monitor in their place, and a rule is one step behind it. Where the",
        "five would be needed follows from the variables, each of which names its lock:",
        "",
        *_head("lock", "variables"),
    )
    for lock in book.locks:
        yield f"| {lock} | {', '.join(f'`{v.path}`' for v in book.variables if v.lock == lock)} |"
    yield from (
        "",
        "**w**: the rule changes something of that domain; r: it only reads there. Columns are in §5.2's order. A call",
        "is made after the step that begins it and reported by another, so none of the five is held during one.",
        "(KvManager is called by one thread at a time; that lock is `KvCoordinator`'s own and guards none of these.)",
        "",
        *_head("rule", "actor", "call", *book.locks),
    )
    for rule in book.rules:
        if reads(rule) | writes(rule):
            yield f"| `{rule.id}` | {rule.actor.name} | {_call(rule)} | {' | '.join(_needs(rule, book.locks))} |"


def _needs(rule: Rule, locks: Iterable[str]) -> Iterator[str]:
    return ("**w**" if lock in writes(rule) else "r" if lock in reads(rule) else "" for lock in locks)


def _call(rule: Rule) -> str:
    """What the rule takes, and what it begins."""
    taken = f"takes {rule.outcome[0].name}: {', '.join(rule.outcome[1])}" if rule.outcome else ""
    begun = f"begins {rule.begins.name}" if rule.begins else ""
    return "; ".join(part for part in (taken, begun) if part)


def _head(*titles: str) -> tuple[str, str]:
    return f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"


if __name__ == "__main__":
    DOCUMENT.write_text(page(), encoding="utf-8")
    print(f"wrote {DOCUMENT.name}")
