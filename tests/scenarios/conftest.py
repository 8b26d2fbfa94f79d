"""Failures that systems of this kind had in the field, each as tests named after its number, against the real executor.

The kits are those of tests/runtime (an executor over the simulator) and tests/spec (moments of a running one)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for kit in ("runtime", "spec"):
    sys.path.insert(0, str(Path(__file__).parents[1] / kit))  # executing.py, moments.py: shared, not copied

from runtime.calrt import Library  # noqa: E402


@pytest.fixture(scope="session")
def library() -> Library:
    """libcalrt_c.so as installed by `make native`, over the simulator."""
    return Library.load()
