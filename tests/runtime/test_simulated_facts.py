"""Every vendor fact is a switch of the simulator, and both of its settings are seen through the C ABI."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from card import DONE, KILLED, RAISED, UNAVAILABLE, Card, card_of

from machines.protocol.params import FACTS
from runtime.calrt import Library


def reset_stops_dma(card: Card) -> bool:
    _, job = card.prefill()
    card.to_the_middle_of_the_output()
    assert card.rig.device.reset() == 0
    before = job.snapshot()
    assert job.touched()
    assert not job.complete()
    card.run_out()
    return job.snapshot() == before


def reset_clears_kv(card: Card) -> bool:
    sequence, job = card.prefill(16)
    assert card.complete(job).good
    assert card.sim.kv(sequence)[0] == 16
    assert card.rig.device.reset() == 0
    length, _ = card.sim.kv(sequence)
    assert length in (-1, 16)
    return length == -1


def reset_is_honest(card: Card) -> bool:
    break_it(card)
    assert card.rig.device.reset() == 0
    repaired = not card.broken()
    assert card.rig.device.reset() == 0
    assert not card.broken(), "the second one is honest"
    return repaired


def break_it(card: Card) -> None:
    card.sim.fault("infer", "ccu_exception")
    _, job = card.prefill()
    assert card.complete(job).status == RAISED
    assert card.broken()


def exception_stops_dma(card: Card) -> bool:
    card.sim.fault("infer", "ccu_exception")
    _, job = card.prefill()
    while job.output.get_status()[1] != RAISED:
        assert card.sim.step()
    before = job.snapshot()
    card.run_out()
    return job.snapshot() == before


def submit_error_starts_nothing(card: Card) -> bool:
    card.sim.fault("infer", "return", UNAVAILABLE, -1)
    sequence, job = card.prefill(16)
    assert job.submit_code == UNAVAILABLE
    return nothing_happened(card, sequence, job.touched)


def busy_starts_nothing(card: Card) -> bool:
    _, running = card.prefill()
    sequence, refused = card.prefill(16)
    assert refused.submit_code == 17, "§8: busy"
    card.run_out()
    assert card.rig.finish(running).good
    return nothing_happened(card, sequence, refused.touched)


def nothing_happened(card: Card, sequence: int, touched: Callable[[], bool]) -> bool:
    card.run_out()
    length = card.sim.kv(sequence)[0]
    assert touched() == (length == 16), "a job that runs writes its output and its KV"
    return not touched()


def leftover_harmless(card: Card) -> bool:
    card.sim.set(reset_stops_dma=0)
    sequence, _ = card.prefill(16)
    card.to_the_middle_of_the_output()
    assert card.rig.device.reset() == 0
    card.rig.configure()
    card.rig.reserve(sequence, 32)
    card.run_out()
    length, _ = card.sim.kv(sequence)
    assert length in (0, -1, 16)
    return length != 16


def golden_sees_broken_device(card: Card) -> bool:
    break_it(card)
    _, short = card.prefill(16)
    assert card.complete(short).status == DONE
    _, long = card.prefill(100)
    assert card.complete(long).status == DONE
    assert not card.says(long, 100), "a broken device is always wrong somewhere"
    return not card.says(short, 16)


def no_late_completion(card: Card) -> bool:
    _, job = card.prefill()
    card.to_the_middle_of_the_output()
    assert card.rig.device.reset() == 0
    code, _ = job.output.wait()
    status = job.output.get_status()[1]
    assert (code, status) in ((0, DONE), (UNAVAILABLE, KILLED))
    assert not job.complete()
    return code != 0


# `process_exit_stops_dma` takes a process of its own: test_vendor_probe.py.
SEEN = (
    reset_stops_dma, reset_clears_kv, reset_is_honest, exception_stops_dma, submit_error_starts_nothing,
    busy_starts_nothing, leftover_harmless, golden_sees_broken_device, no_late_completion,
)  # fmt: skip


def test_every_fact_is_asked() -> None:
    assert {see.__name__ for see in SEEN} | {"process_exit_stops_dma"} == {f.name for f in FACTS}


def test_every_fact_is_a_key_and_holds_by_default(library: Library) -> None:
    with card_of(library) as card:
        keys = {k.name: k for k in card.sim.settings()}
        for fact in FACTS:
            assert (keys[fact.name].default, keys[fact.name].about) == (1, fact.about)


@pytest.mark.parametrize("holds", [1, 0])
@pytest.mark.parametrize("see", SEEN, ids=lambda s: s.__name__)
def test_both_settings_are_seen(library: Library, see: Callable[[Card], bool], holds: int) -> None:
    with card_of(library, **{see.__name__: holds}) as card:
        assert see(card) == bool(holds)


@pytest.mark.parametrize("holds", [1, 0])
def test_an_exception_may_leave_half_of_the_kv(library: Library, holds: int) -> None:
    """§14: whether KV is partly updated when a submitted job fails."""
    with card_of(library, exception_keeps_kv=holds) as card:
        sequence, job = card.prefill(16)
        assert card.complete(job).good
        card.sim.fault("infer", "ccu_exception")
        assert card.complete(card.prefill(8, sequence, 16)[1]).status == RAISED
        assert card.sim.kv(sequence)[0] == (16 if holds else 20)
