"""Handles and arguments that are wrong, for every function of the C ABI: a code with a text, never a crash."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from ctypes import c_void_p
from typing import Any

import numpy as np
import pytest
from c_header import Parameter, declared
from other_sdk import Bench, OtherSdk, bench, made

from machines.errors import code_named
from runtime.calrt import Calbin, Device, Input, Kv, Library, Output, ReleasedHandle, ReleaseRefused
from runtime.calrt_c import ARGUMENTS

BAD_HANDLE = code_named("ShimBadHandle").number
BAD_ARGUMENT = code_named("ShimBadArgument").number
EXCEPTION = code_named("ShimException").number
KINDS = ("calbin", "device", "kv", "input", "output")
RELEASE = {kind.release_name.split("_")[0]: kind.release_name for kind in (Calbin, Device, Kv, Input, Output)}
MAY_BE_NULL = {("output_wait", "stamps"), ("logits", "first_bad"), ("last_error", "text")}


@pytest.fixture
def on(over_other: Library, sdk: OtherSdk) -> Iterator[Bench]:
    with bench(over_other) as handles:
        yield handles


def arguments(on: Bench, name: str) -> list[Any]:
    """Arguments with which the function could succeed."""
    keep: list[Any] = []
    for parameter, c_type in zip(declared()[name], ARGUMENTS[name], strict=True):
        if parameter.type == "calrt_c_handle":
            keep.append(on.handles()[parameter.name].number)
        elif parameter.type == "char *":
            keep.append(ctypes.create_string_buffer(300) if parameter.name == "text" else b"tokens")
        elif c_type is c_void_p:
            keep.append(ctypes.addressof(ctypes.c_char.from_buffer(on.memory)))
        elif parameter.type.endswith("*"):
            keep.append(ctypes.byref(c_type._type_()))
        else:
            keep.append(300 if parameter.name == "bytes" else 0)
    return keep


def positions(wanted: str) -> list[tuple[str, int, Parameter]]:
    """Every parameter of a kind: "handle" or "pointer"."""
    return [
        (name, i, p)
        for name, parameters in declared().items()
        for i, p in enumerate(parameters)
        if (p.type == "calrt_c_handle" if wanted == "handle" else p.type.endswith("*"))
    ]


def test_the_arguments_are_good(on: Bench) -> None:
    """Negative control: none of the refusals below is due to another argument."""
    for name in ARGUMENTS:
        if not name.endswith(("release", "close", "csr")) and name != "logits":
            given = arguments(on, name)
            assert on.library.call(name, *given) == 0, f"{name}: {on.library.last_error()}"
            if name.endswith(("load", "open", "create")):
                kind = name.split("_")[0]
                assert on.library.call(RELEASE[kind], given[-1]._obj.value) == 0


@pytest.mark.parametrize(("name", "i", "parameter"), positions("handle"))
def test_a_handle_that_is_none(on: Bench, sdk: OtherSdk, name: str, i: int, parameter: Parameter) -> None:
    """Zero, garbage, released and of every other kind; the text says which."""
    right = on.handles()[parameter.name].number
    noise = random.Random(1)
    garbage = [0, 1, 7, (1 << 64) - 1, right ^ 1 << 63, right + (1 << 31), right + (5 << 32), right ^ 1 << 56]
    garbage += [noise.getrandbits(64) for _ in range(20)]
    dead = made(on.device.kv())
    assert dead.release() == 0
    wrong = {number: "is no handle" for number in garbage if number not in {h.number for h in on.handles().values()}}
    wrong[dead._number] = "was released"
    wrong |= {h.number: f"is not of kind {parameter.name}" for k, h in on.handles().items() if k != parameter.name}
    for number, text in wrong.items():
        given = arguments(on, name)
        given[i] = number
        assert on.library.call(name, *given) == BAD_HANDLE
        assert text in on.library.last_error()
    assert all(sdk.alive(kind) > 0 for kind in KINDS), "nothing was released by mistake"


def test_the_text_names_what_the_handle_is(on: Bench) -> None:
    assert on.library.call("kv_apply", on.input.number, 0, 0, ctypes.byref(ctypes.c_int())) == BAD_HANDLE
    text = on.library.last_error()
    assert text.startswith("calrt_c_kv_apply: input handle ")
    assert text.endswith(" is not of kind kv")


@pytest.mark.parametrize(("name", "i", "parameter"), positions("pointer"))
def test_a_null_pointer(on: Bench, name: str, i: int, parameter: Parameter) -> None:
    given = arguments(on, name)
    given[i] = None
    if name == "logits":
        given[1:4], given[5] = [8, 0, 8], 8
    code = on.library.call(name, *given)
    if (name, parameter.name) in MAY_BE_NULL:
        assert code != BAD_ARGUMENT or name == "logits"
        return
    assert code == BAD_ARGUMENT
    assert f"{parameter.name} is NULL" in on.library.last_error()


def test_a_text_that_does_not_fit(on: Bench) -> None:
    """Refused whole, and the buffer is left alone."""
    version = b"9.8.7-other"
    text = ctypes.create_string_buffer(b"untouched-text")
    for size in range(len(version) + 1):
        assert on.library.call("version", text, size) == BAD_ARGUMENT
        assert text.value == b"untouched-text"
    assert on.library.call("version", text, len(version) + 1) == 0
    assert text.value == version


def test_names_of_the_calbin_that_do_not_fit(on: Bench) -> None:
    """255 bytes fit, 256 do not."""
    from runtime.calrt_c import CModel, CTensor

    model, tensor = CModel(), CTensor()
    assert on.library.call("calbin_model", on.calbin.number, 3, ctypes.byref(model)) == 0
    assert model.name == b"n" * 255
    assert on.library.call("calbin_model", on.calbin.number, 4, ctypes.byref(model)) == BAD_ARGUMENT
    assert model.name == b"n" * 255
    assert on.library.call("calbin_tensor", on.calbin.number, 1, 1, ctypes.byref(tensor)) == 0
    assert (tensor.rank, list(tensor.shape)) == (8, [1] * 7 + [(1 << 40) + 3])
    assert (tensor.byte_size, tensor.sliceable, tensor.is_output, tensor.dtype) == ((1 << 45) + 1, 0, 1, 3)


def test_the_last_error_is_cut_and_ends(on: Bench) -> None:
    on.library.call("kv_release", 0)
    whole = on.library.last_error()
    assert whole == "calrt_c_kv_release: 0 is no handle"
    text = ctypes.create_string_buffer(b"x" * 16)
    assert on.library.call("last_error", text, 8) == 0
    assert text.raw[:9] == whole[:7].encode() + b"\0x"
    assert on.library.call("last_error", text, 0) == 0
    assert text.raw[:9] == whole[:7].encode() + b"\0x"


# -- Python's side -----------------------------------------------------------------------------------------------------


def test_a_released_handle_cannot_be_used(on: Bench) -> None:
    uses = {
        on.kv: [lambda: on.kv.apply(0, 1), on.kv.units_total, on.kv.release],
        on.input: [lambda: on.input.set_csr("cur", 1), lambda: on.device.infer(on.calbin, 0, on.input, on.output)],
        on.output: [on.output.wait, on.output.get_status, lambda: on.output.map_buf("logits", on.memory)],
        on.calbin: [on.calbin.models, lambda: on.device.configure(on.calbin)],
        on.device: [on.device.reset, on.device.kv, on.device.memory_used],
    }
    for handle, calls in uses.items():
        assert handle.release() == 0
        assert "released" in repr(handle)
        for call in calls:
            with pytest.raises(ReleasedHandle, match=f"this {type(handle).__name__} was released"):
                call()


def test_numbers_are_never_given_twice(on: Bench) -> None:
    """A freed slot comes back under another number."""
    seen = set()
    for _ in range(300):
        kv = made(on.device.kv())
        assert kv.number not in seen
        seen.add(kv.number)
        kv.release()


def test_the_table_has_a_limit_and_recovers(on: Bench, sdk: OtherSdk) -> None:
    held = []
    while (answer := on.device.kv())[0] == 0:
        held.append(answer[1])
    assert answer == (EXCEPTION, None)
    assert "all 65536 handles are in use" in on.library.last_error()
    assert sdk.alive("kv") == len(held) + 1, "what was made beyond the limit was destroyed"
    for kv in held:
        assert kv.release() == 0
    assert sdk.alive("kv") == 1
    assert made(on.device.kv()).release() == 0


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda b: b.kv.apply(1 << 31, 1), ValueError, "the sequence is 2147483648; allowed are -2147483648 to 214748"),
        (lambda b: b.kv.apply(0, -1), ValueError, "the length is -1; allowed are 0 to 4294967295"),
        (lambda b: b.kv.apply(0, 1 << 32), ValueError, "the length is 4294967296"),
        (lambda b: b.kv.apply("0", 1), TypeError, "integer"),
        (lambda b: b.kv.apply(0, 1.5), TypeError, "integer"),
        (lambda b: b.kv.can_allocate(-1), ValueError, "the units"),
        (lambda b: b.library.device(-1), ValueError, "the device's number"),
        (lambda b: b.device.input(b.calbin, 1 << 32), ValueError, "the model's number"),
        (lambda b: b.device.infer(b.calbin, -1, b.input, b.output), ValueError, "the model's number"),
        (
            lambda b: b.device.infer_with_fixed_task_type(b.calbin, 0, b.input, b.output, 1 << 31),
            ValueError,
            "the task type",
        ),
        (lambda b: b.input.slice_tensor("t", -1, 1), ValueError, "the offset is -1; allowed are 0 to 184467440737095"),
        (lambda b: b.output.slice_tensor("t", 0, 1 << 64), ValueError, "the size"),
        (lambda b: b.input.set_csr("cur", 1 << 63), ValueError, "the CSR's value is 9223372036854775808"),
        (lambda b: b.input.bind_sequence(-(1 << 31) - 1), ValueError, "the sequence"),
        (lambda b: b.input.set_csr("c\0ur", 1), ValueError, "the CSR's name is 'c.x00ur'; a NUL would end it"),
        (lambda b: b.input.set_csr(b"cur", 1), TypeError, "the CSR's name is b'cur'; a str is needed"),
        (lambda b: b.input.undo_slice("\0"), ValueError, "the tensor's name"),
        (lambda b: b.output.tensor_size(None), TypeError, "the tensor's name is None"),
        (lambda b: b.library.calbin("a\0b"), ValueError, "the calbin's path"),
        (lambda b: b.input.map_buf("t", b"const"), ValueError, "the memory for tensor 't' is read-only"),
        (lambda b: b.input.map_buf("t", np.zeros(4)[::2]), ValueError, r"not contiguous \(shape \(2,\), strides"),
        (lambda b: b.input.map_buf("t", np.zeros((4, 4)).T), ValueError, "not contiguous"),
        (lambda b: b.output.map_buf("t", 17), TypeError, "the memory for tensor 't' is no buffer"),
        (lambda b: b.output.map_buf("t", None), TypeError, "no buffer"),
    ],
)
def test_what_must_not_reach_c(on: Bench, sdk: OtherSdk, call: Any, error: type[Exception], text: str) -> None:
    apis = ("KvManager::Apply", "CalrtInputBuf::MapBuf", "CalrtInputBuf::SetCsrByName", "infer")
    for api in apis:
        sdk.arguments(api)
    with pytest.raises(error, match=text):
        call(on)
    assert [sdk.arguments(api) for api in apis] == [None] * len(apis)


def test_leaving_a_block_releases(on: Bench, sdk: OtherSdk) -> None:
    with made(on.device.kv()) as kv:
        assert sdk.alive("kv") == 2
    assert sdk.alive("kv") == 1
    with made(on.device.kv()) as kv:
        kv.release()
    assert sdk.alive("kv") == 1


def test_a_block_that_cannot_release_says_so(on: Bench) -> None:
    """As the only error, or beside the one on its way."""
    kv = made(on.device.kv())
    on.library.call("kv_release", kv.number)
    with pytest.raises(ReleaseRefused, match=rf"the Kv was not released: {BAD_HANDLE}, .*was released"), kv:
        pass
    with pytest.raises(KeyError) as caught, kv:
        raise KeyError("first")
    assert "the Kv was not released" in caught.value.__notes__[0]
