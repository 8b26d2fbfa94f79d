"""Writes `native/include/calexec_tables.hpp`: return codes, call order and vendor facts, from `machines`.

Run as `python -m runtime.tables`; a test holds the committed file to what this prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from machines.abi import TABLES
from machines.errors import CODES, SHIM_CODES, Code
from machines.protocol.params import FACTS
from machines.table import Table

HEADER = Path(__file__).parent / "native" / "include" / "calexec_tables.hpp"


def c_header() -> str:
    """The whole file."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "/* GENERATED from machines/ by `python -m runtime.tables`. Do not edit: a test compares. */"
    yield "#ifndef CALEXEC_TABLES_HPP"
    yield "#define CALEXEC_TABLES_HPP"
    yield ""
    yield "/* Return codes (§8, machines/errors.py). A vendor's SDK brings its own calrt::ReturnCode. */"
    yield "#ifndef CALEXEC_VENDOR_RETURN_CODES"
    yield from _enum("calrt", "ReturnCode", CODES)
    yield "#endif"
    yield ""
    yield from _enum("calrt_c", "ShimCode", SHIM_CODES)
    yield "/* Vendor facts (§14, machines/protocol/params.py): X(name, what is true where it holds). */"
    yield "#define CALEXEC_FACTS(X) \\"
    yield from _continued(f'    X({f.name}, "{f.about}")' for f in FACTS)
    yield ""
    yield "/* Call order (machines/abi.py): next[state][event], -1 where the call is impossible. State 0: no handle. */"
    for table in TABLES:
        yield from _table(table)
    yield "#endif"


def _enum(namespace: str, name: str, codes: tuple[Code, ...]) -> Iterator[str]:
    yield f"namespace {namespace} {{"
    yield f"enum {name} : int {{"
    yield from (f"    {c.name} = {c.number}," for c in codes)
    yield "};"
    yield "}"
    yield ""


def _strings(name: str, values: Iterable[str]) -> str:
    quoted = ", ".join(f'"{v}"' for v in values)
    return f"static const char *const {name}[] = {{{quoted}}};"


def _continued(lines: Iterator[str]) -> Iterator[str]:
    *body, last = lines
    yield from (f"{line} \\" for line in body)
    yield last


def _table(table: Table) -> Iterator[str]:
    name, states = table.name, list(table.states)
    yield f"enum {{ {', '.join(f'{name}_{s.name} = {s.value}' for s in states)}, {name}_states = {len(states)} }};"
    numbered = ", ".join(f"{name}_on_{e} = {i}" for i, e in enumerate(table.events))
    yield f"enum {{ {numbered}, {name}_events = {len(table.events)} }};"
    yield _strings(f"{name}_state_names", (s.name for s in states))
    yield _strings(f"{name}_event_names", table.events)
    yield f"static const signed char {name}_next[{len(states)}][{len(table.events)}] = {{"
    for state in states:
        cells = [table.entry(state, event) for event in table.events]
        yield f"    {{{', '.join(str(c.target.value) if c else '-1' for c in cells)}}}, /* {state.name} */"
    yield "};"
    yield ""


if __name__ == "__main__":
    HEADER.write_text(c_header(), encoding="utf-8")
    print(f"wrote {HEADER.name}")
