"""The device's record of its jobs: by the stepped clock, each moment is known beforehand."""

from __future__ import annotations

from card import D2H_US, DECODE_US, H2D_US, PREFILL_US, card_of

from runtime.calrt import Library
from runtime.simulator import Ended

PREFILL_ALL_US, DECODE_ALL_US = H2D_US + PREFILL_US + D2H_US, H2D_US + DECODE_US + D2H_US


def test_jobs_are_on_record_from_their_submit_to_their_end(library: Library) -> None:
    with card_of(library) as card:
        card.sim.advance(100)
        sequence, job = card.prefill(16)
        assert card.sim.jobs() == ()  # it has not ended
        card.complete(job)
        card.sim.advance(50)
        card.complete(card.prefill(1, sequence, 16)[1])
        first = Ended(0, 1, 100, 100 + PREFILL_ALL_US, 100 + PREFILL_ALL_US)
        begin_us = first.end_us + 50
        assert card.sim.jobs() == (first, Ended(1, 2, begin_us, begin_us + DECODE_ALL_US, begin_us + DECODE_ALL_US))
        assert card.sim.jobs(1) == card.sim.jobs()[1:]


def test_what_a_reset_kills_has_not_ended_by_itself(library: Library) -> None:
    with card_of(library) as card:
        card.prefill(16)
        card.sim.advance(H2D_US)
        assert card.rig.device.reset() == 0
        card.run_out()
        assert card.sim.jobs() == ()


def test_no_more_are_kept_than_calls(library: Library) -> None:
    with card_of(library) as card:
        for _ in range(3):
            card.complete(card.prefill(4)[1])
        card.sim.set(trace_limit=2)
        assert [job.job for job in card.sim.jobs()] == [2, 3]
