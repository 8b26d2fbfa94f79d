"""The scenarios once more, with their real threads: under the sanitizers, and with Python switching as often as it can.

Each is a pytest of its own over tests/scenarios. The sanitizers watch the shim and the simulator, below the executor's
own threads and ctypes; Python itself is not built with them, so their library is loaded first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import native_builds
import pytest

ROOT = Path(__file__).parents[2]
OFTEN = {"CALEXEC_TESTS_SWITCH_S": "1e-6"}
WATCHED = {"address": "libasan.so", "thread": "libtsan.so"}
SEEDED = {"address": ("overflow", "heap-buffer-overflow"), "thread": ("race", "data race")}
BUGS = """
#include <thread>
extern "C" void overflow(int past) { int *four = new int[4]; four[past] = 1; delete[] four; }
extern "C" void race(int) {
    int n = 0;
    std::thread a([&] { n++; }), b([&] { n++; });
    a.join();
    b.join();
}
"""


def scenarios(log: Path, environment: dict[str, str], *selection: str) -> str:
    """What pytest said; every test passed, and no sanitizer wrote a report."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "not nightly", *selection]
    said = ran(command, log, environment)
    assert said.returncode == 0, said.stdout[-4000:] + said.stderr[-2000:] + reports(log)
    assert reports(log) == ""
    return said.stdout


def ran(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    options = f"log_path={log / 'report'}:detect_leaks=0"  # Python leaves with memory that it still has
    sanitizers = {"ASAN_OPTIONS": options, "TSAN_OPTIONS": options, "UBSAN_OPTIONS": options, "PYTHONMALLOC": "malloc"}
    everything = {**os.environ, **sanitizers, **environment}
    return subprocess.run(command, cwd=ROOT, env=everything, capture_output=True, text=True, timeout=3000, check=False)


def reports(log: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted(log.glob("report*")))


def watched(sanitizer: str) -> dict[str, str]:
    """The environment in which a sanitizer watches libraries that Python loads: it comes first, and then what it hooks
    into of C++."""
    first = [
        native_builds.run("gcc", f"-print-file-name={name}").strip() for name in (WATCHED[sanitizer], "libstdc++.so.6")
    ]
    return {"LD_PRELOAD": " ".join(first)}


def built(sanitizer: str, builds: Path) -> dict[str, str]:
    """The installed libraries' like, built with a sanitizer; what makes the executor load them."""
    folder = native_builds.build(
        native_builds.NATIVE, builds / f"python_{sanitizer}", CALEXEC_SANITIZE=sanitizer, CMAKE_UNITY_BUILD="ON",
        CMAKE_BUILD_TYPE="RelWithDebInfo",
    )  # fmt: skip
    return {"CALRT_LIBRARY": str(folder / "lib" / "libcalrt_c.so")}


@pytest.mark.nightly
@pytest.mark.parametrize("sanitizer", WATCHED)
def test_scenarios_under_a_sanitizer(sanitizer: str, builds: Path, tmp_path: Path) -> None:
    scenarios(tmp_path, watched(sanitizer) | built(sanitizer, builds), "tests/scenarios")


@pytest.mark.parametrize("sanitizer", WATCHED)
def test_control_a_seeded_bug_is_reported(sanitizer: str, tmp_path: Path) -> None:
    """In a library that Python loads, in the same environment."""
    bug, report = SEEDED[sanitizer]
    source, library = tmp_path / "bugs.cpp", tmp_path / "bugs.so"
    source.write_text(BUGS, encoding="utf-8")
    native_builds.run("g++", "-shared", "-fPIC", "-pthread", f"-fsanitize={sanitizer}", "-o", library, source)
    call = f"import ctypes; ctypes.CDLL({str(library)!r}).{bug}(%d)"
    said = ran([sys.executable, "-c", call % 4], tmp_path, watched(sanitizer))
    assert said.returncode != 0
    assert report in reports(tmp_path)


@pytest.mark.parametrize(
    "which",
    ["tests/scenarios/test_f13_buffers.py", pytest.param("tests/scenarios", marks=pytest.mark.nightly)],
    ids=["some", "all"],
)
def test_scenarios_with_threads_that_switch_often(which: str, tmp_path: Path) -> None:
    assert "threads switch after 0.000001 s" in scenarios(tmp_path, OFTEN, which)
