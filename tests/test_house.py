"""The house: who may import whom. Imports point down only, so that what is proved depends on nothing that is not."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Each room with the rooms that it may import; every other room of ours is forbidden to it.
MAY_IMPORT = {
    "machines": set(),
    "examples": {"machines"},
    "checker": {"machines"},
    "diagrams": {"machines", "checker", "examples"},
    "runtime": {"machines"},
}
ROOMS = set(MAY_IMPORT)
DOOR = (
    "checker/real"  # drives the shipped executor: the one folder of the checker that may import it, and no other may it
)

# The only files of runtime that may speak to C; everything else goes through their classes.
BINDINGS = {"calrt.py", "calrt_c.py", "simulator.py", "simulator_c.py", "legacy.py"}


def imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every import, also inside functions and by importlib with a literal name."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
            case ast.ImportFrom(level=0, module=str(module)):
                yield node.lineno, module.split(".")[0]
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="__import__" | "import_module")):
                if node.args and isinstance(node.args[0], ast.Constant):
                    yield node.lineno, str(node.args[0].value).split(".")[0]


def upward(room: str, source: str) -> list[str]:
    """Imports of rooms that `room` may not use."""
    forbidden = ROOMS - MAY_IMPORT[room] - {room}
    return [f"line {line} imports {package}" for line, package in imports(source) if package in forbidden]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_down(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files, f"room {room} is empty"
    below = [f for f in files if not f.is_relative_to(ROOT / DOOR)]
    found = [f"{f.relative_to(ROOT)} {line}" for f in below for line in upward(room, f.read_text(encoding="utf-8"))]
    assert found == []


def test_what_drives_the_executor_is_used_by_nobody_below() -> None:
    """The checker runs from the tree without a native build; only this folder needs one."""
    files = sorted((ROOT / DOOR).glob("*.py"))
    assert files
    upwards = [line for f in files for line in upward("checker", f.read_text(encoding="utf-8"))]
    wrong = [line for line in upwards if line.split()[-1] != "runtime"]
    others = [f for f in (ROOT / "checker").rglob("*.py") if not f.is_relative_to(ROOT / DOOR)]
    assert wrong == []
    assert [f.name for f in others if "checker.real" in f.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("machines", "import checker"),
        ("machines", "from checker.model import Model"),
        ("machines", "def f():\n    from examples import ewd840"),
        ("machines", "import importlib\nimportlib.import_module('diagrams.tables')"),
        ("examples", "from checker.explore import explore"),
        ("checker", "import runtime.engine"),
        ("checker", "from diagrams import tables"),
        ("checker", "from examples.ewd840 import RULEBOOK"),
        ("diagrams", "import runtime"),
        ("runtime", "from checker.explore import explore"),
        ("runtime", "def f():\n    import diagrams.tables"),
    ],
)
def test_an_import_that_points_up_is_seen(room: str, source: str) -> None:
    """Negative control."""
    assert len(upward(room, source)) == 1


def test_an_import_that_points_down_is_allowed() -> None:
    assert upward("diagrams", "from checker.model import Model\nfrom . import svg\nimport machines.table") == []


def test_every_room_is_linted_and_installed() -> None:
    """A new room that nobody named here, in mypy's files or in the package would escape the rules."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rooms = {p.parent.name for p in ROOT.glob("*/__init__.py")} - {"tests"}
    assert rooms == set(MAY_IMPORT)
    assert set(config["tool"]["mypy"]["files"]) == rooms
    assert config["tool"]["mypy"]["strict"] is True
    assert set(config["tool"]["scikit-build"]["wheel"]["packages"]) == rooms
    assert config["tool"]["pytest"]["ini_options"]["filterwarnings"] == ["error"]


def test_the_ground_floor_does_no_io_and_no_threads() -> None:
    """`machines` is pure data and pure functions."""
    banned = {"ctypes", "threading", "asyncio", "multiprocessing", "subprocess", "socket", "os", "pathlib", "io"}
    files = sorted((ROOT / "machines").rglob("*.py"))
    found = [f"{f.relative_to(ROOT)} {p}" for f in files for _, p in imports(f.read_text(encoding="utf-8"))]
    assert [x for x in found if x.split()[1] in banned] == []


def speaks_to_c(source: str) -> list[str]:
    return [f"line {line} imports {package}" for line, package in imports(source) if package in {"ctypes", "_ctypes"}]


def test_only_the_bindings_speak_to_c() -> None:
    files = sorted((ROOT / "runtime").rglob("*.py"))
    assert {f.relative_to(ROOT / "runtime").as_posix() for f in files} >= BINDINGS
    others = [f for f in files if f.relative_to(ROOT / "runtime").as_posix() not in BINDINGS]
    assert [f"{f.name} {line}" for f in others for line in speaks_to_c(f.read_text(encoding="utf-8"))] == []


SPEAKING = ["import ctypes", "def f():\n    from ctypes import CDLL", "import ctypes.util as u"]


@pytest.mark.parametrize("source", SPEAKING)
def test_a_file_that_speaks_to_c_is_seen(source: str) -> None:
    """Negative control."""
    assert len(speaks_to_c(source)) == 1
