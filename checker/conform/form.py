"""What a record must look like before anybody asks what it means: its fields, their types, and which values there are.

Theory. A journal is read by somebody who did not write it, so nothing in it is taken on trust: a field that is not of
its form is refused where it stands, with what is allowed there, before a rule, a table or the memory of this process
meets it. The forms themselves are machines/evidence.py's, and the parameters are the rulebook's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from machines.evidence import CHAIN, FORMAT, KINDS
from machines.expr import NUMBER_MAX, Param
from machines.protocol import RULEBOOK

__all__ = ["shown", "wrong_element", "wrong_fields", "wrong_format", "wrong_parameters"]

FIELDS = {
    kind: {name: types if isinstance(types, tuple) else (types,) for name, types in form.items()}
    for kind, form in KINDS.items()
}  # fmt: skip
OPTIONAL = {"number": frozenset({"number", "at_us", "rule", "element", "generation", "observed"})}
JSON_NAMES = {int: "a number", str: "a text", dict: "an object", list: "a list", type(None): "null"}
LINKED = frozenset(m.source.name for m in RULEBOOK.maps)  # sorts whose elements are named with what they belong to
ELEMENTS = {False: "a number (a sequence)", True: "a list of two numbers (a job's and its sequence's)"}
WORD_MAX = 2**63 - 1  # of a number, to either side: what is written comes from integers of 64 bits
SIZE_MAX = NUMBER_MAX // 2  # of a parameter that is a size; the rulebook adds two at most
SHOWN_MAX = 40  # letters of a value


def wrong_format(version: Any) -> str:
    """Whether it is another format than the one that is read here, or ""."""
    if type(version) is int and version == FORMAT:
        return ""
    return f"its format is {shown(version)}, and the only one that is read here is {FORMAT}"


def wrong_fields(kind: str, record: Mapping[str, Any]) -> str:
    """What is wrong with the fields of a record of this kind, or ""."""
    fields, optional = FIELDS[kind], OPTIONAL.get(kind, frozenset())
    names = record.keys() - {CHAIN}
    if names != fields.keys():
        words = [f"{shown(name, str)} is no field of it" for name in names - fields.keys()]
        words += [f"{name} is missing" for name in fields.keys() - names - optional]
        if words:
            return "; ".join(sorted(words))
    for name, types in fields.items():
        value = record.get(name)
        if value is None and name in optional:
            continue
        if name == "element":
            fits = _is_element(value)
        else:
            fits = type(value) in types and (type(value) is not int or abs(value) <= WORD_MAX)
        if not fits:
            return f"{name} is {shown(value)}; allowed {_allowed(name, types)}"
    return _wrong_state(record["state"]) if type(record.get("state")) is dict else ""


def wrong_element(sort: str, element: Any) -> str:
    """Whether it is no element of this sort ("": the rule is about none), as a line has it or as a key, or ""."""
    linked, parts = sort in LINKED, list(element) if isinstance(element, list | tuple) else element
    if _is_element(parts) and (parts is None) == (not sort) and (type(parts) is list) == linked:
        return ""
    return f"element is {shown(element)}; allowed is {ELEMENTS[linked] if sort else 'null (the device)'}"


def _wrong_state(state: Mapping[str, Any]) -> str:
    """Of each sort's elements; the values are judged by the rulebook's ranges."""
    for sort in (s.name for s in RULEBOOK.sorts if s.name in state):
        if type(state[sort]) is not list:
            return f"{sort} in its state is {shown(state[sort])}; allowed is a list of elements"
        for given in state[sort]:
            if type(given) is not dict or "element" not in given:
                return f"{sort} in its state has {shown(given)}; allowed is an object with `element` and its variables"
            if wrong := wrong_element(sort, given["element"]):
                return f"{sort} in its state: {wrong}"
    return ""


def _is_element(value: Any) -> bool:
    parts = value if type(value) is list and len(value) == 2 else [value]
    return value is None or all(type(part) is int and abs(part) <= WORD_MAX for part in parts)


def _allowed(name: str, types: tuple[type, ...]) -> str:
    if name == "element":
        return f"are null (the device), {', '.join(ELEMENTS.values())}"
    return f"is {' or '.join(JSON_NAMES[of] for of in types)}{' of 64 bits' if int in types else ''}"


def wrong_parameters(values: Mapping[str, Any]) -> str:
    """What is wrong with a head's parameters, or ""."""
    return "; ".join(_parameters(values))


def _parameters(values: Mapping[str, Any]) -> Iterator[str]:
    known = {param.name: param for param in RULEBOOK.params}
    for name in sorted(values.keys() - known.keys()):
        yield f"{shown(name, str)} is no parameter of the rulebook"
    for name, param in known.items():
        if name not in values:
            yield f"its parameter {name} is missing"
            continue
        value, (low, high) = values[name], _range(param)
        if type(value) is not int or not low <= value <= high:
            yield f"its parameter {name} is {shown(value)}; allowed are {_choices(param)}"


def _range(param: Param) -> tuple[int, int]:
    """What is declared; but the bounds of a size are those of what is explored, and an executor may be larger."""
    return (param.lo, SIZE_MAX if param.kind == "scope" else param.hi)


def _choices(param: Param) -> str:
    low, high = _range(param)
    if param.choices:
        return ", ".join(f"{value} ({param.show(value)})" for value in range(low, high + 1))
    return f"{low} to {high}" if high > low + 1 else f"{low} and {high}"


def shown(value: Any, by: Any = repr) -> str:
    """A value from a file, for a person: not longer than it is worth, and printable wherever it is printed."""
    try:
        text = by(value)
    except (ValueError, RecursionError):  # a number with thousands of digits, lists in lists in lists
        text = f"a {type(value).__name__} that cannot be shown"
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
