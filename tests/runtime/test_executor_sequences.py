"""Sequences come and go without end: what was removed leaves nothing behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from executing import Bench, executing

from runtime.calrt import Library
from runtime.job import InferenceResult
from runtime.run import books
from runtime.status import StatusKind

PROMPT = list(b"hello")
SMALL = {"jobs_max": 3, "sequences_max": 2}


def left(b: Bench) -> tuple[int, int, int]:
    """(records, KV that nobody holds, CalRT's numbers), once the last job has gone too."""
    for _ in range(2000):
        if not b.executor.engine.read(lambda s: len(s.job_elements) + len(s.seq_elements)):
            break
        threading.Event().wait(0.005)
    records, kv_free = b.executor.engine.read(lambda s: (len(s.seq_elements), s.kv_free))
    return records, kv_free, len(b.executor.calls._kv_ids)


def test_removed_sequences_make_room_for_others(library: Library) -> None:
    """More than jobs_max and sequences_max together; each is a record, KV, and a number."""
    with executing(library, **SMALL) as b:
        for seq_id in range(12):
            assert b.run(seq_id, PROMPT).status.ok
            assert b.executor.seq_rm(seq_id).ok
        assert left(b) == (0, SMALL["sequences_max"], 0)
        assert b.tokens(3, PROMPT, 3) == b.oracle.tokens(PROMPT, 3), "a number that was used before"


def test_a_removal_while_a_job_names_the_sequence_again(library: Library) -> None:
    """It is told Busy, and the job's sequence is still known afterwards."""
    with executing(library, {"decode_us": 50_000}, **SMALL) as b:
        assert b.run(1, PROMPT).status.ok
        handle = b.enqueue(1, b.oracle.tokens(PROMPT, 1), past=len(PROMPT))
        assert b.executor.seq_rm(1).kind is StatusKind.UNAVAILABLE
        result = handle.wait_until(None)
        assert result is not None
        assert result.status.ok
        assert b.run(1, b.oracle.tokens(PROMPT, 2)[1:], past=len(PROMPT) + 1).status.ok


def test_without_removals_there_is_a_limit(library: Library) -> None:
    """Negative control: KV is what runs out; sequences that never got any leave no more records than there may be."""
    with executing(library, admission_ms=30, **SMALL) as b:
        kinds = [b.run(seq_id, PROMPT).status.kind for seq_id in range(9)]
        assert kinds == [StatusKind.OK] * 2 + [StatusKind.DEADLINE_EXCEEDED] * 7
        assert len(b.executor.records.sequences) <= sum(SMALL.values())
        assert b.executor.seq_rm(8).ok
        assert b.executor.seq_rm(0).ok
        assert b.run(8, PROMPT).status.ok


def test_a_removal_before_a_job_began_its_sequence(library: Library) -> None:
    """There is nothing to remove yet; what the job then makes of the sequence stays."""
    with executing(library, **SMALL) as b:
        for nth in range(1, 4):
            b.sim.fault("can_allocate", "refuse", nth=nth)
        results: list[InferenceResult] = []
        client = threading.Thread(target=lambda: results.append(b.run(1, PROMPT)), daemon=True)
        client.start()
        while "admission.reserve.refused.prefill" not in b.rules():
            threading.Event().wait(0.002)
        assert b.executor.seq_rm(1).ok
        client.join(20)
        assert [r.status.kind for r in results] == [StatusKind.OK]
        assert b.run(1, b.oracle.tokens(PROMPT, 1), past=len(PROMPT)).status.ok
        assert b.executor.seq_rm(1).ok
        assert left(b) == (0, SMALL["sequences_max"], 0)


def test_a_job_with_a_wrong_length_leaves_the_sequence_as_it_is(library: Library) -> None:
    """It is refused before any call: an Apply of its length, or going back to it, would change what is committed."""
    with executing(library) as b:
        said = b.oracle.tokens(PROMPT, 3)
        assert b.run(1, PROMPT).status.ok
        for past in (len(PROMPT) - 1, len(PROMPT) + 1):
            calls = len(b.calls())
            status = b.run(1, [7], past=past).status
            assert not status.ok
            assert status.stage == "past_len"
            assert b.calls()[calls:] == [], "CalRT was not called"
        result = b.run(1, said[:2], past=len(PROMPT))
        assert result.status.ok, str(result.status)
        assert result.logits is not None
        assert int(result.logits.argmax()) == said[2]
        assert b.executor.calls.generation_id == 1
    assert b.sim.violations() == ()


def test_jobs_on_sequences_that_there_are_not_leave_nothing(library: Library) -> None:
    """Whoever continues sequences that nobody began must not use up the records of those who begin some."""
    with executing(library, **SMALL) as b:
        assert b.run(1, PROMPT).status.ok
        for number in range(10, 10 + 3 * b.executor.records.sequences_max):
            assert not b.run(number, [7], past=3).status.ok
        assert len(b.executor.records.sequences) <= b.executor.records.sequences_max
        assert b.run(2, PROMPT).status.ok
        following = b.run(1, b.oracle.tokens(PROMPT, 1), past=len(PROMPT))
        assert following.status.ok, "what holds KV is not forgotten"
        assert books(b.executor) == ()


@pytest.mark.parametrize("number", [-1, 2**31, None, "1", 1.0, [1]])
def test_what_is_no_sequence_is_not_removed(library: Library, number: Any) -> None:
    """§3 forbids to do nothing and call it success: -1 is llama's "all of them"."""
    with executing(library) as b:
        assert b.run(1, PROMPT).status.ok
        status = b.executor.seq_rm(number)
        assert status.kind is StatusKind.INVALID_ARGUMENT
        assert "allowed: " in status.text
        assert b.run(1, b.oracle.tokens(PROMPT, 1), past=len(PROMPT)).status.ok
