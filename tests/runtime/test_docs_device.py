"""What the pages of the device boundary say of Python: the program runs as it stands there, the table is whole."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.calbin import sample
from runtime.manifest import load_manifest
from runtime.oracle import Oracle
from runtime.simulator import Simulator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "calrt-api.md").read_text(encoding="utf-8")
HEADER = (ROOT / "runtime" / "native" / "include" / "calrt_sim.h").read_text(encoding="utf-8")


def program_and_output() -> tuple[str, str]:
    section = PAGE.split("\n## In Python\n", 1)[1].split("\n## ", 1)[0]
    (program,) = re.findall(r"^```python\n(.*?)^```$", section, re.S | re.M)
    (output,) = re.findall(r"^```\n(.*?)^```$", section.replace(f"```python\n{program}```", ""), re.S | re.M)
    return program, output


def test_the_program_runs_and_prints_what_the_page_says() -> None:
    program, output = program_and_output()
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", output)


def test_the_tokens_on_the_page_are_the_oracles() -> None:
    program, output = program_and_output()
    (prompt,) = re.findall(r"model.prefill\(1, \[(.*?)\]\)", program)
    manifest = load_manifest(sample("tiny").with_suffix(".json"))
    history, oracle = [int(t) for t in prompt.split(", ")], Oracle.of_calbin(manifest.calbin_path)
    said = [int(t) for t in re.findall(r"^token (\d+)$", output, re.M)]
    assert len(said) == 2
    for token in said:
        values = oracle.row(history).astype("uint32") << 16
        assert int(values.view("float32").argmax()) == token
        history.append(token)


def panel() -> list[tuple[str, str]]:
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `calrtsim_(\w+)` \| (.*) \|$", page, re.M)


def test_the_panel_is_whole() -> None:
    declared = re.findall(r"\bcalrtsim_(\w+)\((?:uint32_t|void)", HEADER)
    assert [name for name, _ in panel()] == declared
    assert len(declared) == 18


@pytest.mark.parametrize(("name", "method"), panel())
def test_the_panels_methods_are_these(name: str, method: str) -> None:
    """Each makes the call beside which it stands, and takes what it says there."""
    found = re.fullmatch(r"`(\w+)\((.*)\)`", method)
    if not found:
        assert (name, method) == ("last_error", "the text of SimulatorError")
        return
    function = getattr(Simulator, found[1])
    assert f'"{name}"' in inspect.getsource(function)
    if found[1] != "set":  # it takes any key
        assert [p for p in inspect.signature(function).parameters if p != "self"] == [
            p for p in found[2].split(", ") if p
        ]
