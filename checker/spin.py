"""Runs SPIN on an exported model and reads what it prints. SPIN is a program of its own; without it only this fails."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import frozen

from checker.model import Model
from checker.promela import export, safety_properties

COMPILE = ("gcc", "-O3", "-w", "-DSAFETY", "-DNOREDUCE")


class SpinError(Exception):
    """SPIN is not there, or broke down, or did not finish: one line that says what."""


@frozen
class SpinRun:
    """What pan reported. states: stored; refuted: the property whose assertion failed first, if one did (then the
    search ended there). states_mb, hash_mb: what it says it used for the states, and for the table of pointers to them;
    its stack is not in either."""

    version: str
    states: int
    transitions: int
    refuted: str
    states_mb: float
    hash_mb: float


class SpinProgram:
    """A model compiled by SPIN and gcc, in a directory of its own. Use in `with`. Raises SpinError."""

    def __init__(self, model: Model, checks: Iterable[str] = (), compile_command: Sequence[str] = COMPILE) -> None:
        for program in ("spin", compile_command[0]):
            if shutil.which(program) is None:
                raise SpinError(f"{program!r} is not on PATH; SPIN is the system package `spin`")
        self._properties = safety_properties(model)
        self._directory = tempfile.TemporaryDirectory(prefix="calexec-spin-")
        self._root = Path(self._directory.name)
        started = time.monotonic()
        try:
            (self._root / "model.pml").write_text(export(model, checks), encoding="utf-8")
            self._call(["spin", "-o2", "-a", "model.pml"])
            self._call([*compile_command, "-o", "pan", "pan.c"])
        except BaseException:
            self._directory.cleanup()
            raise
        self.compile_seconds = time.monotonic() - started

    def __enter__(self) -> SpinProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def run(self, depth_max: int, hash_bits: int = 24) -> SpinRun:
        """Search. depth_max: the longest path it may walk (the number of states is always enough)."""
        depth = (
            depth_max + 2
        )  # SPIN also counts the step that leads back to a known state, and the one before the first
        out = self._call(["./pan", "-E", "-n", f"-m{depth}", f"-w{hash_bits}"])
        failed = re.search(r"assertion violated \(0==(\d+)\)", out)
        if "max search depth too small" in out:
            raise SpinError(f"SPIN did not finish: a path is longer than {depth_max} steps")
        if "Search not completed" in out and not failed:
            raise SpinError("SPIN did not finish: " + next(line for line in out.splitlines() if "pan:" in line))
        version = re.search(r"Spin Version (\S+)", out)
        return SpinRun(
            version=version[1] if version else "?",
            states=int(_number(r"(\S+) states, stored", out)),
            transitions=int(_number(r"(\S+) transitions", out)),
            refuted=self._properties[int(failed[1])] if failed else "",
            states_mb=_number(r"(\S+)\s+actual memory usage for states", out),
            hash_mb=_number(r"(\S+)\s+memory used for hash table", out),
        )

    def _call(self, command: Sequence[str]) -> str:
        done = subprocess.run(command, cwd=self._root, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines()
            reason = said[0] if said else "no reason given"
            raise SpinError(f"{command[0]} failed with exit code {done.returncode}: {reason}")
        return done.stdout + done.stderr


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if not found:
        raise SpinError(f"SPIN's report has no line like {pattern!r}")
    return float(found[1])
