"""The libraries that these tests drive: the installed one, and the same shim over a second, scripted SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import native_builds
import pytest
from other_sdk import OtherSdk

from runtime.calrt import Library


@pytest.fixture(scope="session")
def builds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for builds, kept between runs so that only what has changed is compiled."""
    cache = getattr(request.config, "cache", None)  # absent under `-p no:cacheprovider`
    return Path(cache.mkdir("native")) if cache else tmp_path_factory.mktemp("native")


@pytest.fixture(scope="session")
def other_root(builds: Path) -> Path:
    """The second SDK, installed."""
    build = native_builds.build(native_builds.NATIVE / "other_sdk", builds / "other_sdk", CMAKE_BUILD_TYPE="Release")
    native_builds.run(native_builds.tool("cmake"), "--install", build, "--prefix", builds / "other_root")
    return builds / "other_root"


def _shim(builds: Path, other_root: Path, build_type: str) -> Library:
    folder = native_builds.build(
        native_builds.NATIVE, builds / f"over_other_{build_type}", "calrt_c",
        CALRT_ROOT=other_root, CMAKE_BUILD_TYPE=build_type, CALEXEC_TESTS="ON",
    )  # fmt: skip
    return Library.load(folder / "lib" / "libcalrt_c.so")


@pytest.fixture(scope="session")
def over_other(builds: Path, other_root: Path) -> Library:
    """The shim over the second SDK, release build."""
    return _shim(builds, other_root, "Release")


@pytest.fixture(scope="session")
def debug_over_other(builds: Path, other_root: Path) -> Library:
    """The shim over the second SDK, debug build: it enforces the order of calls."""
    return _shim(builds, other_root, "Debug")


@pytest.fixture
def sdk(other_root: Path) -> Iterator[OtherSdk]:
    """The script of the second SDK; empty at first and at last."""
    sdk = OtherSdk(other_root / "lib" / "libcalrt.so")
    sdk.clear()
    yield sdk
    sdk.clear()
