"""The simulator audits the host: each kind of violation is seen, an honest host has none, and each of the simulator's
mutants (a check of its own switched off) turns the named check red."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from card import DONE, RAISED, Card, card_of

from runtime.calrt import Library
from runtime.manifest import CalTaskKind


@pytest.fixture
def card(library: Library) -> Any:
    with card_of(library) as card:
        yield card


def an_honest_host_violates_nothing(card: Card) -> None:
    sequence, job = card.prefill(20)
    assert card.complete(job).good
    for past in range(20, 24):
        _, job = card.prefill(1, sequence, past)
        assert card.complete(job).good
        assert (job.logits[job.row].view(np.uint16) == card.oracle.row(card.rig.tokens(0, past + 1))).all()
    assert card.violations() == []


# -- live ranges ------------------------------------------------------------------------------------------------------
def a_changed_input_is_seen(card: Card) -> None:
    """§5.1-4: the host rewrites the tokens while the device reads them."""
    _, job = card.prefill()
    card.sim.advance(100)
    job.keep[0][3] += 1
    card.run_out()
    assert card.violations() == ["input_changed"]


def a_changed_output_is_seen(card: Card) -> None:
    _, job = card.prefill()
    card.to_the_middle_of_the_output()
    job.logits[:8] = 1
    card.run_out()
    assert card.violations() == ["output_changed"]


def memory_that_is_gone_is_seen(card: Card) -> None:
    """S06, F13: the range is unmapped under the device; neither crashes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = card.rig.contract(CalTaskKind.PrefillIds).logits.byte_size
    flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = libc.mmap(None, size, *flags, -1, 0)
    memory = np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)
    card.rig.submit(card.rig.new_sequence(), 0, 16, logits=memory)
    assert libc.munmap(address, size) == 0
    card.run_out()
    assert set(card.violations()) == {"unmapped"}


def a_remapped_buffer_is_seen(card: Card) -> None:
    _, job = card.prefill()
    job.input.map_buf(card.rig.contract(CalTaskKind.PrefillIds).position.name, np.zeros(16, np.int32))
    assert "remapped" in card.violations()


def a_destroyed_handle_is_seen(card: Card) -> None:
    """§5.1-7: resources are not released before the device is done."""
    _, job = card.prefill()
    job.output.release()
    assert "destroyed" in card.violations()


def reused_memory_is_seen(card: Card) -> None:
    """§5.1-3, S06: a second job gets the memory of one in flight."""
    assert card.rig.device.enable_parallel_mode(True) == 0
    _, job = card.prefill()
    card.rig.submit(card.rig.new_sequence(), 0, 16, logits=job.logits)
    assert set(card.violations()) == {"reused"}


# -- values -----------------------------------------------------------------------------------------------------------
def a_wrong_past_length_is_refused(card: Card) -> None:
    """A stale past_len becomes a CCU exception, never a token."""
    job = card.rig.submit(card.rig.new_sequence(), 0, 16, claimed_past=3)
    assert card.complete(job).status == RAISED
    assert card.violations() == ["past_len_mismatch"]


def a_wrong_csr_is_refused(card: Card) -> None:
    """S03: a CSR that does not fit the slices."""
    contract = card.rig.contract(CalTaskKind.PrefillIds)
    sequence = card.rig.new_sequence()

    def infer(model: int, given: Any, taken: Any) -> int:
        assert given.set_csr(contract.csr_cur_seq, 15) == 0
        return card.rig.device.infer(card.rig.calbin, model, given, taken)

    job = card.rig.submit(sequence, 0, 16, infer=infer)
    assert card.complete(job).status == RAISED
    assert "csr_mismatch" in card.violations()


def a_wrong_order_of_calls_is_seen(card: Card) -> None:
    """machines/abi.py, at the device: the shim's release build lets it through."""
    _, job = card.prefill()
    card.run_out()
    assert job.output.tensor_size(card.rig.contract(CalTaskKind.PrefillIds).logits.name)[0] != 0
    assert card.violations() == ["call_order"]


CHECKS: tuple[Callable[[Card], None], ...] = (
    an_honest_host_violates_nothing, a_changed_input_is_seen, a_changed_output_is_seen, memory_that_is_gone_is_seen,
    a_remapped_buffer_is_seen, a_destroyed_handle_is_seen, reused_memory_is_seen, a_wrong_past_length_is_refused,
    a_wrong_csr_is_refused, a_wrong_order_of_calls_is_seen,
)  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_the_audit(card: Card, check: Callable[[Card], None]) -> None:
    check(card)


def test_every_kind_of_violation_is_checked(library: Library) -> None:
    seen = set()
    for check in CHECKS:
        with card_of(library) as card:
            check(card)
            seen |= set(card.violations())
            kinds = set(card.sim.violation_kinds())
    assert seen == kinds


# -- the simulator's mutants (calrt-abi.md): each must turn its check red ---------------------------------------------
MUTANTS = {
    "mutant_any_past_len": a_wrong_past_length_is_refused,
    "mutant_no_checksum": a_changed_input_is_seen,
    "mutant_ignore_csr": a_wrong_csr_is_refused,
    "mutant_forget_live_range": reused_memory_is_seen,
}


def test_every_mutant_has_its_check(card: Card) -> None:
    assert {k.name for k in card.sim.settings() if k.name.startswith("mutant_")} == set(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_turns_its_check_red(library: Library, mutant: str) -> None:
    with card_of(library) as card:
        MUTANTS[mutant](card)
    with card_of(library, **{mutant: 1}) as card, pytest.raises(AssertionError):
        MUTANTS[mutant](card)


@pytest.mark.parametrize("check", [a_changed_output_is_seen, a_destroyed_handle_is_seen], ids=lambda c: c.__name__)
def test_a_mutant_hides_its_whole_kind(library: Library, check: Callable[[Card], None]) -> None:
    mutant = "mutant_no_checksum" if "output" in check.__name__ else "mutant_forget_live_range"
    with card_of(library, **{mutant: 1}) as card, pytest.raises(AssertionError):
        check(card)


# -- the trace --------------------------------------------------------------------------------------------------------
@contextmanager
def traced(card: Card) -> Iterator[list[Any]]:
    before, found = len(card.sim.trace()), []
    yield found
    found += card.sim.trace()[before:]


def test_the_trace_is_what_was_called(card: Card) -> None:
    with traced(card) as calls:
        sequence, job = card.prefill(16)
        card.complete(job)
    names = [c.call for c in calls]
    assert names == [
        "apply", "create_input", "create_output", "map_buf", "map_buf", "slice_tensor", "slice_tensor", "bind_sequence",
        "set_csr", "set_csr", "map_buf", "infer", "wait", "get_status", "destroy", "destroy",
    ]  # fmt: skip
    by_name = {c.call: c for c in calls}
    assert (by_name["apply"].a, by_name["apply"].b, by_name["apply"].result) == (sequence, 16, 1)
    infer = by_name["infer"]
    assert {infer.handle, infer.other} >= {by_name["wait"].handle}
    assert by_name["get_status"].result == DONE
    assert [c.number for c in calls] == list(range(calls[0].number, calls[0].number + len(calls)))
    assert len({c.thread for c in calls}) == 1


def test_the_trace_has_a_limit_and_counts_on(library: Library) -> None:
    with card_of(library, trace_limit=10) as card:
        for _ in range(50):
            card.rig.kv.can_allocate(1)
        kept = card.sim.trace()
        assert len(kept) == 10
        assert kept[-1].number > 50


def test_the_device_counts_its_buffers_and_memory(card: Card) -> None:
    used = card.sim.truth("memory_used")
    assert card.rig.device.memory_used() == (0, used)
    created, alive = card.sim.truth("buffers_created"), card.sim.truth("buffers_alive")
    _, job = card.prefill()
    assert card.sim.truth("buffers_created") == created + 2
    assert card.sim.truth("memory_used") > used
    card.complete(job)
    assert card.sim.truth("buffers_alive") == alive
    for sequence in range(1, 10):
        card.rig.kv.apply(sequence, 0)
    assert card.sim.truth("memory_used") == used, "nothing is left behind"


# -- the stepped clock ------------------------------------------------------------------------------------------------
def test_phases_take_their_time(card: Card) -> None:
    began = card.sim.truth("now_us")
    _, job = card.prefill()
    card.sim.advance(160 + 1000 - 1)
    assert not job.touched()
    card.sim.advance(1 + 800)
    assert job.complete()
    assert card.sim.truth("now_us") == began + 1960
    assert card.rig.finish(job).good
    assert card.sim.truth("busy_us") == 1000


def test_nothing_moves_by_itself(card: Card) -> None:
    _, job = card.prefill()
    assert card.sim.truth("jobs_running") == 1
    assert job.output.wait()[0] != 0
    assert card.sim.truth("jobs_running") == 1


def test_two_engines_overlap_their_transfers(library: Library) -> None:
    """§14: the second job's input and the first one's output move while the other computes."""

    def both(**settings: int) -> int:
        with card_of(library, **settings) as card:
            assert card.rig.device.enable_parallel_mode(True) == 0
            began = card.sim.truth("now_us")
            jobs = [card.prefill()[1] for _ in range(2)]
            card.run_out()
            assert all(card.rig.finish(job).good and card.says(job, 16) for job in jobs)
            return card.sim.truth("now_us") - began

    assert both() == 160 + 1000 + 1000 + 800
    assert both(engines_overlap=0) == 2 * (160 + 1000 + 800)


def test_the_idle_gap_is_measured(card: Card) -> None:
    """Time without a job while one was waiting is none on an idle card; what lies between two jobs is no gap either."""
    _, job = card.prefill()
    card.complete(job)
    card.sim.advance(10_000)
    assert card.sim.truth("idle_gap_us") == 160
