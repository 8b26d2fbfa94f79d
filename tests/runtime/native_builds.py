"""CMake for tests: builds of the native parts other than the installed one, kept between runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

NATIVE = Path(__file__).parents[2] / "runtime" / "native"


class BuildFailed(AssertionError):
    """CMake failed; the text is all that it said."""


def tool(name: str) -> str:
    """cmake or ctest: the machine's, or else the one that the development environment brings."""
    return shutil.which(name) or str(Path(sys.prefix) / "bin" / name)


def run(*command: object, timeout: float = 300) -> str:
    """The command's output. Raises BuildFailed when it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise BuildFailed(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def configure(source: Path, build: Path, **definitions: object) -> str:
    return run(tool("cmake"), "-S", source, "-B", build, *(f"-D{name}={value}" for name, value in definitions.items()))


def build(source: Path, folder: Path, *targets: str, **definitions: object) -> Path:
    """Builds what is out of date; the build's folder."""
    configure(source, folder, **definitions)
    run(tool("cmake"), "--build", folder, "-j2", *(("--target", *targets) if targets else ()))
    return folder
