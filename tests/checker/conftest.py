"""Fixtures of the checker's tests."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.checker.second_opinion import spin_or_skip


@pytest.fixture
def spin() -> None:
    """The test needs SPIN."""
    spin_or_skip(os.environ, shutil.which)
