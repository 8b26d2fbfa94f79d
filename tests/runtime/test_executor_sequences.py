"""Sequences come and go without end: what was removed leaves nothing behind."""

from __future__ import annotations

import threading

from executing import Bench, executing

from runtime.calrt import Library
from runtime.executor import Refused
from runtime.job import InferenceResult
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
    """Negative control: records are what runs out, also of sequences that never got KV."""
    with executing(library, admission_ms=30, **SMALL) as b:
        kinds = []
        for seq_id in range(6):
            try:
                kinds.append(b.run(seq_id, PROMPT).status.kind)
            except Refused as refused:
                kinds.append(refused.status.kind)
        assert kinds == [StatusKind.OK] * 2 + [StatusKind.DEADLINE_EXCEEDED] * 3 + [StatusKind.RESOURCE_EXHAUSTED]
        assert b.executor.seq_rm(4).ok
        assert b.executor.seq_rm(0).ok
        assert b.run(5, PROMPT).status.ok


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
