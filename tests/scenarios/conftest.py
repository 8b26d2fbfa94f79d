"""Failures that systems of this kind had in the field, each as tests named after its number, against the real executor.

The kits are those of tests/runtime (an executor over the simulator) and tests/spec (moments of a running one)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))  # executing.py: shared, not copied
sys.path.insert(0, str(Path(__file__).parents[1] / "spec"))  # moments.py: likewise
