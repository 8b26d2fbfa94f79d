"""F55, F64: what is no number is never a token, and nothing grows with the number of jobs.

The logits are spoiled where the device writes them, after Wait() and before they are judged; the device itself is well.
"""

from __future__ import annotations

import gc
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import asdict, frozen
from executing import READY_S, Bench, executing
from moments import MANIFEST, says, since, until

from runtime.calrt import Library
from runtime.job import JobContext, JobHandle
from runtime.lane import Lane
from runtime.manifest import CalTaskKind
from runtime.timers import Timers

PREFILL = next(m for m in MANIFEST.submodels if m.kind is CalTaskKind.PrefillIds)
VOCABULARY, TILE = PREFILL.vocabulary, PREFILL.logits_tile_d0
NOT_FINITE = {  # as BF16: exponent all ones
    "NaN": 0x7FC0, "negative NaN": 0xFFC0, "signalling NaN": 0x7F81, "last NaN": 0x7FFF, "Inf": 0x7F80, "-Inf": 0xFF80,
}  # fmt: skip
FINITE = {"greatest": 0x7F7F, "least": 0xFF7F, "-0": 0x8000, "subnormal": 0x0001}
PLACES: dict[str, Any] = {"first": 0, "middle": VOCABULARY // 2, "last": VOCABULARY - 1, "all": slice(None)}
MANY = {"recoveries_max": 1000, "backoff_ms": 5}
OTHER = list(b"another prompt")


# -- F55: NaN and Inf ------------------------------------------------------------------------------------------------
@contextmanager
def spoiled(row: int, place: Any, bits: int) -> Iterator[None]:
    """The next output that is judged has these bits there."""
    read = Lane.read

    def spoil(lane: Lane, count: int, target: Any) -> Any:
        lane.host_logits[row, place] = bits
        Lane.read = read  # type: ignore[method-assign]
        return read(lane, count, target)

    Lane.read = spoil  # type: ignore[method-assign]
    try:
        yield
    finally:
        Lane.read = read  # type: ignore[method-assign]


def prompt_for(row: int) -> list[int]:
    """The shortest prompt whose last token's logits are in this row of the tile."""
    return [(7 * i + row) % VOCABULARY for i in range(row + 1)]


def check_not_delivered(b: Bench, row: int, place: Any, bits: int) -> None:
    """No logits, no commit, a new generation; then the same sequence begins anew and is right."""
    mark, generation, prompt = len(b.calls()), b.executor.calls.generation_id, prompt_for(row)
    with spoiled(row, place, bits):
        result = b.run(1, prompt)
    assert result.logits is None, "not delivered"
    assert (result.status.ok, result.status.code_name) == (False, "ShimNotFinite")
    assert b.executor.wait_ready(READY_S)
    seen = since(b, mark)
    sequence = next(c.a for c in seen if c.call == "bind_sequence")
    applied = [c.b for c in seen if c.call == "apply" and c.a == sequence]
    assert applied == [len(prompt)], "reserved once, and never committed"
    assert b.executor.calls.generation_id == generation + 1
    assert not b.run(1, [5], past=len(prompt)).status.ok, "nobody goes on from there"
    assert says(b, b.run(1, prompt), prompt)
    assert b.executor.seq_rm(1).ok


@pytest.mark.shows("I6")
@pytest.mark.parametrize("value", NOT_FINITE)
def test_f55_anywhere_in_the_row(library: Library, value: str) -> None:
    with executing(library, **MANY) as b:
        for place in PLACES.values():
            check_not_delivered(b, 3, place, NOT_FINITE[value])


@pytest.mark.parametrize("value", ["NaN", pytest.param("-Inf", marks=pytest.mark.nightly)])
def test_f55_in_every_row_of_the_tile(library: Library, value: str) -> None:
    with executing(library, **MANY) as b:
        for row in range(TILE):
            check_not_delivered(b, row, PLACES["last"], NOT_FINITE[value])


def test_f55_in_a_decode(library: Library) -> None:
    """Which has one row."""
    with executing(library, **MANY) as b:
        prompt = prompt_for(2)
        (first,) = b.tokens(1, prompt, 1)
        with spoiled(0, 0, NOT_FINITE["NaN"]):
            result = b.run(1, [first], past=len(prompt))
        assert (result.logits, result.status.code_name) == (None, "ShimNotFinite")
        assert b.executor.wait_ready(READY_S)
        assert b.tokens(2, prompt, 2) == b.oracle.tokens(prompt, 2)


@pytest.mark.parametrize("value", ["NaN", "-Inf"])
def test_f55_another_row_of_the_tile_is_nobodys(library: Library, value: str) -> None:
    """Only the row of the last token is read and judged: what a device leaves in the others, which no job asked for, is
    no error, and the job's own logits are right to the bit."""
    with executing(library) as b:
        for row in (0, 7, TILE - 1):
            others = [i for i in range(TILE) if i != row]
            with spoiled(others, slice(None), NOT_FINITE[value]):  # type: ignore[arg-type]
                assert says(b, b.run(1, prompt_for(row)), prompt_for(row))
            assert b.executor.seq_rm(1).ok
        assert b.executor.calls.generation_id == 1


@pytest.mark.parametrize("value", FINITE)
def test_f55_control_finite_values_are_delivered(library: Library, value: str) -> None:
    with executing(library) as b:
        with spoiled(3, 5, FINITE[value]):
            result = b.run(1, prompt_for(3))
        assert result.status.ok
        assert result.logits is not None
        assert int(result.logits[5:6].view(np.uint32)[0]) >> 16 == FINITE[value]


def test_f55_control_nobody_looks(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime import lane

    convert = lane.convert
    monkeypatch.setattr(lane, "convert", lambda *a, **k: (0, convert(*a, **k)[1]))
    with executing(library, **MANY) as b, pytest.raises(AssertionError, match="not delivered"):
        check_not_delivered(b, 3, 0, NOT_FINITE["NaN"])


def test_f55_control_the_wrong_row_is_judged(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Lane.read
    with executing(library, **MANY) as b, monkeypatch.context() as patch:
        patch.setattr(Lane, "read", lambda lane, count, target: read(lane, count % TILE + 1, target))
        with pytest.raises(AssertionError, match="not delivered"):
            check_not_delivered(b, 3, 0, NOT_FINITE["NaN"])


# -- F64: nothing grows ----------------------------------------------------------------------------------------------
KEPT = {"trace_limit": 512}  # records of the simulator, which would grow otherwise
RESET_EVERY = 150  # tokens of a sequence, which then begins anew
GROWTH_MAX = {"rss_mib": 6.0, "objects": 2000, "files": 0, "threads": 0, "buffers": 0, "buffers_created": 0, "jobs": 0}


@frozen
class Size:
    """Of the process, of the executor, and of what it has at the device."""

    rss_mib: float
    objects: int
    files: int
    threads: int
    buffers: int
    buffers_created: int
    jobs: int


def size(b: Bench) -> Size:
    until(lambda: not b.executor.records.jobs)
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return Size(
        pages * os.sysconf("SC_PAGESIZE") / 2**20, len(gc.get_objects()), len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")), b.sim.truth("buffers_alive"), b.sim.truth("buffers_created"),
        len(b.executor.records.jobs),
    )  # fmt: skip


def decode(b: Bench, tokens: int, each: Callable[[], Any] = lambda: None) -> None:
    """So many jobs, each a token that the oracle says; sequences come and go."""
    prompt = list(b"flat")
    expected = b.oracle.tokens(prompt, RESET_EVERY)
    for first in range(0, tokens, RESET_EVERY):
        count = min(RESET_EVERY, tokens - first)
        values, past = prompt, 0
        for i in range(count):
            result = b.run(first, values, past)
            assert result.logits is not None, str(result.status)
            assert int(result.logits.argmax()) == expected[i]
            past, values = past + len(values), [expected[i]]
            each()
        assert b.executor.seq_rm(first).ok


def check_flat(b: Bench, tokens: int, each: Callable[[], Any] = lambda: None) -> None:
    """From here on nothing grows, but for noise, over so many jobs."""
    before = size(b)
    decode(b, tokens, each)
    after = size(b)
    grown = {name: value - getattr(before, name) for name, value in asdict(after).items()}
    found = {name: by for name, by in grown.items() if by > GROWTH_MAX[name]}
    assert not found, f"it grew: {found}"


WARM = 1000  # jobs until the journal's ring and every cache are full


@pytest.mark.shows("PR5.loops", "§13.2-2")
def test_f64_flat_over_many_jobs(library: Library) -> None:
    with executing(library, KEPT) as b:
        decode(b, WARM)
        check_flat(b, 1000)
        assert b.executor.journal.total > len(b.executor.journal.entries()), "its ring was full"
    assert b.sim.violations() == ()


@contextmanager
def uncollected() -> Iterator[None]:
    """Python's collector of rings does not come by."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def check_dropped_at_once(b: Bench) -> None:
    """What a client drops is gone, without the collector; only an agent that sleeps remembers its last job."""
    with uncollected():
        kept = [weakref.ref(b.run(1, [7], past).logits) for past in range(40)]
        until(lambda: not b.executor.records.jobs)
        kept = kept[: -len(b.executor.crew.threads)]
        assert [k for k, logits in enumerate(kept) if logits() is not None] == []


def test_f64_logits_that_a_client_drops_are_gone_at_once(library: Library) -> None:
    with executing(library, KEPT) as b:
        check_dropped_at_once(b)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(JobContext, "let_go"), (JobHandle, "let_go"), (Timers, "forget")],
    ids=["the context", "the handle", "a timer"],
)
def test_f64_control_something_keeps_the_job(
    library: Library, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    monkeypatch.setattr(owner, name, lambda *arguments: None)
    with executing(library, KEPT) as b, pytest.raises(AssertionError, match=r"== \[\]"):
        check_dropped_at_once(b)


def leaks_memory() -> Callable[[], Any]:
    """1 MiB at a time, and not of what the process has had before and given back to its own heap."""
    kept: list[mmap.mmap] = []

    def leak() -> None:
        kept.append(mmap.mmap(-1, 2**20))
        kept[-1].write(bytes(2**20))

    return leak


def leaks_objects() -> Callable[[], Any]:
    kept: list[Any] = []
    return lambda: kept.extend([[i] for i in range(200)])


@pytest.mark.parametrize(("leak", "seen"), [(leaks_memory, "rss_mib"), (leaks_objects, "objects")])
def test_f64_control_a_leak_is_seen(library: Library, leak: Callable[[], Callable[[], Any]], seen: str) -> None:
    with executing(library, KEPT) as b, pytest.raises(AssertionError, match=f"'{seen}'"):
        check_flat(b, 20, leak())


def test_f64_control_threads_files_and_handles(library: Library) -> None:
    stop, kept = threading.Event(), []
    with executing(library, KEPT) as b:

        def leak() -> None:
            if not kept:
                calls = b.executor.calls
                kept.append(open(os.devnull, "rb"))  # noqa: SIM115
                kept.append(threading.Thread(target=stop.wait, daemon=True))
                kept[-1].start()
                kept.append(calls.device.input(calls.calbin, 0)[1])

        try:
            with pytest.raises(AssertionError, match="'files': 1, 'threads': 1, 'buffers': 1, 'buffers_created': 1"):
                check_flat(b, 20, leak)
        finally:
            stop.set()
            kept[0].close()
            kept[2].release()
