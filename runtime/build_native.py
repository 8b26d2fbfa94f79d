"""Builds the native parts of this tree and installs them: what `make native` runs.

pip, scikit-build-core and CMake print pages. Here they go to a log, and one line says what was wrong first. Settings
come from the environment: CALRT_ROOT (a vendor's SDK) and BUILD_TYPE (Release, or Debug with the call order enforced,
or RelWithDebInfo).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["build", "first_error", "main"]

ROOT = Path(__file__).resolve().parents[1]
LOG = Path("build") / "native.log"
BUILD_TYPES = ("Release", "Debug", "RelWithDebInfo")  # CMake takes any other without a word, and optimises nothing

# What went wrong, in the order in which it is looked for: a pattern of the log, and the sentence for it. The groups of
# the pattern fill the sentence.
REASONS = (
    (r"No CMAKE_CXX_COMPILER could be found|Could not find (?:the )?compiler \w+ in (?:the )?environment variable CXX"
     r"|is not a full path to an existing compiler",
     "there is no working C++ compiler; install one (g++ or clang++), or set CXX"),
    (r"C\+\+ compiler\s+\"([^\"\n]+)\"\s+is not able to compile(?:(?:.*\n)*?(.*error: .*))?",
     "the C++ compiler {0} was found, but it does not compile a trivial program with the flags of the environment "
     "(CXX, CXXFLAGS, LDFLAGS): {1}"),
    (r"No matching distribution found for (cmake|ninja)\b",
     "{0} is neither installed nor to be had from the package index; install {0}"),
    (r"No matching distribution found for (\S+)", "the package index has no {0}, which the build needs"),
    (r"(?m)^[^\S\n]*(\S.*?:\d+(?::\d+)?: (?:fatal )?error: .*)$", "{0}"),
    (r"CMake Error[^\n]*:\n+((?:  [^\n]+\n)+)", "{0}"),
    (r"(?m)^.*((?:undefined reference|cannot find) .*)$", "{0}"),
    (r"(?mi)^\s*(?:ERROR|error): (.*)$", "{0}"),
)  # fmt: skip


def first_error(log: str) -> str:
    """One line about the first thing that went wrong in a build's log."""
    for pattern, sentence in REASONS:
        if found := re.search(pattern, log):
            return " ".join(sentence.format(*found.groups("it says nothing")).split())
    return "the build failed without a message that is known"


def build(root: Path, environment: dict[str, str], log: Path) -> int:
    """Builds `root` into the running Python's environment; the output goes to `log`. pip's exit code."""
    settings = ["wheel.cmake=true", f"build-dir={root / 'build' / 'native'}"]
    settings += [f"cmake.define.CALRT_ROOT={environment.get('CALRT_ROOT', '')}"]
    settings += [f"cmake.build-type={environment.get('BUILD_TYPE') or BUILD_TYPES[0]}"]
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "-v"]
    command += [part for setting in settings for part in ("-C", setting)]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        done = subprocess.run([*command, "-e", str(root)], stdout=output, stderr=subprocess.STDOUT, env=environment)
    return done.returncode


def main() -> int:
    build_type = os.environ.get("BUILD_TYPE")
    if build_type and build_type not in BUILD_TYPES:
        print(f"native: BUILD_TYPE is {build_type!r}; allowed are {', '.join(BUILD_TYPES)}", file=sys.stderr)
        return 1
    log = ROOT / LOG
    if build(ROOT, dict(os.environ), log) == 0:
        return 0
    print(f"native: {first_error(log.read_text(encoding='utf-8', errors='replace'))} (log: {LOG})", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
