"""What CalRT sees of the executor: which calls, in which order, on which threads, and how many objects (§5.1, §6, S07).

Expected is the specification's own text, step by step, with the calls of the ABI that each step stands for; how many
slices and CSRs there are is the manifest's to say. Seen is the device's trace.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from executing import READY_S, Bench, executing
from moments import MANIFEST, names, since, until

from runtime import golden
from runtime.calrt import Kv, Library
from runtime.engine import MonitorHeld
from runtime.executor import Refused
from runtime.manifest import CalTaskKind, SubmodelContract
from runtime.records import Records
from runtime.simulator import Call

PROMPT = list("Grüße".encode())
# A line of §6.2, §6.4 or §6.5, and what it is on the ABI: calls; {slices} and {csrs}: one for each that there is.
STEPS = (
    ("validate request", ""),
    ("-> exact submodel lookup", ""),
    ("-> deadline/cancel check", ""),
    ("-> admission reserve KV + token budget", "can_allocate apply"),  # §7: first canAllocate(1), then one Apply
    ("-> acquire BufferLease", ""),
    ("-> copy inputs + set slices + set CSR", "bind_sequence {slices} {csrs}"),
    ("-> push submit queue", ""),
    ("const auto rc = calrt::infer(...)", "infer"),
    ("-> OutputBuf::Wait()", "wait"),
    ("-> 读取 OutputBuf::GetStatus()", "get_status"),
    ("-> 检查 tensor shape/size 和 finite logits", "tensor_size"),
    ("-> 直接 BF16 -> 目标 FP32 区", ""),
    ("-> KV commit", "apply"),
    ("-> reset slice/tensors", "{undone}"),
    ("-> promise success", ""),
    ("-> release BufferLease", ""),
)


def specified(contract: SubmodelContract) -> list[str]:
    """The calls of one job, in their order."""
    sliced = sum(tensor.sliceable for tensor in (contract.token_or_embed, contract.position))
    counts = {
        "slices": " ".join(["slice_tensor"] * sliced), "undone": " ".join(["undo_slice"] * sliced),
        "csrs": " ".join("set_csr" for _ in (contract.csr_cur_seq, contract.csr_total_seq)),
    }  # fmt: skip
    return " ".join(calls for _, calls in STEPS).format(**counts).split()


def contract_of(kind: CalTaskKind) -> SubmodelContract:
    (found,) = [m for m in MANIFEST.submodels if m.kind is kind]
    return found


PREFILL, DECODE = contract_of(CalTaskKind.PrefillIds), contract_of(CalTaskKind.Decode)


def arguments(calls: list[Call], contract: SubmodelContract, values: list[int], past: int) -> list[str]:
    """What was wrong in the numbers of one job's calls: lengths, places, and that all are about the same objects."""
    by = {name: [c for c in calls if c.call == name] for name in names(calls)}
    total, (infer,) = past + len(values), by["infer"]
    seen = {
        "canAllocate": [c.a for c in by["can_allocate"]],
        "Apply": [(c.a, c.b) for c in by["apply"]],
        "slices": [(c.text, c.a, c.b) for c in by["slice_tensor"]],
        "CSRs": [(c.text, c.a) for c in by["set_csr"]],
        "one input": {c.handle for n in ("bind_sequence", "slice_tensor", "set_csr", "undo_slice") for c in by[n]},
        "one output": {c.handle for n in ("wait", "get_status", "tensor_size") for c in by[n]},
    }
    kv_id = by["bind_sequence"][0].a
    right = {
        "canAllocate": [1],
        "Apply": [(kv_id, total), (kv_id, total)],
        "slices": [(t.name, 0, len(values)) for t in (contract.token_or_embed, contract.position)],
        "CSRs": [(contract.csr_cur_seq, len(values)), (contract.csr_total_seq, total)],
        "one input": {infer.handle},
        "one output": {infer.other},
    }
    return [f"{what}: {seen[what]}, not {right[what]}" for what in right if seen[what] != right[what]]


@pytest.mark.shows("I6")
def test_the_calls_of_a_prefill_and_of_a_decode(library: Library) -> None:
    with executing(library) as b:
        for contract, values, past in ((PREFILL, PROMPT, 0), (DECODE, [5], len(PROMPT))):
            mark = len(b.calls())
            assert b.run(1, values, past).status.ok
            calls = since(b, mark)
            assert names(calls) == specified(contract)
            assert arguments(calls, contract, values, past) == []


@pytest.mark.shows("PR1.golden")
def test_the_calls_of_the_golden_run(library: Library) -> None:
    """After the configuration: one prefill and greedy decodes, each as any other job, and the sequence is freed."""
    with executing(library) as b:
        seen = b.sim.trace()
        calls = list(seen[names(seen).index("can_allocate") :])
        lengths = [(PREFILL, len(golden.PROMPT), 0)]
        lengths += [(DECODE, 1, len(golden.PROMPT) + i) for i in range(golden.DECODES)]
        for contract, count, past in lengths:
            job, calls = calls[: len(specified(contract))], calls[len(specified(contract)) :]
            assert names(job) == specified(contract)
            assert arguments(job, contract, [0] * count, past) == []
        assert [(c.call, c.b) for c in calls] == [("apply", 0)]


def test_control_a_commit_before_the_wait(library: Library) -> None:
    with executing(library) as b:
        wait: Callable[[Any], str] = b.executor._table["wait"]

        def early(job: Any) -> str:
            b.executor.calls.commit(job)
            return wait(job)

        b.executor._table["wait"] = early  # type: ignore[index]
        mark = len(b.calls())
        assert b.run(1, PROMPT).status.ok
        assert names(since(b, mark)) != specified(PREFILL)
        assert arguments(since(b, mark), PREFILL, PROMPT, 0) != []


# -- threads -----------------------------------------------------------------------------------------------------------
def busy_run(b: Bench, clients: int = 3, jobs: int = 20) -> int:
    """Clients that begin anew whatever happens to them; how many of their jobs succeeded."""
    good: list[int] = []

    def client(number: int) -> None:
        for i in range(jobs):
            seq_id = number * jobs + i
            try:
                ok = b.run(seq_id, PROMPT).status.ok and b.run(seq_id, [5], len(PROMPT)).status.ok
            except Refused:
                ok = False
            good.append(ok)
            if not ok:
                b.executor.wait_ready(READY_S)
            b.executor.seq_rm(seq_id)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return sum(good)


UNREST = {"recoveries_max": 1000, "execution_ms": 150, "grace_ms": 50, "sequences_max": 100}


def strangers(b: Bench) -> list[str]:
    """Calls of infer and Wait that were made by others than the submitter and the wait agents (§5.1-2); a golden run is
    the lifecycle's, from its infer to its Wait."""
    who = {t.native_id: t.name.removeprefix("calexec ").split()[0] for t in b.executor.crew.threads}
    mine = {"infer": ("submitter", "lifecycle"), "wait": ("completion", "lifecycle")}
    calls = [c for c in b.sim.trace() if c.call in mine]
    outputs = {c.other: who.get(c.thread) for c in calls if c.call == "infer"}
    found = [f"{c.call} by {who.get(c.thread)}" for c in calls if who.get(c.thread) not in mine[c.call]]
    for call in calls:
        if call.call == "infer":
            outputs[call.other] = who.get(call.thread)
        elif (who.get(call.thread) == "lifecycle") != (outputs[call.handle] == "lifecycle"):
            found.append(f"a job of the {outputs[call.handle]} is waited for by the {who.get(call.thread)}")
    return found


@pytest.mark.shows("I2")
def test_infer_and_wait_have_their_threads_whatever_happens(library: Library) -> None:
    with executing(library, **UNREST) as b:
        b.sim.fault_seed(7, 10_000)
        for nth in (10, 40):
            b.sim.fault("infer", "ccu_exception", nth=nth)
        good = busy_run(b)
        assert strangers(b) == []
        assert b.executor.calls.generation_id >= 3, "there were recoveries"
        assert good > 20
    assert b.sim.violations() == ()


def test_control_a_submitter_that_waits(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.executor.LATEST_S", 0.2)
    with executing(library, close_ms=100) as b:
        infer, wait = b.executor._table["infer"], b.executor.calls.wait

        def both(job: Any) -> str:
            observed: str = infer(job)
            wait(job)
            return observed

        b.executor._table["infer"] = both  # type: ignore[index]
        b.run(1, PROMPT)
        assert strangers(b) == ["wait by submitter"]


# -- one caller at a time, and none inside the monitor -----------------------------------------------------------------
@contextmanager
def kv_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Pairs of calls into KvManager that overlapped; each takes a moment longer, so that others may come."""
    inside: list[str] = []
    overlaps: list[str] = []
    pause = threading.Event()

    def slowly(name: str) -> Callable[..., Any]:
        call = getattr(Kv, name)

        def made(kv: Kv, *arguments: Any) -> Any:
            overlaps.extend(f"{other} and {name}" for other in tuple(inside))
            inside.append(name)
            pause.wait(0.001)
            try:
                return call(kv, *arguments)
            finally:
                inside.remove(name)

        return made

    with monkeypatch.context() as patch:
        for name in ("apply", "can_allocate"):
            patch.setattr(Kv, name, slowly(name))
        yield overlaps


@pytest.mark.shows("I1")
@pytest.mark.parametrize("locked", [True, False], ids=["locked", "control"])
def test_kv_manager_has_one_caller_at_a_time(library: Library, monkeypatch: pytest.MonkeyPatch, locked: bool) -> None:
    with executing(library, sequences_max=100) as b, kv_calls(monkeypatch) as overlaps:
        if not locked:
            assert b.executor.calls.kv is not None
            b.executor.calls.kv._calls = nullcontext()
        assert busy_run(b, clients=4, jobs=4) > 0
        assert bool(overlaps) == (not locked), overlaps


def watched(monkeypatch: pytest.MonkeyPatch, b: Bench) -> list[str]:
    """Every call of CalRT from now on asks whether its thread is inside the monitor; those that were made."""
    call, made = Library.call, []

    def asking(library: Library, name: str, *arguments: Any) -> int:
        b.executor.engine.must_be_outside()
        made.append(name)
        return call(library, name, *arguments)

    monkeypatch.setattr(Library, "call", asking)
    return made


@pytest.mark.shows("§5.2.lifecycle", "§5.2.admission", "§5.2.pool", "§5.2.submit", "§5.2.completion")
def test_no_call_is_made_inside_the_monitor(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with executing(library, **UNREST) as b:
        made = watched(monkeypatch, b)
        b.sim.fault("infer", "nan", nth=20)
        busy_run(b, jobs=10)
        b.sim.faults_clear()
        assert b.executor.wait_ready(READY_S)
        assert b.executor.close()
        assert b.executor._dead == ""
    assert {"infer", "output_wait", "kv_apply", "device_reset_ccu", "device_configure", "input_release"} <= set(made)


def test_control_a_call_inside_the_monitor(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with executing(library) as b:
        made = watched(monkeypatch, b)
        with pytest.raises(MonitorHeld):
            b.executor.engine.read(lambda s: b.executor.calls.device.memory_used())
        assert made == []


# -- nothing grows -----------------------------------------------------------------------------------------------------
def held(b: Bench) -> dict[str, int]:
    """What a job may take and must give back (S07, F64)."""
    engine = b.executor.engine
    return {
        "buffers created": b.sim.truth("buffers_created"), "buffers": b.sim.truth("buffers_alive"),
        "threads": threading.active_count(), "files": len(os.listdir("/proc/self/fd")),
        "jobs": len(b.executor.records.jobs),
        "records": engine.read(lambda s: len(s.job_elements) + len(s.seq_elements)),
        "armed timers": engine.timers.counts()[0], "CalRT's sequences": len(b.executor.calls._kv_ids),
    }  # fmt: skip


def decode(b: Bench, tokens: int) -> None:
    """So many tokens, on sequences of at most 200."""
    for seq_id in range(-(-tokens // 200)):
        count = min(200, tokens - 200 * seq_id)
        assert b.tokens(seq_id, PROMPT, count) == b.oracle.tokens(PROMPT, count)
        assert b.executor.seq_rm(seq_id).ok
    until(lambda: not b.executor.records.jobs)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.shows("S07", "§13.2-2")
def test_s07_nothing_is_made_for_a_token(library: Library) -> None:
    with executing(library) as b:
        decode(b, 20)
        before = held(b)
        decode(b, 1000)
        assert held(b) == before


@pytest.mark.shows("S07", "§13.2-2")
@pytest.mark.nightly
def test_s07_f64_nothing_grows_over_ten_thousand_tokens(library: Library) -> None:
    """Memory is warm when journal and trace are full; after that a kilobyte for each job would be seen."""
    with executing(library, {"trace_limit": 1000}) as b:
        decode(b, 2000)
        before, bytes_before = held(b), resident_bytes()
        decode(b, 10_000)
        assert held(b) == before
        assert resident_bytes() - bytes_before < 10_000 * 1024


def test_control_s07_a_record_that_stays(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with executing(library) as b:
        decode(b, 2)
        before = held(b)
        monkeypatch.setattr(Records, "try_to_forget", lambda records, job: None)
        assert b.tokens(1, PROMPT, 3)
        after = held(b)
        assert after["jobs"] == before["jobs"] + 3
