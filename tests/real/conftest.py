"""The shipped executor under the scheduler of checker.real. The kits are those of tests/runtime."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))  # seeded_bugs.py: shared, not copied
