"""The tutorial shows the code that exists and the output that comes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
MODULE = (ROOT / "examples" / "tutorial_pool.py").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TUTORIAL, flags=re.MULTILINE | re.DOTALL)


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def without_times(text: str) -> list[str]:
    """The lines with seconds masked; columns may shift by a digit, so spaces count once."""
    return [re.sub(r" +", " ", re.sub(r"\d+\.\d+( s\b)?", "#", line)).rstrip() for line in lines(text)]


def differs(shown: str, real: str) -> bool:
    return without_times(shown) != without_times(real)


def test_the_code_of_the_tutorial_is_the_whole_module() -> None:
    docstring, code = MODULE.split('"""\n', 1)
    assert docstring.startswith('"""')
    assert lines("".join(blocks("python"))) == lines(code)


CONSOLE = [block.split("\n", 1) for block in blocks("console")]


@pytest.mark.parametrize(("command", "shown"), CONSOLE, ids=[command for command, _ in CONSOLE])
def test_the_output_of_the_tutorial_is_what_comes(command: str, shown: str) -> None:
    prompt, program, *arguments = shlex.split(command)
    assert (prompt, program) == ("$", "check-states")
    command_line = [sys.executable, "-m", "checker", *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}  # no terminal: lines as long as they are
    done = subprocess.run(command_line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert without_times(done.stdout) == without_times(shown)


def test_there_are_outputs_of_each_kind() -> None:
    verdicts = [re.findall(r"^(PROVED|REFUTED)", shown, flags=re.MULTILINE)[-1] for _, shown in CONSOLE]
    assert verdicts == ["PROVED", "REFUTED", "REFUTED"]


def test_a_changed_output_is_noticed() -> None:
    _, shown = CONSOLE[1]
    assert not differs(shown, shown.replace("0.0", "7.1"))
    assert differs(shown, shown.replace("pool.time_out[0]", "pool.time_out[1]"))
    assert differs(shown, shown.replace("24", "25"))
