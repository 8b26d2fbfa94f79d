"""Tests that need SPIN: where it is demanded, its absence is a failure, not a skipped test."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest


def spin_or_skip(environ: Mapping[str, str], which: Callable[[str], str | None]) -> None:
    if which("spin") is None:
        if environ.get("CALEXEC_REQUIRE_SPIN") == "1":
            pytest.fail("CALEXEC_REQUIRE_SPIN=1, but `spin` is not on PATH")
        pytest.skip("`spin` is not on PATH (system package `spin`)")
