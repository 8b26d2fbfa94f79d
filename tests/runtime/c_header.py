"""What `calrt_c.h` declares, read from its text."""

from __future__ import annotations

import re
from pathlib import Path

from attrs import frozen

INCLUDE = Path(__file__).parents[2] / "runtime" / "native" / "include"


@frozen
class Parameter:
    """type: as written, without `const` and with one space before each `*`."""

    type: str
    name: str


def functions(text: str) -> dict[str, tuple[Parameter, ...]]:
    """Name without its prefix -> parameters, of every exported function; all return int."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found = re.findall(r"CALRT_C_API\s+int\s+calrt_c_(\w+)\(([^)]*)\);", text)
    assert len(found) == len(re.findall(r"^CALRT_C_API", text, flags=re.MULTILINE)), "a declaration was not understood"
    return {name: tuple(map(_parameter, parameters.split(","))) for name, parameters in found}


def _parameter(text: str) -> Parameter:
    found = re.fullmatch(r"(?:const )?(\w+) (\*?)(\w+)", " ".join(text.split()))
    assert found, f"a parameter was not understood: {text}"
    return Parameter(f"{found[1]} {found[2]}".strip(), found[3])


def declared() -> dict[str, tuple[Parameter, ...]]:
    return functions((INCLUDE / "calrt_c.h").read_text(encoding="utf-8"))


def enumerators(text: str, name: str) -> dict[str, int]:
    """The enumerators of `enum class <name>` of a C++ header."""
    found = re.search(rf"enum class {name} : int {{(.*?)}};", text, flags=re.DOTALL)
    assert found, f"there is no enum {name}"
    return {key: int(value) for key, value in re.findall(r"(\w+) = (-?\d+)", found[1])}
