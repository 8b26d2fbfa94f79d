"""Where a source decides what the rulebook decides: compares a state, or changes a variable.

Read from the syntax tree. States are the members of those enums over which an own variable of the rulebook ranges.
Whatever has an attribute that is called like a variable is taken for a record when that is changed, but for `self` and
what NO_RECORDS lists; when it is only compared, it must be called like a record too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from machines.protocol import RULEBOOK

_own = [v for v in RULEBOOK.variables if not v.world]
VARIABLES = frozenset(v.name for v in _own)
STATES = frozenset(v.domain.enum.__name__ for v in _own if v.domain.enum)
RECORDS = ("s", "_s", "e", "o", "element", "record", "job", "seq", "sequence")  # what the code calls them
NO_RECORDS = {
    "self.calls": "DeviceCalls, which asks for the rung",
    "context": "JobContext, which has the job's record",
}
SETTERS = ("setattr", "__setattr__", "delattr", "__delattr__")


def decisions(source: str) -> list[str]:
    """One line for each; empty where the source leaves every decision to the rules."""
    tree = ast.parse(source)
    states = _named_states(tree)
    found = [*_comparisons(tree, states), *_changes(tree)]
    return [f"line {line} {what}" for line, what in sorted(found)]


def _named_states(tree: ast.AST) -> set[str]:
    """What the source calls the enums: by their names, as they were imported, or given another name."""
    names = set(STATES)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=aliases):
                names |= {alias.asname for alias in aliases if alias.name in STATES and alias.asname}
            case ast.Assign(targets=[ast.Name(id=other)], value=value) if _is_enum(value, names):
                names.add(other)
    return names


def _is_enum(node: ast.AST | None, names: set[str]) -> bool:
    return _last_name(node) in names


def _last_name(node: ast.AST | None) -> str:
    """`c` of `c`, of `a.b.c`; empty for anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return str(name)
    return ""


def _member(node: ast.AST, names: set[str]) -> str:
    """The member of a state enum in this expression: X.Member, X["Member"] or X(...); empty without one."""
    for part in ast.walk(node):
        match part:
            case ast.Attribute(value=enum) | ast.Subscript(value=enum) | ast.Call(func=enum) if _is_enum(enum, names):
                return ast.unparse(part)
    return ""


def _comparisons(tree: ast.AST, names: set[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
            case ast.MatchValue() | ast.MatchClass():
                operands = [node]
            case _:
                continue
        for operand in operands:
            if member := _member(operand, names):
                yield node.lineno, f"compares with {member}"
            elif _last_name(getattr(operand, "value", None)) in RECORDS and (variable := _variable(operand)):
                yield node.lineno, f"compares {variable}"


def _variable(node: ast.AST) -> str:
    """A record's variable in its full name; empty if it is something else."""
    match node:
        case ast.Attribute(value=owner, attr=name) if name in VARIABLES and ast.unparse(owner) not in (
            "self",
            *NO_RECORDS,
        ):
            return ast.unparse(node)
    return ""


def _changes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()) if variable := _variable(node):
                yield node.lineno, f"changes {variable}"
            case ast.Call(func=ast.Name(id=call) | ast.Attribute(attr=call), args=[owner, name, *_]) if call in SETTERS:
                known = isinstance(name, ast.Constant) and name.value not in VARIABLES
                if not known and ast.unparse(owner) not in ("self", *NO_RECORDS):
                    yield node.lineno, f"changes {ast.unparse(owner)}, {ast.unparse(name)}"
