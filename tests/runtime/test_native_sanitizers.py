"""The C++ tests of the simulator and the shim under the sanitizers, and proof that the sanitizers would have spoken.

The first run compiles for some twenty seconds per sanitizer (one unit per library makes it quick); later runs compile
what has changed.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import native_builds
import pytest

SEEDED = {"thread": ("race", "ThreadSanitizer: data race"), "address": ("overflow", "AddressSanitizer: heap-buffer-")}


@pytest.fixture(scope="module", params=SEEDED)
def sanitized(request: pytest.FixtureRequest, builds: Path) -> tuple[str, Path]:
    """(sanitizer, the build's folder); debug, so that the call order is checked too."""
    folder = native_builds.build(
        native_builds.NATIVE, builds / request.param,
        CALEXEC_TESTS="ON", CALEXEC_SANITIZE=request.param, CMAKE_BUILD_TYPE="Debug", CMAKE_UNITY_BUILD="ON",
    )  # fmt: skip
    return request.param, folder


def test_clean(sanitized: tuple[str, Path]) -> None:
    """Every C++ test, the simulator's and the shim's."""
    _, folder = sanitized
    said = native_builds.run("ctest", "--test-dir", folder, "--output-on-failure", "--no-tests=error", "-j2")
    ran = set(re.findall(r"Test +#\d+: (\w+)", said))
    assert {"shim_handles", "shim_calls", "shim_logits", "sim_threads"} <= ran


def test_what_is_seeded_is_found(sanitized: tuple[str, Path]) -> None:
    """Negative control: the same build, with a bug that its sanitizer must name."""
    sanitizer, folder = sanitized
    bug, report = SEEDED[sanitizer]
    program = folder / "bin" / "sim_seeded"
    native_builds.run(program, "clean", timeout=60)
    done = subprocess.run([program, bug], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert report in done.stderr
