"""§12's table, row by row, on the real executor over the simulated device.

What is expected comes from the device's own truth, from the trace of the calls it saw, and from the oracle; where the
table names a state of the executor, from the variables that the rulebook declares for it.
"""

from __future__ import annotations

import threading
import time
from math import prod
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from executing import ALL_GOOD, READY_S, SHORT, executing, unused
from manifests import mutated, put, write
from moments import (
    MANIFEST,
    books,
    end,
    lanes,
    last,
    names,
    pool_of,
    reset_held,
    says,
    since,
    standing,
    until,
    waiting,
)

from machines.admission import AdmissionMode
from machines.device import DeviceState
from runtime.calrt import BufStatus, Library
from runtime.config import Config
from runtime.executor import DeviceExecutor, Refused
from runtime.lane import Lane
from runtime.manifest import CalTaskKind, ManifestError
from runtime.status import StatusKind, now_us

PROMPT = list("Grüße".encode())
OTHER = list(b"another prompt")
PREFILL = next(m for m in MANIFEST.submodels if m.kind is CalTaskKind.PrefillIds)
SLOTS = Config(manifest="m").slots
RESERVED = ["can_allocate", "apply"]
PROGRAMMED = ["bind_sequence", "slice_tensor", "slice_tensor", "set_csr", "set_csr"]
UNDONE = ["undo_slice", "undo_slice", "apply"]


def one_wrong(text: str) -> str:
    return text[:-1] + ("x" if text[-1] != "x" else "y")


@pytest.mark.shows("FI01", "S08")
@pytest.mark.parametrize("place", ["exact_name", "token_or_embed.name", "logits.name", "csr_total_seq"])
@pytest.mark.parametrize("submodel", range(3))
def test_fi01_one_wrong_character_in_the_manifest(library: Library, tmp_path: Path, submodel: int, place: str) -> None:
    sim = unused(library)
    path = write(tmp_path, mutated(put(f"submodels.{submodel}.{place}", one_wrong)))
    before = set(threading.enumerate())  # others' that never end, by intent
    with pytest.raises(ManifestError, match=rf"submodels\[{submodel}\].{place} is .*; expected a "):
        DeviceExecutor(Config(manifest=str(path), device=sim.index, **SHORT))
    assert sim.trace() == (), "the device was not even opened"
    assert not [t.name for t in threading.enumerate() if t.name.startswith("calexec") and t not in before]


def test_fi01_control_the_right_manifest_is_configured(library: Library) -> None:
    with executing(library) as b:
        assert b.calls().count("configure") == 1


@pytest.mark.shows("FI02", "S03")
def test_fi02_a_csr_that_does_not_exist(library: Library) -> None:
    with executing(library) as b:
        for lane in lanes(b):
            lane.contract = evolve(lane.contract, csr_cur_seq="no_such_csr")
        mark, before = len(b.calls()), pool_of(b).counts()
        status = b.run(1, PROMPT).status
        assert (status.kind, status.code_name) == (StatusKind.INTERNAL, "IllegalValue")
        assert status.stage == "set CSR no_such_csr"
        seen = since(b, mark)
        assert names(seen)[:-3] == [*RESERVED, *PROGRAMMED[:-1]], "it stops at the first CSR"
        assert names(seen)[-3:] == UNDONE
        assert pool_of(b).counts() == before
        assert b.sim.kv(seen[1].a)[0] == -1


@pytest.mark.shows("FI03")
@pytest.mark.parametrize("where", ["generation", "slot", "slice"])
def test_fi03_a_slice_of_one_byte_too_much(library: Library, where: str) -> None:
    """In a request that is checked, in a job that is prepared, and in the one place that makes the call."""
    tight = evolve(PREFILL, token_or_embed=evolve(PREFILL.token_or_embed, byte_size=4 * len(PROMPT) - 1))
    with executing(library) as b:
        mark, calls = len(b.calls()), b.executor.calls
        match where:
            case "generation":
                assert calls.model is not None
                calls.model = evolve(calls.model, submodels={**calls.model.submodels, tight.kind: tight})
                with pytest.raises(Refused, match=f"outside of {4 * len(PROMPT) - 1} bytes"):
                    b.enqueue(1, PROMPT)
                assert b.calls()[mark:] == []
            case "slot":
                for lane in lanes(b):
                    lane.contract = tight if lane.contract.kind is tight.kind else lane.contract
                status = b.run(1, PROMPT).status
                assert not status.ok
                assert f"outside of {4 * len(PROMPT) - 1} bytes" in status.text
                assert b.calls()[mark:] == [*RESERVED, "apply"], "KV was reserved and given back: no call on a buffer"
                assert b.executor.ready(), "the request's own fault"
            case "slice":
                lane = lanes(b)[0]
                for size in (PREFILL.token_or_embed.byte_size + 1, prod(PREFILL.token_or_embed.shape) + 1, 2**64):
                    failure = lane.slice(PREFILL.token_or_embed, 0, size)
                    assert failure is not None
                    assert failure.code == 0, "nobody was asked"
                assert b.calls()[mark:] == []


@pytest.mark.shows("FI04", "S01", "PR3.deadline")
def test_fi04_no_kv_until_the_deadline(library: Library) -> None:
    retry_ms, wait_ms = 100, 1000
    with executing(library, kv_retry_ms=retry_ms) as b:
        for nth in range(1, 200):
            b.sim.fault("can_allocate", "refuse", nth=nth)
        mark, cpu_s = len(b.calls()), time.process_time()
        handle = b.enqueue(1, PROMPT, deadline_us=now_us() + wait_ms * 1000)
        cpu_s = time.process_time() - cpu_s
        assert end(handle).status.kind is StatusKind.DEADLINE_EXCEEDED
        asked = b.calls()[mark:]
        assert set(asked) == {"can_allocate"}, "no Apply, and nothing is submitted"
        assert 2 <= len(asked) <= wait_ms // retry_ms + 1
        assert len(asked) - b.rules().count("clock.kv_retry") in (0, 1), "once at first, then once for each wake-up"
        assert cpu_s < wait_ms / 1000 / 2, "it sleeps"
        b.sim.faults_clear()
        assert b.tokens(1, PROMPT, 2) == b.oracle.tokens(PROMPT, 2)


@pytest.mark.shows("FI05", "S04")
def test_fi05_busy_rolls_back_and_nobody_waits(library: Library) -> None:
    with executing(library) as b:
        mark, before = len(b.calls()), pool_of(b).counts()
        b.sim.fault("infer", "return", 17, 0)
        status = b.run(1, PROMPT).status
        assert (status.kind, status.code_name) == (StatusKind.UNAVAILABLE, "DeviceBusy")
        until(lambda: pool_of(b).counts() == before and not books(b)["work"])
        seen = since(b, mark)
        assert names(seen) == [*RESERVED, *PROGRAMMED, "infer", *UNDONE]
        assert b.sim.kv(seen[1].a)[0] == -1
        assert b.executor.calls.generation_id == 1
        assert b.tokens(1, PROMPT, 2) == b.oracle.tokens(PROMPT, 2)


@pytest.mark.shows("FI06", "S04", "§8.HTTP.503")
def test_fi06_an_unavailable_device_stops_admission(library: Library) -> None:
    with executing(library) as b:
        b.sim.fault("infer", "return", 18, 0)
        with reset_held(b) as there:
            status = b.run(1, PROMPT).status
            assert (status.kind, status.code_name) == (StatusKind.UNAVAILABLE, "DeviceUnavailable")
            assert there.wait(READY_S), "recovery was not entered"
            found = books(b)
            assert (found["mode"], found["device"]) == (AdmissionMode.Stopped.code, DeviceState.Recovering.code)
            mark = len(b.calls())
            assert "wait" not in names(since(b, last(b, "infer").number)), "what was not submitted is not waited for"
            assert b.run(2, PROMPT).status.kind is StatusKind.UNAVAILABLE
            assert b.calls()[mark:] == [], "no new job reaches the device"
        assert b.executor.wait_ready(READY_S)
        after = b.calls()[mark:]
        assert after.index("reset_ccu") < after.index("configure") < after.index("infer"), "reset, configure, golden"
        assert b.tokens(1, PROMPT, 2) == b.oracle.tokens(PROMPT, 2)


@pytest.mark.shows("FI07", "S05")
def test_fi07_a_timeout_quarantines_buffers_and_kv(library: Library) -> None:
    with executing(library, {"prefill_us": 50_000}) as b:
        b.sim.fault("wait", "timeout")
        mark, pool = len(b.calls()), pool_of(b)
        result = b.run(1, PROMPT)
        assert (result.status.code_name, result.logits) == ("Timeout", None)
        assert b.executor.wait_ready(READY_S)
        assert pool.counts().quarantined == 1
        bound, infer, waited = (
            next(c for c in since(b, mark) if c.call == n) for n in ("bind_sequence", "infer", "wait")
        )
        assert (infer.handle, infer.other) == (bound.handle, waited.handle)
        assert (infer.result, waited.result) == (0, 13)
        later = since(b, waited.number + 1)
        assert not [c for c in later if {c.handle, c.other} & {infer.handle, infer.other}], "its buffers are left alone"
        assert not [c for c in later if c.call in ("apply", "bind_sequence") and c.a == bound.a], "and so is its KV"
        assert not b.run(1, [5], past=len(PROMPT)).status.ok, "nobody goes on from there"
        assert b.tokens(1, PROMPT, 2) == b.oracle.tokens(PROMPT, 2)
    assert b.sim.violations() == ()


@pytest.mark.shows("FI08", "S05")
def test_fi08_an_exception_is_a_failure_though_wait_succeeds(library: Library) -> None:
    with executing(library) as b:
        b.sim.fault("infer", "ccu_exception")
        mark = len(b.calls())
        result = b.run(1, PROMPT)
        assert (result.status.ok, result.logits) == (False, None)
        assert b.executor.wait_ready(READY_S)
        seen = since(b, mark)
        wait, status = (next(c for c in seen if c.call == name) for name in ("wait", "get_status"))
        assert (wait.result, status.result) == (0, BufStatus.DONE_CCU_EXCEPTION)
        assert "tensor_size" not in names(seen)[: names(seen).index("reset_ccu")], "the output is not even looked at"
        assert b.executor.calls.generation_id == 2
        assert b.tokens(1, PROMPT, 2) == b.oracle.tokens(PROMPT, 2)
    assert b.sim.violations() == ()


@pytest.mark.shows("FI09", "I6")
@pytest.mark.parametrize("size", [0, 2 * PREFILL.vocabulary - 2])
def test_fi09_a_short_tensor_is_seen_and_nothing_written(library: Library, size: int) -> None:
    with executing(library) as b:
        b.sim.fault("infer", "short_tensor", size)
        room = np.full(3 * PREFILL.vocabulary, 123.0, np.float32)
        with standing(b):
            handle = b.enqueue(1, PROMPT)
            (context,) = b.executor.records.jobs.values()
            context.logits = room[PREFILL.vocabulary : -PREFILL.vocabulary]
            until(lambda: waiting(b))
        result = end(handle)
        assert (result.status.ok, result.logits) == (False, None)
        assert f"the device wrote {size} bytes" in result.status.text
        assert (room == 123.0).all(), "neither the result nor what is around it"
        assert b.executor.wait_ready(READY_S)
        assert b.tokens(1, PROMPT, 2) == b.oracle.tokens(PROMPT, 2)


@pytest.mark.shows("FI10", "I6", "I8")
@pytest.mark.parametrize("action", ["nan", "inf"])
@pytest.mark.parametrize("index", [0, PREFILL.vocabulary - 1])
def test_fi10_what_is_not_finite_ends_its_generation(library: Library, action: str, index: int) -> None:
    with executing(library) as b:
        b.sim.fault("infer", action, index)
        mark, pool = len(b.calls()), pool_of(b)
        result = b.run(1, PROMPT)
        assert (result.status.code_name, result.logits) == ("ShimNotFinite", None)
        assert b.executor.wait_ready(READY_S)
        assert b.executor.calls.generation_id == 2
        assert pool.counts().quarantined == 1
        after = names(since(b, mark))
        assert after.count("configure") == 1
        assert after[after.index("configure") :].count("infer") >= 2, "golden: a prefill and a decode at least"
        assert b.rules().count("lifecycle.golden.passed") == 2
        assert not b.sim.truth("broken")
        assert b.tokens(1, PROMPT, 2) == b.oracle.tokens(PROMPT, 2)


@pytest.mark.shows("FI11", "PR5.cancel")
def test_fi11_a_cancel_before_the_submit(library: Library) -> None:
    with executing(library) as b:
        before = pool_of(b).counts()
        with standing(b):
            first = b.enqueue(1, PROMPT)
            until(lambda: waiting(b))
            mark = len(b.calls())
            second = b.enqueue(2, OTHER)
            assert second.cancel()
            assert end(second).status.kind is StatusKind.CANCELLED, "while the first is on the device"
            until(lambda: books(b)["work"] == 1)
            seen = since(b, mark)
            assert names(seen) == [*RESERVED, *PROGRAMMED, *UNDONE], "no infer"
            assert (seen[-1].a, seen[-1].b) == (seen[1].a, 0), "the same sequence, to nothing"
        assert says(b, end(first), PROMPT)
        until(lambda: pool_of(b).counts() == before)


@pytest.mark.shows("FI12", "I7", "PR5.cancel")
def test_fi12_a_cancel_after_the_submit(library: Library) -> None:
    with executing(library) as b:
        before = pool_of(b).counts()
        with standing(b):
            handle = b.enqueue(1, PROMPT)
            until(lambda: waiting(b))
            assert handle.cancel()
            result = end(handle)
            assert (result.status.kind, result.logits) == (StatusKind.CANCELLED, None)
            assert b.sim.truth("jobs_running") == 1
            assert waiting(b) == 1, "the answer is there, and the device is waited for all the same"
            assert pool_of(b).counts().free == before.free - 1
        until(lambda: pool_of(b).counts() == before and not books(b)["work"])
        assert end(handle) is result, "dropped: the first answer counts"
        assert b.sim.truth("jobs_completed") == b.sim.truth("jobs_started")
    assert b.sim.violations() == ()
    assert b.sim.truth("buffers_alive") == 0, "after closing"


@pytest.mark.shows("FI13", "PR5.shutdown")
def test_fi13_closing_with_one_queued_and_one_submitted(library: Library) -> None:
    with executing(library, close_ms=20_000) as b:
        closed: list[bool] = []
        with standing(b):
            submitted = b.enqueue(1, PROMPT)
            until(lambda: waiting(b))
            queued = b.enqueue(2, OTHER)
            infers = b.calls().count("infer")
            closing = threading.Thread(target=lambda: closed.append(b.executor.close()), daemon=True)
            closing.start()
            assert not end(queued).status.ok
            with pytest.raises(Refused):
                b.enqueue(3, PROMPT)
            assert b.sim.truth("jobs_running") == 1
            assert (submitted.done(), closed) == (False, []), "what is submitted is waited for"
        assert says(b, end(submitted), PROMPT)
        closing.join(READY_S)
        assert closed == [True]
        assert b.calls().count("infer") == infers, "the queued one never reached the device"
    assert b.sim.violations() == ()
    assert b.sim.truth("buffers_alive") == 0


@pytest.mark.shows("FI14", "I5")
def test_fi14_a_late_completion_touches_no_newer_generation(library: Library) -> None:
    """No reset stops a job on this device; the second submit fails, and the first job is left behind by the reset."""
    facts = {**ALL_GOOD, "reset_stops_dma": False, "reset_is_honest": False, "reset_clears_kv": False}
    more = {"facts": facts, "inflight": 2, "grace_ms": 50, "execution_ms": 60_000}
    with executing(library, {"reset_stops_dma": 0}, **more) as b:
        with standing(b, prefill_us=1_000_000):
            old_pool = pool_of(b)
            old = b.enqueue(1, PROMPT)
            until(lambda: waiting(b))
            b.sim.set(prefill_us=0)
            b.sim.fault("infer", "return", 18, 0)
            assert not b.run(2, OTHER).status.ok
            assert not end(old).status.ok
            until(b.executor.ready, move=lambda: b.sim.advance(1))
            assert b.executor.calls.generation_id == 2
            kv_ids = {c.a for c in b.sim.trace() if c.call == "apply"}

            b.sim.set(prefill_us=5_000_000)
            new = b.enqueue(1, OTHER)
            until(lambda: waiting(b) == 2)
            before, slots, kv_id = books(b), pool_of(b).counts(), last(b, "apply").a
            known = b.executor.calls.kv
            assert known is not None
            kv = known.abstract()
            b.sim.advance(1_500_000)
            until(lambda: "completion.wait.stale" in b.rules())
            assert [c.result for c in b.sim.trace() if c.call == "wait"][-2:] == [0, 0], "it says success"
            after = books(b)
            changed = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
            assert {k for k in changed if k[:2] != ("job", old.job_id)} == {"waits"}
            assert (pool_of(b).counts(), known.abstract()) == (slots, kv)
            assert old_pool.counts().free == 0, "its slot comes back to nobody"
            assert not new.done()
            assert kv_id not in kv_ids, "and its KV has another name"
        assert says(b, end(new), OTHER)
        assert not end(old).status.ok


@pytest.mark.shows("FI15", "PR4.quarantine")
@pytest.mark.parametrize("way", ["forgotten", "refused"])
def test_fi15_a_slot_that_is_still_sliced(library: Library, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    with executing(library) as b:
        with monkeypatch.context() as patch:
            if way == "forgotten":
                patch.setattr(Lane, "undo", lambda lane: None)
            else:
                b.sim.fault("undo_slice", "return", 4, 0)
            assert says(b, b.run(1, PROMPT), PROMPT), "the result was good before"
            until(lambda: books(b)["lost_slots"])
        infer = last(b, "infer")
        (slot,) = pool_of(b).quarantined()
        assert slot.sliced
        assert books(b)["free"] == SLOTS - 1
        mark = len(b.calls())
        assert b.tokens(2, OTHER, 3) == b.oracle.tokens(OTHER, 3)
        used = {h for c in since(b, mark) for h in (c.handle, c.other)}
        assert not used & {infer.handle, infer.other}, "it is lent to nobody"
        assert b.executor.calls.generation_id == 1
