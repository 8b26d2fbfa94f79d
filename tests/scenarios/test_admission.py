"""F29, F31, F32: who waits for KV costs nothing, stands in nobody's way for ever, and is not passed for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from executing import READY_S, Bench, executing
from moments import books, end, says, standing, until, waiting

from runtime.calrt import Library
from runtime.executor import Refused
from runtime.job import InferenceResult
from runtime.kv import KvCoordinator
from runtime.status import StatusKind

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
AT_ONCE_S = 1.0


def aside(b: Bench, seq_id: int, values: list[int], past: int = 0) -> list[InferenceResult]:
    """A client of its own, whose answer will be there."""
    answers: list[InferenceResult] = []
    threading.Thread(target=lambda: answers.append(b.run(seq_id, values, past)), daemon=True).start()
    return answers


# -- F29: larger than all there is -----------------------------------------------------------------------------------
BLOCK_TOKENS = 64
NO_RETRY = {"kv_retry_ms": 60_000}  # a line that waits is woken when something is freed
ONE_BLOCK = {"kv_units": 1, "kv_block_tokens": BLOCK_TOKENS}


def check_refused_at_once(b: Bench, values: list[int], past: int = 0) -> None:
    """While one job is on the device and one in the queue; afterwards both are right."""
    with standing(b):
        first = b.enqueue(1, PROMPT)
        until(lambda: waiting(b))
        second = aside(b, 2, OTHER)
        until(lambda: "admission.reserve.refused.prefill" in b.rules() or b.rules().count("admission.prepare.ok") == 2)
        calls, began_s, said = len(b.calls()), time.monotonic(), ""
        try:
            b.enqueue(3, values, past)
        except Refused as refused:
            said = f"{refused.status.kind.name}: {refused}"
        assert said.startswith(StatusKind.RESOURCE_EXHAUSTED.name), "refused"
        assert f"all KV of the device holds {BLOCK_TOKENS}" in said
        assert time.monotonic() - began_s < AT_ONCE_S, "at once"
        assert len(b.calls()) == calls, "the device was not asked"
    assert says(b, end(first), PROMPT)
    assert b.executor.seq_rm(1).ok
    until(lambda: second)
    assert says(b, second[0], OTHER), "the queue goes on"


@pytest.mark.parametrize(("tokens", "past"), [(BLOCK_TOKENS + 1, 0), (256, 0), (1, BLOCK_TOKENS), (1, 255)])
def test_f29_a_request_larger_than_all_kv(library: Library, tokens: int, past: int) -> None:
    with executing(library, ONE_BLOCK, **NO_RETRY) as b:
        check_refused_at_once(b, [7] * tokens, past)
        assert b.executor.seq_rm(2).ok
        assert b.tokens(4, PROMPT, 1) == b.oracle.tokens(PROMPT, 1)


def test_f29_what_just_fits_is_served(library: Library) -> None:
    with executing(library, ONE_BLOCK, **NO_RETRY) as b:
        values = [i % 200 for i in range(BLOCK_TOKENS)]
        assert says(b, b.run(1, values), values)
        with pytest.raises(Refused, match="all KV"):
            b.enqueue(1, [5], past=BLOCK_TOKENS)


def test_f29_control_it_stands_in_the_line(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KvCoordinator, "impossible", lambda kv, target: None)
    with (
        executing(library, ONE_BLOCK, **NO_RETRY, admission_ms=1500) as b,
        pytest.raises(AssertionError, match="refused"),
    ):
        check_refused_at_once(b, [7] * (BLOCK_TOKENS + 1))


# -- F31: KV is full -------------------------------------------------------------------------------------------------
RETRY_MS = 100
LOOK_S = 1.0
CPU_MAX = 0.2
LINES_MAX = 5
CLIENTS = 4


def check_cheap(b: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """All KV is held, and several clients want some. In a stretch of time little happens."""
    assert b.run(1, PROMPT).status.ok
    answers = [aside(b, 2 + i, OTHER) for i in range(CLIENTS)]
    until(lambda: books(b)["line"] == CLIENTS)
    mark, woken, lines, cpu_s = (
        len(b.calls()),
        b.rules().count("clock.kv_retry"),
        len(caplog.records),
        time.process_time(),
    )
    threading.Event().wait(LOOK_S)
    asked, cpu_s = b.calls()[mark:], time.process_time() - cpu_s
    woken = b.rules().count("clock.kv_retry") - woken
    assert set(asked) <= {"can_allocate", "apply"}
    assert max(asked.count("apply"), asked.count("can_allocate")) <= woken + 1, "once for each wake-up, whoever waits"
    assert 1 <= woken <= LOOK_S * 1000 / RETRY_MS + 1, "and it wakes seldom"
    assert cpu_s < CPU_MAX * LOOK_S, "it sleeps"
    assert len(caplog.records) - lines <= LINES_MAX, "it does not fill the log"
    holder, still = 1, dict(enumerate(answers, 2))
    while still:
        assert b.executor.seq_rm(holder).ok
        until(lambda: any(still.values()))
        holder = next(seq_id for seq_id, answer in still.items() if answer)
        assert says(b, still.pop(holder)[0], OTHER), "as soon as something is freed"


@pytest.mark.shows("S01", "PR3.capacity")
@pytest.mark.parametrize("refuses", ["can_allocate", "apply"])
def test_f31_waiting_for_kv_is_cheap(library: Library, caplog: pytest.LogCaptureFixture, refuses: str) -> None:
    with executing(library, ONE_BLOCK, kv_retry_ms=RETRY_MS, admission_ms=20_000) as b:
        if refuses == "apply":
            b.executor.calls._kv().kv.can_allocate = lambda units: (0, True)  # type: ignore[method-assign]
        check_cheap(b, caplog)


def retries_at_once(patch: pytest.MonkeyPatch, b: Bench) -> None:
    for rule in b.executor.engine.timers.clocks:
        if rule.id == "clock.kv_retry":
            b.executor.engine.timers.clocks[rule] = lambda s, e: 1000


def logs_each_refusal(patch: pytest.MonkeyPatch, b: Bench) -> None:
    reserve = b.executor._table["reserve"]

    def told(job: object) -> str:
        observed = reserve(job)
        b.executor.events.error("refused", "no KV")
        b.executor.events.error("refused still", "no KV")
        return observed

    b.executor._table["reserve"] = told  # type: ignore[index]


def spins_in_reserve(patch: pytest.MonkeyPatch, b: Bench) -> None:
    """S01: tries again and again, inside of one call."""
    one = KvCoordinator.reserve

    def reserve(kv: KvCoordinator, sequence: int, target: int) -> object:
        for _ in range(5):
            one(kv, sequence, target)
        return one(kv, sequence, target)

    patch.setattr(KvCoordinator, "reserve", reserve)


@pytest.mark.parametrize(
    ("mistake", "seen"),
    [
        (retries_at_once, "seldom"),
        pytest.param(logs_each_refusal, "the log", marks=pytest.mark.nightly),
        pytest.param(spins_in_reserve, "each wake-up", marks=pytest.mark.nightly),
    ],
)
def test_f31_control_a_mistake_is_seen(
    library: Library, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, mistake: object, seen: str
) -> None:
    with executing(library, ONE_BLOCK, kv_retry_ms=RETRY_MS, admission_ms=3000) as b:
        with monkeypatch.context() as patch:
            mistake(patch, b)  # type: ignore[operator]
            with pytest.raises(AssertionError, match=seen):
                check_cheap(b, caplog)
        b.executor.close()


# -- F32: overtaking is bounded --------------------------------------------------------------------------------------
HOLDERS = (1, 2)  # sequences that hold all KV, and whose clients always want one more token
NEW = 9
STILL_S = 0.3


@contextmanager
def adversary(b: Bench) -> Iterator[list[int]]:
    """Clients that extend their sequences as fast as they can, and never let go of their KV; how long each job waited
    for admission (us)."""
    waits: list[int] = []
    stop = threading.Event()

    def decode(sequence: int) -> None:
        past = len(PROMPT)
        while not stop.is_set() and past < 250:
            result = b.run(sequence, [5], past)
            if not result.status.ok:
                return
            assert result.timings.admission_us is not None
            waits.append(result.timings.admission_us)
            past += 1

    threads = [threading.Thread(target=decode, args=(s,), daemon=True) for s in HOLDERS]
    for thread in threads:
        thread.start()
    try:
        yield waits
    finally:
        stop.set()
        for thread in threads:
            thread.join(READY_S)


def check_bound(b: Bench, bound: int) -> tuple[int, int]:
    """A job that begins a sequence cannot be admitted while others can: it is passed exactly `bound` times, then nobody
    passes any more, and it is next. (How often, the longest wait of anybody in us.)"""
    for sequence in HOLDERS:
        assert b.run(sequence, PROMPT).status.ok
    until(lambda: not b.executor.records.jobs)
    began = b.executor.engine.journal.total
    answers = aside(b, NEW, OTHER)
    until(lambda: books(b)["line"] == 1)
    with adversary(b) as waits:
        until(lambda: passed(b, began) >= bound)
        threading.Event().wait(STILL_S)
        found = passed(b, began)
        assert found == bound, f"it was overtaken {found} times"
        assert not answers
        assert b.executor.seq_rm(HOLDERS[0]).ok
        until(lambda: answers)
        assert says(b, answers[0], OTHER)
        own = answers[0].timings.admission_us
        assert own is not None
        longest = max([own, *waits])
    assert longest < b.executor.config.admission_ms * 1000, "nobody waits beyond the admission deadline"
    return found, longest


def passed(b: Bench, since: int) -> int:
    """Reservations of others since the job came, which is the first to come after `since`, until its own."""
    count, there = 0, False
    for entry in b.executor.engine.journal.entries():
        if entry.number >= since and entry.rule.startswith("client.arrive.prefill"):
            there = True
        elif there and entry.rule == "admission.reserve.prefill":
            break
        elif there and entry.rule == "admission.reserve.extend":
            count += 1
    return count


@pytest.mark.parametrize(
    "bound", [0, 3, pytest.param(1, marks=pytest.mark.nightly), pytest.param(8, marks=pytest.mark.nightly)]
)
def test_f32_nobody_is_passed_more_often_than_is_proved(
    library: Library, bound: int, record_property: pytest.FixtureRequest
) -> None:
    """The bound is `load.bypass` of the rulebook; the longest wait is reported (`--junit-xml`)."""
    with executing(library, sequences_max=len(HOLDERS), bypass_max=bound, slots=2) as b:
        _, longest_us = check_bound(b, bound)
        record_property("longest admission wait in us", longest_us)  # type: ignore[operator]


def test_f32_control_another_bound_is_seen(library: Library) -> None:
    settings = {"sequences_max": len(HOLDERS), "bypass_max": 9, "admission_ms": 1500}
    with executing(library, **settings) as b, pytest.raises(AssertionError, match="overtaken"):
        check_bound(b, 3)
