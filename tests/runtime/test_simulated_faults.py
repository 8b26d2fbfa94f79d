"""Every action of the fault plan, at every call that it may be planned for, seen through the C ABI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from card import (
    BUSY,
    D2H_US,
    DONE,
    H2D_US,
    KILLED,
    PREFILL_US,
    RAISED,
    RUNNING,
    TIMEOUT,
    UNAVAILABLE,
    Card,
    card_of,
)  # fmt: skip

from machines.errors import code_named
from runtime.calrt import Library, TaskType
from runtime.manifest import CalTaskKind
from runtime.simulator import SimulatorError
from runtime.vendor_probe.rig import Job, pattern

SHIM_EXCEPTION = code_named("ShimException").number
SOFT_RESET_FAILED = code_named("SoftResetFailed").number


@pytest.fixture
def card(library: Library) -> Any:
    with card_of(library) as card:
        yield card


# -- a code, or an exception, from every call -------------------------------------------------------------------------
def on_input(card: Card, call: Callable[[Any, str], int]) -> int:
    """`call` on an input whose tensor, the second argument, has been mapped."""
    code, handle = card.rig.device.input(card.rig.calbin, 0)
    assert code == 0
    assert handle is not None
    tensor = card.rig.contract(CalTaskKind.PrefillIds).position.name
    with handle:
        return handle.map_buf(tensor, np.zeros(4, np.int32)) or call(handle, tensor)


def set_csr(card: Card) -> int:
    return on_input(card, lambda h, _: h.set_csr(card.rig.contract(CalTaskKind.PrefillIds).csr_cur_seq, 4))


def on_done_output(card: Card, call: Callable[[Any, str], int]) -> int:
    _, job = card.prefill()
    card.run_out()
    assert job.output.wait()[0] == 0
    assert job.output.get_status()[0] == 0
    return call(job.output, card.rig.contract(CalTaskKind.PrefillIds).logits.name)


def reopened(card: Card) -> int:
    card.rig.release_parked()
    card.rig.device.release()
    code, device = card.rig.library.device(card.rig.index)
    if device is None:
        again = card.rig.library.device(card.rig.index)[1]
        assert again is not None
        card.rig.device = again
    else:
        card.rig.device = device
    return code


def configured_again(card: Card) -> int:
    assert card.rig.device.reset() == 0
    return card.rig.device.configure(card.rig.calbin)


def created(result: tuple[int, Any]) -> int:
    """The code; the handle is given back."""
    code, handle = result
    return (handle.release() if handle else 0) or code


def waited(card: Card) -> int:
    _, job = card.prefill()
    card.run_out()
    return job.output.wait()[0]


def status_of_running(card: Card) -> int:
    return card.prefill()[1].output.get_status()[0]


CALLS: dict[str, Callable[[Card], int]] = {
    "open": reopened,
    "configure": configured_again,
    "enable_parallel": lambda c: c.rig.device.enable_parallel_mode(True),
    "infer": lambda c: c.prefill()[1].submit_code,
    "reset_ccu": lambda c: c.rig.device.reset_ccu(),
    "reset_configuration": lambda c: c.rig.device.reset_configuration(),
    "reset": lambda c: c.rig.device.reset(),
    "memory_used": lambda c: c.rig.device.memory_used()[0],
    "create_kv": lambda c: created(c.rig.device.kv()),
    "create_input": lambda c: created(c.rig.device.input(c.rig.calbin, 0)),
    "create_output": lambda c: created(c.rig.device.output(c.rig.calbin, 0)),
    "map_buf": lambda c: on_input(c, lambda h, tensor: 0),
    "slice_tensor": lambda c: on_input(c, lambda h, tensor: h.slice_tensor(tensor, 0, 4)),
    "undo_slice": lambda c: on_input(c, lambda h, tensor: h.slice_tensor(tensor, 0, 4) or h.undo_slice(tensor)),
    "set_csr": set_csr,
    "bind_sequence": lambda c: on_input(c, lambda h, tensor: h.bind_sequence(1)),
    "wait": waited,
    "tensor_size": lambda c: on_done_output(c, lambda h, tensor: h.tensor_size(tensor)[0]),
}  # fmt: skip
# Not an int in the C++ API, so only an exception can come: a planned code has no meaning there.
WITHOUT_A_CODE = {
    "get_status": status_of_running,
    "apply": lambda c: c.rig.kv.apply(1, 16)[0],
    "can_allocate": lambda c: c.rig.kv.can_allocate(1)[0],
    "tokens_per_unit": lambda c: c.rig.kv.tokens_per_unit()[0],
    "units_total": lambda c: c.rig.kv.units_total()[0],
    "memory_used": lambda c: c.rig.device.memory_used()[0],
}


@pytest.mark.parametrize("name", [n for n in CALLS if n not in WITHOUT_A_CODE])
@pytest.mark.parametrize("code", [1, 17, 28, 3, 99])
def test_any_call_may_return_any_code(card: Card, name: str, code: int) -> None:
    assert CALLS[name](card) == 0, "it is well without the fault"
    card.sim.fault(name, "return", code, 0)
    assert CALLS[name](card) == code
    assert card.sim.faults_fired() == 1
    assert any((c.call, c.result) == (name, code) for c in card.sim.trace())


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("name", {**CALLS, **WITHOUT_A_CODE})
def test_any_call_may_throw(card: Card, name: str, kind: int) -> None:
    """§1: every error comes back as a code; no C++ exception, whatever its type, leaves the shim."""
    card.sim.fault(name, "throw", kind)
    assert {**WITHOUT_A_CODE, **CALLS}[name](card) == SHIM_EXCEPTION
    assert card.rig.library.last_error()


def test_the_nth_call_is_meant(card: Card) -> None:
    card.sim.fault("apply", "refuse", nth=3)
    assert [card.rig.kv.apply(1, 16)[1] for _ in range(5)] == [True, True, False, True, True]


def test_a_submit_that_fails_may_have_started(card: Card) -> None:
    """Whatever the fact says, the plan may decide it: b = 1 started, 0 not."""
    for started in (0, 1):
        card.sim.fault("infer", "return", UNAVAILABLE, started)
        sequence, job = card.prefill(16)
        assert job.submit_code == UNAVAILABLE
        card.run_out()
        assert (job.touched(), card.sim.kv(sequence)[0] == 16) == (bool(started), bool(started))


# -- how a job can go wrong -------------------------------------------------------------------------------------------
def hang(card: Card) -> None:
    card.sim.fault("infer", "hang")
    _, job = card.prefill()
    card.run_out()
    card.sim.advance(3_600_000_000)
    assert job.output.get_status() == (0, RUNNING)
    assert job.output.wait()[0] == TIMEOUT
    assert not job.touched()
    assert card.prefill()[1].submit_code == BUSY, "it keeps the compute unit"


def ccu_exception(card: Card) -> None:
    card.sim.fault("infer", "ccu_exception")
    sequence, job = card.prefill()
    card.run_out()
    assert job.output.wait()[0] == 0, "FI08: Wait says success"
    assert job.output.get_status() == (0, RAISED)
    assert card.sim.kv(sequence)[0] < 16


def bad_value(card: Card, action: str, test: Callable[[Any], Any]) -> None:
    vocabulary = card.oracle.vocabulary
    for index in (0, vocabulary // 2, vocabulary - 1):
        card.sim.fault("infer", action, index)
        _, job = card.prefill()
        assert card.complete(job).good, "neither code nor status tells"
        row = job.logits[job.row].view(np.uint16)
        values = (row.astype(np.uint32) << 16).view(np.float32)
        assert np.flatnonzero(test(values)).tolist() == [index]
        assert card.broken()
        assert card.rig.device.reset() == 0
        card.rig.configure()


def nan(card: Card) -> None:
    bad_value(card, "nan", np.isnan)


def inf(card: Card) -> None:
    bad_value(card, "inf", np.isinf)


def short_tensor(card: Card) -> None:
    card.sim.fault("infer", "short_tensor", 100)
    _, job = card.prefill()
    assert card.complete(job).good
    changed = np.flatnonzero(job.logits != pattern(job.logits.size))
    assert 90 < len(changed) <= 100
    assert changed[-1] < 100, "nothing beyond what it says"
    _, job = card.prefill()
    card.sim.fault("infer", "short_tensor", 100)
    card.run_out()
    name = card.rig.contract(CalTaskKind.PrefillIds).logits.name
    assert job.output.wait()[0] == 0
    assert job.output.get_status() == (0, DONE)
    assert job.output.tensor_size(name) == (0, job.logits.nbytes), "the one before the fault"


def late(card: Card) -> None:
    card.sim.fault("infer", "late", 5000)
    _, job = card.prefill()
    card.sim.advance(H2D_US + PREFILL_US + D2H_US + 100)
    assert job.output.wait()[0] == TIMEOUT
    card.sim.advance(5000)
    assert card.rig.finish(job).good
    assert card.says(job, 16)


def double(card: Card) -> None:
    card.sim.fault("infer", "double")
    sequence, job = card.prefill()
    card.run_out()
    assert job.output.wait()[0] == 0
    assert job.output.get_status() == (0, DONE)
    submit_again(card, job, sequence)
    assert job.output.wait()[0] == 0, "the second signal is taken for the next job's"
    assert job.output.get_status() == (0, RUNNING), "the status tells"


def submit_again(card: Card, job: Job, sequence: int) -> None:
    """16 more tokens of the sequence, through the same handles."""
    contract = card.rig.contract(CalTaskKind.PrefillIds)
    card.rig.reserve(sequence, 32)
    job.keep[1] += 16
    assert job.input.set_csr(contract.csr_cur_seq, 16) == 0
    assert job.input.set_csr(contract.csr_total_seq, 32) == 0
    assert card.rig.device.infer(card.rig.calbin, 0, job.input, job.output) == 0


def partial_kv(card: Card) -> None:
    card.sim.fault("infer", "partial_kv")
    sequence, job = card.prefill(16)
    assert card.complete(job).good
    assert card.sim.kv(sequence)[0] == 8
    assert card.complete(card.prefill(16, sequence, 16)[1]).status == RAISED, "the next job finds out"
    assert card.sim.violations() == (), "and the host is not to blame"


def write_after_reset(card: Card) -> None:
    card.sim.fault("infer", "write_after_reset")
    _, job = card.prefill()
    card.to_the_middle_of_the_output()
    assert card.rig.device.reset() == 0
    before = job.snapshot()
    card.run_out()
    assert job.snapshot() != before


def timeout(card: Card) -> None:
    _, job = card.prefill()
    card.run_out()
    card.sim.fault("wait", "timeout")
    assert job.output.wait()[0] == TIMEOUT
    assert card.rig.finish(job).good, "the job was not touched"


def refuse(card: Card) -> None:
    sequence = card.rig.new_sequence()
    card.sim.fault("apply", "refuse")
    card.sim.fault("can_allocate", "refuse")
    free = card.sim.truth("kv_units_free")
    assert card.rig.kv.apply(sequence, 16) == (0, False)
    assert card.rig.kv.can_allocate(1) == (0, False)
    assert card.sim.truth("kv_units_free") == free
    assert card.rig.kv.can_allocate(1) == (0, True)


RUNGS = ("reset_ccu", "reset_configuration", "reset")


def fail(card: Card) -> None:
    for rung in RUNGS:
        card.sim.fault(rung, "fail")
        _, job = card.prefill()
        assert getattr(card.rig.device, rung)() == SOFT_RESET_FAILED
        assert card.complete(job).good, "nothing was done"


def ignore(card: Card) -> None:
    for rung in RUNGS:
        card.sim.fault(rung, "ignore")
        _, job = card.prefill()
        assert getattr(card.rig.device, rung)() == 0
        card.run_out()
        assert job.complete(), "the device did nothing"
        if rung != "reset_ccu":
            card.rig.configure()


ACTIONS: dict[str, Callable[[Card], None]] = {
    f.__name__: f
    for f in (
        hang, ccu_exception, nan, inf, short_tensor, late, double, partial_kv, write_after_reset, timeout, refuse, fail,
        ignore,
    )
}  # fmt: skip


def test_every_action_is_seen(card: Card) -> None:
    assert {a.name for a in card.sim.actions()} == {*ACTIONS, "return", "throw"}


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action(card: Card, action: str) -> None:
    _, job = card.prefill()
    assert card.complete(job).good, "the card is well before"
    ACTIONS[action](card)
    assert card.sim.faults_fired() >= 1


# -- plans ------------------------------------------------------------------------------------------------------------
def test_a_seed_is_a_plan(library: Library) -> None:
    def run(seed: int) -> list[tuple[str, int]]:
        with card_of(library) as card:
            card.sim.fault_seed(seed, 300_000)
            for _ in range(40):
                card.rig.kv.apply(1, 16)
                card.rig.kv.can_allocate(1)
                card.rig.device.reset_ccu()
            assert 12 <= card.sim.faults_fired() <= 60, "about 30 % of 120"
            return [(c.call, c.result) for c in card.sim.trace()]

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (("inffer", "hang"), "inffer"),
        (("infer", "hung"), "hung"),
        (("wait", "hang"), "wait"),
        (("infer", "return", 1, 5), "5"),
    ],
)
def test_a_wrong_plan_is_refused(card: Card, plan: tuple[Any, ...], words: str) -> None:
    with pytest.raises(SimulatorError, match=words):
        card.sim.fault(*plan)


def test_faults_can_be_cleared(card: Card) -> None:
    card.sim.fault("apply", "refuse")
    card.sim.fault_seed(1, 1_000_000)
    card.sim.faults_clear()
    assert card.rig.kv.apply(1, 16) == (0, True)
    assert card.sim.faults_fired() == 0


def test_both_engines_are_needed_for_two_jobs(card: Card) -> None:
    """§6.4: a fixed engine exists in parallel mode only."""
    first, job = card.prefill()
    assert job.submit_code == 0
    assert card.prefill()[1].submit_code == BUSY
    assert card.complete(job).good
    assert card.rig.device.enable_parallel_mode(True) == 0
    infer = card.rig.device.infer_with_fixed_task_type
    jobs = [
        card.rig.submit(
            card.rig.new_sequence(), 0, 16, infer=lambda m, i, o, t=task: infer(card.rig.calbin, m, i, o, t)
        )
        for task in TaskType
    ]
    assert [j.submit_code for j in jobs] == [0, 0]
    assert card.prefill()[1].submit_code == BUSY
    assert [card.complete(j).good for j in jobs] == [True, True]
    assert KILLED
    assert first
