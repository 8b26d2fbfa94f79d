"""Memory that is mapped stays alive and in its place; waiting blocks one thread and no other."""

from __future__ import annotations

import gc
import mmap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from other_sdk import WAIT, Bench, OtherSdk, Way, bench, made

from runtime.calrt import Library, NativeMissing, ReleasedHandle, Stamps


@pytest.fixture
def on(over_other: Library, sdk: OtherSdk) -> Iterator[Bench]:
    with bench(over_other) as handles:
        yield handles
        sdk.clear()


def pinned(memory: bytearray) -> bool:
    """Whether the bytearray may not be resized."""
    try:
        memory.append(0)
    except BufferError:
        return True
    memory.pop()
    return False


@pytest.mark.shows("I4")
@pytest.mark.parametrize("kind", ["input", "output"])
def test_memory_is_pinned_until_it_is_mapped_anew_or_released(on: Bench, kind: str) -> None:
    buffer, first, second, other = getattr(on, kind), bytearray(8), bytearray(8), bytearray(8)
    assert not pinned(first)
    assert buffer.map_buf("a", first) == 0
    assert pinned(first)
    assert buffer.map_buf("b", other) == 0
    assert buffer.map_buf("a", second) == 0
    assert [pinned(m) for m in (first, second, other)] == [False, True, True]
    assert buffer.release() == 0
    assert [pinned(m) for m in (first, second, other)] == [False, False, False]


@pytest.mark.parametrize("way", [Way.RETURN, Way.THROW_RUNTIME_ERROR])
def test_a_map_that_fails_may_have_been_done(on: Bench, sdk: OtherSdk, way: Way) -> None:
    """So the device may use the old memory or the new; both stay until a map succeeds."""
    first, *memory = (bytearray(8) for _ in range(4))
    assert on.input.map_buf("a", first) == 0
    sdk.script("CalrtInputBuf::MapBuf", way, 24)
    assert on.input.map_buf("a", memory[0]) != 0
    assert on.input.map_buf("a", memory[1]) != 0
    assert [pinned(m) for m in (first, *memory)] == [True, True, True, False]
    sdk.clear()
    assert on.input.map_buf("a", memory[2]) == 0
    assert [pinned(m) for m in (first, *memory)] == [False, False, False, True]


def test_what_failed_maps_keep_is_let_go_by_the_release(on: Bench, sdk: OtherSdk) -> None:
    """And the same memory again and again is kept once."""
    sdk.script("CalrtOutputBuf::MapBuf", Way.RETURN, 24)
    memory = bytearray(8)
    assert [on.output.map_buf("a", memory) for _ in range(100)] == [24] * 100
    assert pinned(memory)
    assert sum(len(held) for held in on.library._pins[on.output.number].values()) == 1
    assert on.output.release() == 0
    assert not pinned(memory)


def test_a_map_that_never_reaches_c_keeps_nothing(on: Bench) -> None:
    memory = bytearray(8)
    with pytest.raises(ValueError, match="a NUL would end it"):
        on.input.map_buf("a\0b", memory)
    assert on.input.release() == 0
    with pytest.raises(ReleasedHandle):
        on.input.map_buf("a", memory)
    assert not pinned(memory)


def test_a_release_that_is_refused_keeps_the_memory(debug_over_other: Library, sdk: OtherSdk) -> None:
    """In flight (debug build): the handle lives on."""
    with bench(debug_over_other) as on:
        on.input.map_buf("tokens", memory := bytearray(8))
        on.output.map_buf("logits", bytearray(8))
        on.input.set_csr("cur", 1)
        assert on.device.infer(on.calbin, 0, on.input, on.output) == 0
        assert on.input.release() != 0
        assert pinned(memory)
        assert on.output.wait()[0] == 0
        assert on.output.get_status()[0] == 0
        assert on.input.release() == 0
        assert not pinned(memory)


def test_a_handle_that_is_lost_leaks_and_frees_nothing(over_other: Library, sdk: OtherSdk) -> None:
    device, calbin = made(over_other.device(0)), made(over_other.calbin("/x"))
    lost, memory = made(device.input(calbin, 0)), bytearray(8)
    lost.map_buf("a", memory)
    number, alive = lost.number, sdk.alive("input")
    del lost
    gc.collect()
    assert pinned(memory)
    assert sdk.alive("input") == alive
    assert over_other.call("input_release", number) == 0
    over_other._pins.pop(number)
    device.release(), calbin.release()


def test_kinds_of_memory(on: Bench, sdk: OtherSdk) -> None:
    """The whole buffer is mapped, at its own address."""
    array = np.zeros((3, 5), np.uint16)
    on.output.map_buf("logits", array)
    assert sdk.arguments("CalrtOutputBuf::MapBuf") == ["logits", str(array.ctypes.data), "30"]
    with mmap.mmap(-1, 4096) as shared:
        on.output.map_buf("logits", shared)
        with pytest.raises(BufferError):
            shared.close()
        on.output.map_buf("logits", memoryview(on.memory)[8:24])
        assert (sdk.arguments("CalrtOutputBuf::MapBuf") or [])[2] == "16"


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    return thread, answers


def test_waiting_releases_the_gil(on: Bench, sdk: OtherSdk) -> None:
    """Two waits are blocked in C while this thread goes on; were the GIL held, this would never end."""
    sdk.script(WAIT, Way.BLOCK, 13)
    second = made(on.device.output(on.calbin, 0))
    threads = [in_thread(on.output.wait), in_thread(second.wait)]
    sdk.await_blocked(2)
    assert sum(range(1000)) == 499500
    assert on.kv.apply(1, 1) == (0, True), "no lock of the shim is held either"
    sdk.clear()
    for thread, answers in threads:
        thread.join(30)
        code, stamps = answers[0]
        assert code == 13
        assert stamps.begin_ns < stamps.end_ns
    second.release()


def test_a_release_during_a_wait_is_safe(on: Bench, sdk: OtherSdk) -> None:
    """The object and its memory live until the wait returns; the handle is dead at once."""
    on.output.map_buf("logits", memory := bytearray(8))
    alive = sdk.alive("output")
    sdk.script(WAIT, Way.BLOCK, 7)
    thread, answers = in_thread(on.output.wait)
    sdk.await_blocked(1)
    assert on.output.release() == 0
    with pytest.raises(ReleasedHandle):
        on.output.get_status()
    assert sdk.alive("output") == alive
    assert pinned(memory)
    sdk.clear()
    thread.join(30)
    assert answers[0][0] == 7
    assert sdk.alive("output") == alive - 1
    assert not pinned(memory)


def test_errors_belong_to_their_thread(on: Bench) -> None:
    on.library.call("kv_release", 0)
    thread, answers = in_thread(lambda: (on.library.last_error(), on.library.call("calbin_release", 5)))
    thread.join(30)
    assert answers == [("", answers[0][1])]
    assert on.library.last_error() == "calrt_c_kv_release: 0 is no handle"


def test_a_wait_that_never_reaches_calrt_has_no_stamps(on: Bench) -> None:
    on.library.call("output_release", on.output.number)
    code, stamps = on.output.wait()
    assert code != 0
    assert stamps == Stamps(0, 0)
    on.output._released = True


def test_which_library_is_loaded(
    over_other: Library, debug_over_other: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_LIBRARY", str(debug_over_other.path))
    assert Library.load() is debug_over_other
    assert Library.load(over_other.path) is over_other
    assert debug_over_other.enforces_call_order()
    assert not over_other.enforces_call_order()


def test_without_a_library_one_line_says_what_to_do(
    other_root: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("CALRT_LIBRARY", raising=False)
    monkeypatch.setattr("runtime.__path__", [str(tmp_path)])
    (tmp_path / "text.so").write_text("no library")
    not_the_shim = other_root / "lib" / "libcalrt.so"
    for path, text in [
        (None, "is not built; run `make native`, or set CALRT_LIBRARY"),
        (tmp_path / "absent.so", "absent.so cannot be used as libcalrt_c.so"),
        (tmp_path / "text.so", "text.so cannot be used"),
        (not_the_shim, "calrt_c_version"),
    ]:
        with pytest.raises(NativeMissing, match=text) as caught:
            Library.load(path)
        assert "\n" not in str(caught.value)
