"""F40, F42, F44, F45: a device that is not what it says, generations that are not ready, codes that are told apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from driver import Driver, driving
from executing import READY_S, SHORT, Bench, executing, unused
from moments import end, last, names, since, until

from runtime.calbin import sample
from runtime.calrt import Library
from runtime.config import Config
from runtime.executor import DeviceExecutor, Refused
from runtime.golden import DECODES
from runtime.lane import Lane
from runtime.manifest import CalTaskKind
from runtime.oracle import Oracle
from runtime.prepare import program
from runtime.status import Status, StatusKind
from tests.machines.test_errors import SPECIFIED

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
RESETS = ("reset_ccu", "reset_configuration", "reset")
GOLDEN_RUNS = 1 + DECODES


# -- F40: reset says success, and the card stays poisoned ------------------------------------------------------------
def poison(b: Bench) -> None:
    """The card is broken, and no reset that there will be is one."""
    for name in RESETS:
        for nth in range(1, 20):
            b.sim.fault(name, "ignore", nth=nth)
    b.sim.fault("infer", "nan")
    assert not b.run(1, PROMPT).status.ok


def check_given_up(b: Bench) -> None:
    """Bounded attempts, each with its golden run; then Failed for ever, and everybody is answered."""
    mark = len(b.calls())
    poison(b)
    waiting = [b.enqueue(i, OTHER) for i in (2, 3)]
    assert not b.executor.wait_ready(READY_S), "it does not serve on a poisoned card"
    assert all(not end(h).status.ok for h in waiting)
    seen = names(since(b, mark))
    assert seen.count("configure") == b.executor.config.recoveries_max, "bounded attempts"
    assert seen.count("infer") == 1 + GOLDEN_RUNS * seen.count("configure"), "each with a golden run, and no job"
    assert b.sim.truth("broken") == 1
    calls = b.calls()
    assert end(b.enqueue(4, OTHER)).status.kind is StatusKind.UNAVAILABLE
    assert b.calls() == calls, "and it stays so, without another call"


@pytest.mark.parametrize("recoveries", [1, 2, 3])
def test_f40_a_card_that_stays_poisoned(library: Library, recoveries: int) -> None:
    with executing(library, recoveries_max=recoveries) as b:
        check_given_up(b)
        assert not b.executor.close()


def test_f40_a_card_that_lied_once(library: Library) -> None:
    """The golden run sees it, and the next rung is a reset that is one."""
    with executing(library) as b:
        for name in RESETS[:2]:  # the second is also a part of configuring
            b.sim.fault(name, "ignore")
        b.sim.fault("infer", "nan")
        assert not b.run(1, PROMPT).status.ok
        assert b.executor.wait_ready(READY_S)
        assert b.rules().count("lifecycle.golden.failed") == 1
        assert (b.executor.calls.generation_id, b.sim.truth("broken")) == (3, 0)
        assert b.tokens(1, PROMPT, 3) == b.oracle.tokens(PROMPT, 3)


def test_f40_control_a_golden_run_that_sees_nothing(library: Library) -> None:
    with executing(library) as b:
        b.executor._table["golden"] = lambda nothing: "passed"  # type: ignore[index]
        with pytest.raises(AssertionError, match="poisoned"):
            check_given_up(b)


# -- F42: a submit slips into a half-configured generation -----------------------------------------------------------
BIG = {"recoveries_max": 200, "reset_ms": 20_000, "configure_ms": 20_000, "golden_ms": 20_000, "request_ms_max": 20_000}


def recover(b: Bench) -> None:
    b.sim.fault("infer", "ccu_exception")
    assert not b.run(1, PROMPT).status.ok


def calls_of_a_recovery(b: Bench, d: Driver) -> list[str]:
    """Which calls there are between the drain and Ready, each once."""
    mark = len(d.made)
    recover(b)
    assert b.executor.wait_ready(READY_S)
    made = d.made[mark:]
    first = next(i for i, name in enumerate(made) if name.startswith("device_reset"))
    return list(dict.fromkeys(made[first:]))


def check_gate(b: Bench, d: Driver, call: str, slip: Callable[[Bench], None]) -> None:
    """While the recovery stands in this call, a client asks: it is told so at once, and nothing of it is submitted."""
    d.let_go.clear()
    d.hold_next(call, by="calexec lifecycle")
    recover(b)
    until(lambda: d.held)
    before = b.sim.truth("jobs_started")
    assert not b.executor.ready()
    assert end(b.enqueue(2, OTHER)).status.kind is StatusKind.UNAVAILABLE
    slip(b)
    assert b.sim.truth("jobs_started") == before, "submitted into a generation that is not ready"
    d.let_go.set()
    assert b.executor.wait_ready(READY_S)
    assert b.tokens(2, OTHER, 2) == b.oracle.tokens(OTHER, 2)
    assert b.executor.seq_rm(2).ok


@pytest.mark.shows("I1", "§8.HTTP.503")
def test_f42_at_every_call_of_reset_configure_and_golden(library: Library) -> None:
    with driving(library) as d, executing(library, **BIG) as b:
        found = calls_of_a_recovery(b, d)
        assert {"device_configure", "kv_create", "output_map_buf", "infer", "output_wait", "kv_apply"} <= set(found)
        for call in found:
            check_gate(b, d, call, slip=lambda b: None)
    assert b.sim.violations() == ()


def behind_the_rules(b: Bench) -> None:
    """A submit that asks nobody."""
    pool, kv = b.executor.calls._pool(), b.executor.calls._kv()
    lane = pool.lease().lane(CalTaskKind.PrefillIds)
    kv.kv.apply(77, len(PROMPT))
    assert program(lane, 77, PROMPT, 0) is None
    lane.infer()


def test_f42_control_a_submit_without_the_gate(library: Library) -> None:
    with driving(library) as d, executing(library, **BIG) as b:
        with pytest.raises(AssertionError, match="not ready"):
            check_gate(b, d, "infer", behind_the_rules)
        d.let_go.set()


@pytest.mark.parametrize("call", ["device_configure", "kv_create", "kv_units_total", "input_create", "infer"])
def test_f42_before_the_first_generation(library: Library, call: str) -> None:
    """Wherever the start-up stands, a client is told at once."""
    sim, model = unused(library), sample("tiny")
    with driving(library) as d:
        d.hold_next(call)
        config = Config(manifest=str(model.with_suffix(".json")), device=sim.index, **SHORT)
        with DeviceExecutor(config) as executor:
            b = Bench(executor, sim, Oracle.of_calbin(model))
            until(lambda: d.held)
            assert told(b).kind is StatusKind.UNAVAILABLE
            d.let_go.set()
            assert executor.wait_ready(READY_S)
            assert b.tokens(1, PROMPT, 2) == b.oracle.tokens(PROMPT, 2)


def told(b: Bench) -> Status:
    try:
        return end(b.enqueue(1, PROMPT)).status
    except Refused as refused:
        return refused.status


# -- F44: every code has its own class, and is kept ------------------------------------------------------------------
CLASS_OF = {number: name for name, numbers in SPECIFIED.items() for number in numbers}  # §8
NOT_IN_THE_TABLE = (3, 6, 26, 30, 99, -1, -2, 2**31 - 1, -(2**31))
ALL_CODES = (*CLASS_OF, *NOT_IN_THE_TABLE)
ONE_OF_EACH = (22, 16, 19, 8, 13, 24, 27, 15, 3, 26, -1, 30)
RESET = ("Device", "Unknown")
PREPARES = "bind_sequence"  # a call for the job, before the device has anything to do with it
STAYS = ("Request", "Programming", "Transient")
# §8, last paragraph: what must never be said of it. A timeout is no lack of memory.
HTTP = {14: 400, 13: 504, 1: 429}
UNAVAILABLE, INTERNAL = 503, 500
BY_CLASS = {"Artifact": INTERNAL, "Request": INTERNAL, "Programming": INTERNAL}


def check_code(library: Library, caplog: pytest.LogCaptureFixture, stage: str, code: int) -> None:
    """One job meets the code; its client and the log are told the raw one, with its class; the device is treated so."""
    kind = CLASS_OF.get(code, "Unknown")
    caplog.clear()
    with executing(library, backoff_ms=5) as b:
        mark = len(b.calls())
        b.sim.fault(stage, "return", code, 1 if stage == "wait" else 0)
        status = b.run(1, PROMPT).status
        assert status.code == code, "the raw code is kept"
        assert status.http == HTTP.get(code, BY_CLASS.get(kind, UNAVAILABLE)), f"{status.http} for {kind}"
        until(lambda: [r for r in caplog.records if "job 1," in r.getMessage()])
        lines = [r.getMessage() for r in caplog.records if "job 1," in r.getMessage()]
        assert any(f" {code} " in line and f"({kind})" in line for line in lines), f"the log says {lines}"
        ready = b.executor.wait_ready(READY_S)
        resets = [c for c in names(since(b, mark)) if c in RESETS]
        if stage == PREPARES and kind in STAYS:
            assert (ready, resets, b.executor.calls.generation_id) == (True, [], 1), "no reset for it"
        elif kind == "Compatibility" and stage == "infer":
            assert (ready, resets) == (False, []), "a person must repair it"
        elif kind in RESET:
            assert ready, "recovered"
            assert resets, "by a reset"
        if kind == "Programming" and b.executor.calls.generation_id == 1:
            with pytest.raises(Refused, match="switched off"):  # §8: what it was about, in this generation
                b.enqueue(2, OTHER)
        elif ready:
            assert b.tokens(2, OTHER, 2) == b.oracle.tokens(OTHER, 2)
    assert b.sim.violations() == ()


@pytest.mark.parametrize(
    ("stage", "code"), [*(("infer", code) for code in ONE_OF_EACH), *((PREPARES, code) for code in (22, 13, 27, 24))]
)
def test_f44_codes_of_each_class(library: Library, caplog: pytest.LogCaptureFixture, stage: str, code: int) -> None:
    check_code(library, caplog, stage, code)


@pytest.mark.nightly
@pytest.mark.parametrize("stage", ["infer", "wait", PREPARES])
@pytest.mark.parametrize("code", ALL_CODES)
def test_f44_every_code(library: Library, caplog: pytest.LogCaptureFixture, stage: str, code: int) -> None:
    check_code(library, caplog, stage, code)


def test_f44_every_code_is_in_the_list() -> None:
    assert set(range(1, 30)) <= set(ALL_CODES)
    assert {CLASS_OF.get(code, "Unknown") for code in ONE_OF_EACH} == {*SPECIFIED}


def test_f44_control_a_timeout_told_as_out_of_memory(
    library: Library, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Lane.infer
    monkeypatch.setattr(Lane, "infer", lambda lane: 1 if (code := real(lane)) == 13 else code)
    with pytest.raises(AssertionError, match="raw code"):
        check_code(library, caplog, "infer", 13)


# -- F45: a sticky fatal error ---------------------------------------------------------------------------------------
def sticky(b: Bench, times: int) -> None:
    """From the next infer() on the device is gone, for so many calls."""
    for nth in range(1, times + 1):
        b.sim.fault("infer", "return", 18, 0, nth=nth)


def check_latched(b: Bench, times: int) -> bool:
    """After the error nothing is admitted before a golden run has passed on the device. Whether it served again."""
    mark = len(b.calls())
    sticky(b, times)
    assert not b.run(1, PROMPT).status.ok
    first = last(b, "infer").number if times == 1 else None
    ready = b.executor.wait_ready(READY_S)
    infers = [c.result for c in since(b, mark) if c.call == "infer"]
    assert first is None or infers[0] == 18
    if ready:
        assert infers[-GOLDEN_RUNS:] == [0] * GOLDEN_RUNS, "admission before a golden run had passed"
    else:
        b.sim.faults_clear()  # it would be well again
        calls = b.calls()
        for sequence in (2, 3):
            assert end(b.enqueue(sequence, OTHER)).status.kind is StatusKind.UNAVAILABLE, "it stays latched"
        assert b.calls() == calls
        assert not b.executor.ready()
    return ready


@pytest.mark.parametrize(("times", "served"), [(1, True), (3, True), (4, False), (500, False)])
def test_f45_a_sticky_error_is_latched(library: Library, times: int, served: bool) -> None:
    """Each recovery's golden run meets the error once; there are three."""
    with executing(library, recoveries_max=3) as b:
        assert check_latched(b, times) == served
        if served:
            assert b.tokens(1, PROMPT, 2) == b.oracle.tokens(PROMPT, 2)


def test_f45_control_ready_without_a_golden_run(library: Library) -> None:
    with executing(library, recoveries_max=3) as b:
        b.executor._table["golden"] = lambda nothing: "passed"  # type: ignore[index]
        with pytest.raises(AssertionError, match="before a golden run"):
            check_latched(b, 500)
