"""§8's table at the calls of a recovery; and what its actions say: roll back, back off, switch off, record."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from attrs import evolve
from executing import READY_S, Bench
from matrix import (
    CODES,
    CONFIGURED,
    ENDS,
    FRESH,
    GOLDEN,
    PROMPT,
    ROWS,
    RUNGS,
    Benches,
    Hand,
    Planned,
    ask,
    read,
    serves,
    settled,
)
from moments import until

from runtime.calbin import Sample, files
from runtime.calrt import Library
from runtime.manifest import load_manifest
from runtime.oracle import Oracle
from runtime.status import StatusKind
from runtime.strict_json import dumps

BEGINS = Planned("infer", 18)  # a device error, and so a recovery
RESET_FAILED = 25
RESET = RUNGS[0]
FEW = [pytest.param(c, marks=[] if c in (4, 8, 18) else pytest.mark.nightly) for c in CODES]  # one for each way to end
NEVER_RETRIED = ("compatibility",)
IS_THE_ARTIFACTS = ("request", "artifact", *NEVER_RETRIED)  # the request was our own, and it was right before


@pytest.fixture(scope="module")
def benches(library: Library) -> Iterator[Benches]:
    with closing(Benches(library)) as there:
        yield there


def recover(benches: Benches, *planned: Planned) -> tuple[Bench, list[str], int]:
    """A recovery in which these calls fail, to its end. The calls from the first reset on, and the generations."""
    b, hand = benches.ready()
    generation = b.executor.calls.generation_id
    with hand.returns(BEGINS, *planned) as calls:
        assert ask(b, next(FRESH)).code == BEGINS.code
        until(lambda: settled(b))
    return b, calls[calls.index(RESET) :], b.executor.calls.generation_id - generation


def check_end(b: Bench, way: str) -> None:
    assert read(b) == (("Stopped", "Failed") if way == ENDS else ("Open", "Ready"))
    if way == ENDS:
        assert ask(b, next(FRESH)).kind is StatusKind.UNAVAILABLE
    else:
        assert serves(b)


@pytest.mark.parametrize("code", FEW)
@pytest.mark.parametrize("nth", range(len(RUNGS)))
def test_a_reset(benches: Benches, nth: int, code: int) -> None:
    """The next rung; after the last one, or where only a person can help, Failed."""
    earlier = [Planned(rung, RESET_FAILED) for rung in RUNGS[:nth]]
    b, calls, generations = recover(benches, *earlier, Planned(RUNGS[nth], code))
    ends = CODES[code] in NEVER_RETRIED or nth == len(RUNGS) - 1
    tried = [c for c in calls[: calls.index("calbin_load") if "calbin_load" in calls else None] if c in RUNGS]
    assert tried[: nth + 2] == list(RUNGS[: nth + 1 if ends else nth + 2])
    assert generations == 1, "a rung that says no is no generation"
    check_end(b, ENDS if ends else "")


@pytest.mark.parametrize("code", FEW)
@pytest.mark.parametrize("call", CONFIGURED)
def test_a_configuration(benches: Benches, call: str, code: int) -> None:
    """An artifact that cannot be used, and no other is known to be good: Failed. Else a stronger reset."""
    b, calls, generations = recover(benches, Planned(call, code, after=RESET))
    ends = CODES[code] in IS_THE_ARTIFACTS
    assert generations == (1 if ends else 2)
    assert (RUNGS[1] in calls[calls.index(call) + 1 :]) == (not ends)
    check_end(b, ENDS if ends else "")


@pytest.mark.parametrize("code", FEW)
@pytest.mark.parametrize("call", GOLDEN)
def test_a_golden_run(benches: Benches, call: str, code: int) -> None:
    b, calls, generations = recover(benches, Planned(call, code, after="device_configure"))
    ends = CODES[code] in IS_THE_ARTIFACTS
    assert generations == (1 if ends else 2)
    assert calls.count("device_configure") == (1 if ends else 2)
    check_end(b, ENDS if ends else "")


def test_all_rungs_and_then_the_budget(library: Library) -> None:
    """F40: bounded, and then Failed."""
    for more, resets in (({}, 3), ({"recoveries_max": 2}, 2), ({"rungs": ("reset_ccu",)}, 1)):
        with closing(Benches(library, **more)) as benches:
            failing = [Planned("device_configure", 18)] * resets
            b, calls, _ = recover(benches, *failing)
            assert calls.count("device_configure") == resets
            check_end(b, ENDS)


# -- artifacts: the last model known to be good ------------------------------------------------------------------------
@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another model: the same tensors, other weights."""
    for name, content in files([Sample("other", "tiny", 512, 256, 16, 1)]):
        (tmp_path / name).write_bytes(content)
    return tmp_path / "other.json"


@pytest.fixture
def switched(library: Library, other: Path) -> Iterator[tuple[Bench, Hand, Oracle]]:
    """On the other model, with the one before to go back to."""
    with closing(Benches(library, switches=True)) as benches:
        b, hand = benches.ready()
        assert serves(b)
        assert b.executor.switch_model(other).ok
        assert b.executor.wait_ready(READY_S)
        oracle = Oracle.of_calbin(other.with_suffix(".calbin"))
        assert b.executor.calls.generation_id == 2
        assert serves(b, oracle)
        yield b, hand, oracle


def test_a_planned_switch_makes_no_reset(switched: tuple[Bench, Hand, Oracle]) -> None:
    b, _, oracle = switched
    calls = b.calls()
    assert calls.count("configure") == 2
    assert not {"reset_ccu", "reset"} & set(calls)
    assert not serves(b, b.oracle), "control: the models differ"
    assert serves(b, oracle)


@pytest.mark.shows("§8.Artifact")
@pytest.mark.parametrize("code", ROWS["artifact"].codes)
@pytest.mark.parametrize("call", ["input_set_csr", "infer", "output_wait"])
def test_a_rejected_model_is_rolled_back(switched: tuple[Bench, Hand, Oracle], call: str, code: int) -> None:
    b, hand, _ = switched
    with hand.returns(Planned(call, code)):
        assert ask(b, next(FRESH)).code == code
        until(lambda: settled(b))
    assert read(b) == ("Open", "Ready")
    assert serves(b), "the model before"
    with hand.returns(Planned(call, code)):
        assert ask(b, next(FRESH)).code == code
        until(lambda: settled(b))
    check_end(b, ENDS)


@pytest.mark.shows("§8.Artifact")
@pytest.mark.parametrize("code", ROWS["artifact"].codes)
@pytest.mark.parametrize("call", ["device_configure", "input_map_buf", "infer"])
def test_a_model_that_does_not_come_up_is_rolled_back(library: Library, other: Path, call: str, code: int) -> None:
    with closing(Benches(library, switches=True)) as benches:
        b, hand = benches.ready()
        with hand.returns(Planned(call, code)) as calls:
            assert b.executor.switch_model(other).ok
            until(lambda: calls.count("device_configure") == 2 and settled(b))
        assert read(b) == ("Open", "Ready")
        assert serves(b), "the model before"
        assert b.executor.switch_model(other).ok, "and it may be tried again"
        assert b.executor.wait_ready(READY_S)
        assert serves(b, Oracle.of_calbin(other.with_suffix(".calbin")))


def test_a_model_whose_golden_run_says_something_else_does_not_serve(library: Library, other: Path) -> None:
    other.write_text(dumps(evolve(load_manifest(other), golden_sha256="0" * 64)), encoding="utf-8")
    with closing(Benches(library, switches=True)) as benches:
        b, _ = benches.ready()
        assert b.executor.switch_model(other).ok
        until(lambda: settled(b) and b.executor.calls.generation_id > 1)
        assert read(b)[1] == "Failed", "a golden run that fails is the device's fault: resets, and then nothing"


@pytest.mark.shows("I5")
def test_a_request_that_was_checked_for_another_manifest_is_refused(library: Library, tmp_path: Path) -> None:
    """Of the same calbin: what differs are the contracts. It was checked, and then the model was switched."""
    with closing(Benches(library, switches=True)) as benches:
        b, _ = benches.ready()
        calls = b.executor.calls
        other = evolve(calls.model, submodels={k: c for k, c in calls.model.submodels.items() if k.name != "Decode"})
        reserve, now = b.executor._table["reserve"], calls.model

        def switched(job: object) -> str:
            calls.model = other
            return str(reserve(job))

        b.executor._table["reserve"] = switched  # type: ignore[index]
        before = len(b.sim.trace())
        assert "switched" in ask(b, next(FRESH)).text
        assert [c.call for c in b.sim.trace()[before:]] == [], "nothing was asked of CalRT"
        b.executor._table["reserve"], calls.model = reserve, now  # type: ignore[index]
        until(lambda: settled(b))
        assert serves(b)


def test_switching_where_it_cannot_be(library: Library, other: Path) -> None:
    with closing(Benches(library)) as benches:
        b, _ = benches.ready()
        assert b.executor.switch_model(other).kind is StatusKind.NOT_SUPPORTED
    with closing(Benches(library, switches=True)) as benches:
        b, _ = benches.ready()
        b.executor.close()
        assert b.executor.switch_model(other).kind is StatusKind.UNAVAILABLE
        assert b.executor.calls._asked is None, "it is not done later instead"


# -- back-off, and what is recorded ------------------------------------------------------------------------------------
@pytest.mark.shows("§8.Transient")
@pytest.mark.parametrize(("call", "code"), [("infer", 17), ("input_set_csr", 13), ("input_set_csr", 17)])
def test_the_threshold_of_transient_errors(library: Library, call: str, code: int) -> None:
    """So many are tolerated before the back-off has passed; one more drains."""
    tolerated = 2
    with closing(Benches(library, strikes_max=tolerated)) as benches:
        b, hand = benches.ready()
        for _ in range(2):
            for _ in range(tolerated):
                with hand.returns(Planned(call, code)):
                    assert ask(b, next(FRESH)).code == code
                until(lambda: settled(b))
                assert read(b) == ("Reduced", "Ready")
            hand.advance(b.executor.config.backoff_ms * 1000)
            until(lambda: read(b)[0] == "Open")  # and the count begins anew
        assert b.executor.calls.generation_id == 1
        with hand.returns(*[Planned(call, code)] * (tolerated + 1)) as calls:
            for _ in range(tolerated + 1):
                assert ask(b, next(FRESH)).code == code
            until(lambda: settled(b))
        assert RUNGS[0] in calls
        assert b.executor.calls.generation_id == 2
        check_end(b, "")


@pytest.mark.shows("§8.Programming")
def test_a_feature_is_off_for_its_generation(benches: Benches) -> None:
    b, hand = benches.ready()
    held = next(FRESH)
    assert ask(b, held).ok
    with hand.returns(Planned("input_slice_tensor", 27)):
        assert ask(b, next(FRESH)).code == 27
    status = ask(b, next(FRESH))
    assert (status.kind, status.code) == (StatusKind.NOT_SUPPORTED, 0)
    assert "27 Unsupported" in status.text
    with hand.returns(BEGINS):
        assert ask(b, held, [5], past=len(PROMPT)).code == BEGINS.code, "a decode is another feature"
        until(lambda: settled(b))
    check_end(b, "")


@pytest.mark.shows("§8.Request")
@pytest.mark.parametrize("differs", [False, True])
def test_what_differs_from_the_manifest_is_recorded(
    benches: Benches, caplog: pytest.LogCaptureFixture, differs: bool
) -> None:
    """§8, first row: once a generation."""
    b, hand = benches.ready()
    calls = b.executor.calls
    right, calls._recorded = calls.manifest, False
    if differs:
        wrong = evolve(right.submodels[0], csr_cur_seq="other")
        calls.manifest = evolve(right, submodels=(wrong, *right.submodels[1:]))
    with caplog.at_level(logging.WARNING, "calexec"):
        for code in ROWS["request"].codes:
            with hand.returns(Planned("input_set_csr", code)):
                assert ask(b, next(FRESH)).code == code
    calls.manifest = right
    lines = [r.message for r in caplog.records if r.message.startswith(("nothing differs", str(right.path)))]
    assert len(lines) == 1
    assert ("csr_cur_seq" in lines[0]) == differs
