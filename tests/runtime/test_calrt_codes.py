"""Every function of the binding against every answer: codes of every kind, values, and exceptions.

The device is the second SDK, which returns what the test scripts; nothing may be lost, changed or swallowed on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from other_sdk import CODED, GIVING, VALUED, WAIT, Bench, Call, OtherSdk, Way, bench

from machines.errors import CODES, SHIM_CODES, code_named
from runtime.calrt import BufStatus, Library

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
EVERY_CODE = [c.number for c in (*CODES, *SHIM_CODES)] + [-1, 30, 77, INT_MIN, INT_MAX]
EXCEPTION = code_named("ShimException").number
BAD_ARGUMENT = code_named("ShimBadArgument").number


@pytest.fixture
def on(over_other: Library, sdk: OtherSdk) -> Iterator[Bench]:
    with bench(over_other) as handles:
        yield handles
        sdk.clear()


@pytest.mark.parametrize("api", CODED)
def test_every_code_arrives(on: Bench, sdk: OtherSdk, api: str) -> None:
    for code in EVERY_CODE:
        sdk.script(api, Way.RETURN, code)
        assert CODED[api](on) == code


@pytest.mark.parametrize("api", GIVING)
def test_every_code_arrives_and_nothing_is_given_with_a_failure(on: Bench, sdk: OtherSdk, api: str) -> None:
    call, nothing = GIVING[api]
    for code in EVERY_CODE:
        sdk.script(api, Way.RETURN, code)
        returned, given = call(on)
        assert returned == code
        if code != 0:
            assert given == nothing
        elif nothing is None:
            assert given.release() == 0
        else:
            assert given == 4711


def test_every_code_of_wait_arrives_with_stamps(on: Bench, sdk: OtherSdk) -> None:
    for code in EVERY_CODE:
        sdk.script(WAIT, Way.RETURN, code)
        returned, stamps = on.output.wait()
        assert returned == code
        assert 0 < stamps.begin_ns <= stamps.end_ns


@pytest.mark.parametrize("number", [*range(-2, 8), INT_MIN, INT_MAX])
def test_every_status_arrives(on: Bench, sdk: OtherSdk, number: int) -> None:
    sdk.script("CalrtOutputBuf::GetStatus", Way.RETURN, number)
    code, status = on.output.get_status()
    assert (code, status) == (0, number)
    assert isinstance(status, BufStatus) == (number in [s.value for s in BufStatus])


@pytest.mark.parametrize("api", ["KvManager::Apply", "KvManager::canAllocate"])
@pytest.mark.parametrize("answer", [False, True])
def test_both_bools_arrive(on: Bench, sdk: OtherSdk, api: str, answer: bool) -> None:
    sdk.script(api, Way.RETURN, int(answer))
    assert VALUED[api][0](on) == (0, answer)


@pytest.mark.parametrize(
    ("api", "numbers"),
    [
        ("KvManager::TokensPerUnit", [0, 1, (1 << 32) - 1]),
        ("KvManager::UnitsTotal", [0, 1, (1 << 32) - 1]),
        ("VirtualDevice::MemoryUsed", [0, 1 << 40, (1 << 64) - 1]),
    ],
)
def test_numbers_arrive(on: Bench, sdk: OtherSdk, api: str, numbers: list[int]) -> None:
    for number in numbers:
        sdk.script(api, Way.RETURN, number - (1 << 64) if number >= 1 << 63 else number)
        assert VALUED[api][0](on) == (0, number)


EVERY_CALL: dict[str, tuple[Call, Any]] = {
    **{api: (call, None) for api, call in CODED.items()},
    **GIVING,
    **VALUED,
    WAIT: (lambda b: b.output.wait(), None),
}


def test_each_call_reaches_its_api(on: Bench, sdk: OtherSdk) -> None:
    """Negative control of the tables: a call that stood under another's name would be tested without its script."""
    for api, (call, nothing) in EVERY_CALL.items():
        for other in EVERY_CALL:
            sdk.arguments(other)
        answer = call(on)
        reached = {other for other in EVERY_CALL if sdk.arguments(other) is not None}
        assert api in reached
        assert reached <= {api, "Calbin::GetAllModels"}, "creating and submitting look the model up"
        if api in GIVING and nothing is None:
            assert answer[1].release() == 0


THROWN = {
    Way.THROW_RUNTIME_ERROR: "scripted {api}",
    Way.THROW_BAD_ALLOC: "bad_alloc",
    Way.THROW_INT: "no std::exception",
}


@pytest.mark.parametrize("way", THROWN)
@pytest.mark.parametrize("api", EVERY_CALL)
def test_an_exception_becomes_a_code_and_a_text(on: Bench, sdk: OtherSdk, api: str, way: Way) -> None:
    call, nothing = EVERY_CALL[api]
    sdk.script(api, way)
    answer = call(on)
    if api in CODED:
        assert answer == EXCEPTION
    elif api == WAIT:
        assert answer[0] == EXCEPTION
        assert 0 < answer[1].begin_ns <= answer[1].end_ns
    else:
        assert answer == (EXCEPTION, nothing)
    text = on.library.last_error()
    assert THROWN[way].format(api=api) in text
    assert text.startswith("calrt_c_")


@pytest.mark.parametrize("api", [a for a, (_, nothing) in GIVING.items() if nothing is None])
def test_success_without_an_object_is_an_error(on: Bench, sdk: OtherSdk, api: str) -> None:
    sdk.script(api, Way.NOTHING_MADE)
    assert GIVING[api][0](on) == (EXCEPTION, None)
    assert "no object" in on.library.last_error()


def test_arguments_arrive(on: Bench, sdk: OtherSdk) -> None:
    """Through ctypes, C and C++; numbers at the ends of their types."""
    on.kv.apply(-(1 << 31), (1 << 32) - 1)
    assert sdk.arguments("KvManager::Apply") == [str(-(1 << 31)), str((1 << 32) - 1)]
    on.input.slice_tensor("tokens", (1 << 64) - 1, 1 << 63)
    assert sdk.arguments("CalrtInputBuf::SliceTensor") == ["tokens", str((1 << 64) - 1), str(1 << 63)]
    on.output.slice_tensor("logits", 3, 4)
    assert sdk.arguments("CalrtOutputBuf::SliceTensor") == ["logits", "3", "4"]
    on.input.set_csr("länge", -(1 << 63))
    assert sdk.arguments("CalrtInputBuf::SetCsrByName") == ["länge", str(-(1 << 63))]
    on.input.bind_sequence(-7)
    assert sdk.arguments("CalrtInputBuf::BindSequence") == ["-7"]
    on.kv.can_allocate(12)
    assert sdk.arguments("KvManager::canAllocate") == ["12"]
    on.output.map_buf("logits", on.memory)
    name, address, size = sdk.arguments("CalrtOutputBuf::MapBuf") or []
    assert (name, size) == ("logits", str(len(on.memory)))
    assert int(address) > 0
    on.device.infer_with_fixed_task_type(on.calbin, 1, on.input, on.output, 1)
    assert sdk.arguments("infer_with_fixed_task_type") == ["eight", "1"]
    on.device.infer(on.calbin, 0, on.input, on.output)
    assert sdk.arguments("infer") == ["first"]
    on.device.enable_parallel_mode(False)
    assert sdk.arguments("VirtualDevice::EnableParallelMode") == ["0"]
    assert on.library.calbin("/tmp/ü/\udcff")[0] == 0
    assert sdk.arguments("Calbin::Load") is not None


def test_models_of_the_other_sdk(on: Bench, sdk: OtherSdk) -> None:
    """A dtype without a name stays a number; a rank or a name that does not fit is an error and not cut."""
    code, models = on.calbin.models()
    assert (code, models) == (BAD_ARGUMENT, ())
    assert "9 dimensions" in on.library.last_error()
    assert on.library.version() == (0, "9.8.7-other")


@pytest.mark.parametrize("function", ["input_create", "output_create"])
def test_a_model_that_is_not_there(on: Bench, function: str) -> None:
    kind = function.split("_")[0]
    assert getattr(on.device, kind)(on.calbin, 99) == (BAD_ARGUMENT, None)
    assert "no model 99" in on.library.last_error()


def test_no_object_is_left_over(over_other: Library, sdk: OtherSdk) -> None:
    """Everything made is destroyed, also when a handle could not be given out."""
    kinds = ("calbin", "device", "kv", "input", "output")
    before = [sdk.alive(kind) for kind in kinds]
    with bench(over_other) as handles:
        assert [sdk.alive(kind) for kind in kinds] == [n + 1 for n in before]
        handles.device.release()
        assert sdk.alive("device") == before[1] + 1, "its buffers still hold the device"
    assert [sdk.alive(kind) for kind in kinds] == before
