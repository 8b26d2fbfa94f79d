"""The C++ tests of the simulator and the shim under the sanitizers, and proof that the sanitizers would have spoken.

The fast tier builds the programs in which threads meet and memory is tight; nightly all of them. One unit per library
makes the first build quick; later runs compile what has changed.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import native_builds
import pytest

SEEDED = {"thread": ("race", "ThreadSanitizer: data race"), "address": ("overflow", "AddressSanitizer: heap-buffer-")}


FAST = ("shim_handles", "shim_calls", "shim_logits", "sim_threads")


def built(sanitizer: str, builds: Path, *targets: str) -> Path:
    """The build's folder; debug, so that the call order is checked too."""
    return native_builds.build(
        native_builds.NATIVE, builds / sanitizer, *targets,
        CALEXEC_TESTS="ON", CALEXEC_SANITIZE=sanitizer, CMAKE_BUILD_TYPE="Debug", CMAKE_UNITY_BUILD="ON",
    )  # fmt: skip


def ran(folder: Path, *selection: str) -> set[str]:
    """Runs the selected tests, all of them if none is; the names of those that ran, every one of which passed."""
    flags = ("--output-on-failure", "--no-tests=error")
    said = native_builds.run(native_builds.tool("ctest"), "--test-dir", folder, *flags, *selection)
    return set(re.findall(r"Test +#\d+: (\w+) .*Passed", said))


@pytest.mark.shows("PR5.TSAN")
@pytest.mark.parametrize("sanitizer", SEEDED)
def test_threads_and_tight_memory_are_clean(sanitizer: str, builds: Path) -> None:
    folder = built(sanitizer, builds, *FAST)
    assert ran(folder, "-R", f"^({'|'.join(FAST)})$") == set(FAST)


@pytest.mark.shows("PR5.TSAN")
@pytest.mark.nightly
@pytest.mark.parametrize("sanitizer", SEEDED)
def test_all_are_clean(sanitizer: str, builds: Path) -> None:
    assert ran(built(sanitizer, builds)) > set(FAST)


@pytest.mark.parametrize("sanitizer", SEEDED)
def test_what_is_seeded_is_found(sanitizer: str, builds: Path) -> None:
    """Negative control: the same build, with a bug that its sanitizer must name."""
    bug, report = SEEDED[sanitizer]
    program = built(sanitizer, builds, "sim_seeded") / "bin" / "sim_seeded"
    native_builds.run(program, "clean", timeout=60)
    done = subprocess.run([program, bug], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert report in done.stderr
