"""What a device computes after an invalid output is suspect (§8), and must not be delivered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from executing import executing

from runtime.calrt import Library
from runtime.status import now_us

PROMPT = list(b"suspect")
PATIENCE_S = 1.0


def test_a_job_that_ran_after_an_invalid_output_is_not_delivered(library: Library) -> None:
    """What comes after the first Wait takes as long as the second job needs to be answered, if it ever is."""
    answered = threading.Event()
    with executing(library) as b:
        calls: Any = b.executor._table
        convert: Callable[[Any], str] = calls["convert"]

        def slowly(job: Any) -> str:
            if job.tag.request.seq_id == 1:
                answered.wait(PATIENCE_S)
            return convert(job)

        calls["convert"] = slowly
        b.sim.fault("infer", "nan")
        first = b.enqueue(1, PROMPT)
        second = b.enqueue(2, PROMPT)
        result = second.wait_until(now_us() + 5_000_000)
        answered.set()
        assert result is not None
        assert first.wait_until(None) is not None
        if result.logits is not None:
            assert int(result.logits.argmax()) == b.oracle.tokens(PROMPT, 1)[0], "computed by a broken device"
