"""§8's table: every code, at every call about a job that can return one, on the running executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from executing import ALL_GOOD, Bench
from matrix import (
    CLEAN,
    CODES,
    ENDS,
    FAILING,
    FRESH,
    PROMPT,
    RECONFIGURES,
    RESERVED,
    RESETS,
    ROWS,
    RUNGS,
    STAYS,
    TIERED,
    WAITED,
    Benches,
    Planned,
    ask,
    expected,
    read,
    serves,
    settled,
)
from moments import until

from runtime.calrt import Library
from runtime.status import StatusKind


@pytest.fixture(scope="module")
def benches(library: Library) -> Iterator[Benches]:
    with closing(Benches(library)) as there:
        yield there


@pytest.fixture(scope="module")
def trusting(library: Library) -> Iterator[Benches]:
    facts = {**ALL_GOOD, "submit_error_starts_nothing": True}
    with closing(Benches(library, trust_submit=True, facts=facts)) as there:
        yield there


# -- a call about a job ------------------------------------------------------------------------------------------------
def check_way(b: Bench, way: str, generation: int, calls: list[str]) -> None:
    """What became of the device, and whether the next job is served."""
    until(lambda: settled(b))
    resets = [c for c in calls if c in RUNGS]
    now = b.executor.calls.generation_id
    if way == ENDS:
        assert (read(b), resets) == (("Stopped", "Failed"), [])
        assert ask(b, next(FRESH)).kind is StatusKind.UNAVAILABLE
        return
    assert read(b)[1] == "Ready"
    assert now == generation + (way != STAYS)
    assert (calls.count("device_configure") > 0) == (way != STAYS)
    assert bool([c for c in resets if c != "device_reset_configuration"]) == (way == RESETS)


def check_job(benches: Benches, call: str, code: int, mode: str, way: str) -> None:
    b, hand = benches.ready()
    assert serves(b)
    seq_id, held = next(FRESH), next(FRESH)
    assert ask(b, held).ok
    generation = b.executor.calls.generation_id
    hand.modes.clear()
    with hand.returns(Planned(call, code)) as calls:
        status = ask(b, seq_id)
        check_way(b, way, generation, calls)
    assert (status.ok, status.code) == (False, code), "the raw code is kept"
    assert status.http == 504 if code == 13 else status.http >= 400
    assert next(m for rule, m, _ in hand.modes if rule in FAILING) == mode
    if way == ENDS:
        return
    if mode == "Reduced" and way == STAYS:
        assert read(b)[0] == "Reduced"
        hand.advance(b.executor.config.backoff_ms * 1000 - 1)
        assert serves(b), "one job at a time"
        assert read(b)[0] == "Reduced", "the back-off is not over"
        hand.advance(1)
        until(lambda: read(b)[0] == "Open")
    if CODES[code] == "programming" and way == STAYS:
        assert ask(b, next(FRESH)).kind is StatusKind.NOT_SUPPORTED, "the feature is switched off"
        assert ask(b, held, [5], len(PROMPT)).ok, "and no other"
        b.executor.calls.features_off.clear()
    assert serves(b)
    b.executor.seq_rm(held)


@pytest.mark.shows("S03", "S04", "S05")
@pytest.mark.parametrize("code", TIERED)
@pytest.mark.parametrize("call", [*RESERVED, *CLEAN, "infer", *WAITED])
def test_a_call_about_a_job(benches: Benches, call: str, code: int) -> None:
    check_job(benches, call, code, *expected(call, code))


@pytest.mark.parametrize("code", TIERED)
def test_a_submit_that_is_known_to_have_started_nothing(trusting: Benches, code: int) -> None:
    """§8 to the letter, where nothing is in doubt."""
    check_job(trusting, "infer", code, ROWS[CODES[code]].mode, ROWS[CODES[code]].way)


@pytest.mark.parametrize(
    ("call", "code", "mode", "way"),
    [
        ("input_set_csr", 1, "Open", RESETS),
        ("input_set_csr", 17, "Open", STAYS),
        ("input_set_csr", 2, "Stopped", RECONFIGURES),
        ("input_set_csr", 2, "Paused", RESETS),
        ("infer", 18, "Stopped", STAYS),
        ("infer", 4, "Rejected", RESETS),
    ],
)
def test_control_another_table_would_be_seen(benches: Benches, call: str, code: int, mode: str, way: str) -> None:
    with pytest.raises(AssertionError):
        check_job(benches, call, code, mode, way)
    benches.close()
