"""What tests share: the installed library, a cache of their own for compiled programs, how often threads switch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from runtime.calrt import Library

pytest_plugins = ("tests.spec.claims",)  # @pytest.mark.shows
SWITCH_S = "CALEXEC_TESTS_SWITCH_S"  # seconds after which Python lets another thread go on


def pytest_configure() -> None:
    if wanted := os.environ.get(SWITCH_S):
        sys.setswitchinterval(float(wanted))


def pytest_report_header() -> str:
    return f"threads switch after {sys.getswitchinterval():.6f} s"


@pytest.fixture(autouse=True, scope="session")
def _cache_of_the_tests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs compiled by tests go to pytest's cache, so that a second run does not compile them again."""
    cache = getattr(request.config, "cache", None)  # absent under `-p no:cacheprovider`
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache.mkdir("programs") if cache else tmp_path_factory.mktemp("programs")))
        yield


@pytest.fixture(scope="session")
def library() -> Library:
    """libcalrt_c.so as installed by `make native`, over the simulator."""
    return Library.load()
