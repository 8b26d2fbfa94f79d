"""§10.1, S10: logits are converted straight into their target; no vector of the vocabulary is made on the way.

numpy tells tracemalloc what it allocates, and the C pass allocates nothing: it takes two pointers (calrt_c_logits). So
what the conversion of one row needs besides its target is known to the byte.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from executing import executing
from moments import says
from numpy.typing import NDArray

from runtime.calbin import sample
from runtime.calrt import Library
from runtime.lane import Lane

PROMPT = [1, 2, 3]
SMALL_BYTES = 16_384  # Python's own objects for a call
Read = Callable[[Lane, int, NDArray[np.float32]], Any]


def most_bytes(library: Library, read: Read) -> tuple[int, int]:
    """(what was allocated at most during the conversion of a job's logits, what the row has as FP32)."""
    found: list[int] = []

    def measured(lane: Lane, count: int, target: NDArray[np.float32]) -> Any:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            return read(lane, count, target)
        finally:
            found.append(tracemalloc.get_traced_memory()[1] - before)
            tracemalloc.stop()

    with executing(library, model=sample("qwen3-tile16")) as b, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lane, "read", measured)
        for seq_id in (1, 2):  # the first one warms up
            result = b.run(seq_id, PROMPT)
            assert says(b, result, PROMPT)
        assert result.logits is not None
        return found[-1], result.logits.nbytes


@pytest.mark.shows("S10")
def test_nothing_is_allocated_between_output_and_target(library: Library) -> None:
    bytes_, row_bytes = most_bytes(library, Lane.read)
    assert bytes_ < SMALL_BYTES < row_bytes


def test_control_a_vector_of_the_vocabulary_is_seen(library: Library) -> None:
    """What the code before did: the whole row as FP32, and a copy of it."""

    def by_a_copy(lane: Lane, count: int, target: NDArray[np.float32]) -> None:
        row = lane.host_logits[(count - 1) % lane.contract.logits_tile_d0]
        target[:] = (row.astype(np.uint32) << 16).view(np.float32)

    bytes_, row_bytes = most_bytes(library, by_a_copy)
    assert bytes_ >= row_bytes
