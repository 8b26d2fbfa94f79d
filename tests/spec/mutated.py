"""A copy of the package with one line changed, and a row of §12 run against it in a process of its own.

The copy must be the one that is imported: an editable install's finder comes before every path, so it is taken out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from runtime.calrt import LIBRARY_VARIABLE, Library
from tests.spec.mutations import Mutation

ROOT = Path(__file__).parents[2]
COPIED = ("machines", "runtime", "tests/runtime", "tests/spec")
LONGEST_S = 120
UNHOOK = '''"""Imports come from this folder."""
import sys
from pathlib import Path

sys.meta_path[:] = [f for f in sys.meta_path if "skbc" not in type(f).__module__]
import runtime.executor
import tests.spec.requirements

for module in (runtime.executor, tests.spec.requirements):
    assert Path(module.__file__).is_relative_to(Path(__file__).parent), module.__file__
'''
OPTIONS = ("-x", "-p", "unhook", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")  # the last takes a second


def copy(folder: Path, mutation: Mutation | None) -> None:
    """The package and the tests in `folder`, with the mutation. Raises ValueError when its text is not there once."""
    for part in COPIED:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("native", "__pycache__", ".*"))
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "unhook.py").write_text(UNHOOK, encoding="utf-8")
    if mutation:
        file = folder / "runtime" / mutation.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutation.old) != 1 or "\n" in mutation.old + mutation.new:
            raise ValueError(f"{mutation.row}: {mutation.file} has {mutation.old!r} {text.count(mutation.old)} times")
        file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")


def run(folder: Path, row: str) -> subprocess.CompletedProcess[str]:
    """The tests that claim that row, on the copy; they stop at the first that fails."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, "--shows", row, "tests/spec/test_fault_injection.py"]
    env = {**os.environ, "PYTHONPATH": str(folder), LIBRARY_VARIABLE: str(Library.load().path)}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )  # fmt: skip
