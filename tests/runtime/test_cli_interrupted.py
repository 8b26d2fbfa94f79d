"""Ctrl-C while `calexec` is still loading its modules."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from runtime.exits import Exit

ROOT = Path(__file__).parents[2]

# Presses Ctrl-C when the module is about to be imported.
PRESS = """
import os, signal, sys

wanted, handler, script = sys.argv[1:]

class Press:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Press())
signal.signal(signal.SIGINT, getattr(signal, handler))
module, function = script.split(":")
sys.argv[1:] = ["--version"]
getattr(__import__(module, fromlist=[function]), function)()
"""


def script() -> str:
    """What the installed `calexec` calls."""
    with (ROOT / "pyproject.toml").open("rb") as f:
        scripts: dict[str, str] = tomllib.load(f)["project"]["scripts"]
    return scripts["calexec"]


def pressed(module: str, handler: str = "default_int_handler") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRESS, module, handler, script()]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("module", ["runtime.cli", "click", "runtime.calrt", "numpy", "runtime.vendor_probe.command"])
def test_ctrl_c_while_loading_is_one_line(module: str) -> None:
    done = pressed(module)
    assert (done.returncode, done.stdout, done.stderr) == (Exit.INTERRUPTED, "", "calexec: interrupted\n")


@pytest.mark.parametrize(("module", "handler"), [("nobodys_module", "default_int_handler"), ("numpy", "SIG_IGN")])
def test_without_it_and_where_it_is_ignored(module: str, handler: str) -> None:
    """Control."""
    done = pressed(module, handler)
    assert (done.returncode, done.stderr) == (0, "")
    assert "version" in done.stdout


def test_it_is_the_command() -> None:
    command = [sys.executable, "-m", "runtime", "doctr"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == Exit.USAGE
    assert done.stderr.startswith("calexec: ")
