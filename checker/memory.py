"""How much memory this process uses, and how much a run may use: so that a limit, not the system, ends a search."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

PAGE_BYTES = resource.getpagesize()
SHARE = 0.8  # of what is available, for all runs together
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def resident_mb() -> float:
    """Resident memory of this process; its peak where the system does not tell the present value."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 2**20
    except (OSError, IndexError, ValueError):
        unit_bytes = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes / 2**20


def default_limit_mb(workers: int) -> int:
    """What one of `workers` parallel runs may use of this machine (or of its container)."""
    limits = [os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES]
    for path in CGROUP_LIMITS:
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    return int(min(limits) * SHARE / workers / 2**20)
