"""Journals of real runs, and the judge of them. The executor over the simulator is that of tests/runtime."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))  # executing.py: shared, not copied

from executing import unused

from runtime.calrt import Library
from runtime.cli import run
from runtime.exits import Exit

Records = list[dict[str, Any]]


@pytest.fixture(scope="session")
def faulty(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a whole `calexec run` under faults, with several generations and cancels."""
    path = tmp_path_factory.mktemp("journals") / "faulty.jsonl"
    device = str(unused(library).index)
    exit_ = run([
        "run", "--model", "tiny", "--device", device, "--limit", "6", "--tokens", "5", "--clients", "2", "--faults",
        "0.06", "--cancel", "0.2", "--seed", "3", "--json", "--journal", str(path),
    ])  # fmt: skip
    assert exit_ is Exit.OK
    return path


@pytest.fixture(scope="session")
def records(faulty: Path) -> Records:
    return [json.loads(line) for line in faulty.read_text(encoding="utf-8").splitlines()]
