"""The specification's own tables as tests, on the executor and the simulated device of tests/runtime."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))  # executing.py, manifests.py: shared, not copied
