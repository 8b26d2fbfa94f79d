"""The baseline: it answers right, has the costs that it is there to show, and none of the faults (S01 to S05)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.calbin import sample
from runtime.calrt import Library, NativeMissing
from runtime.legacy import Legacy, LegacyFailed, LegacyLibrary
from runtime.manifest import Manifest, load_manifest
from runtime.oracle import Oracle
from runtime.simulator import Simulator

LEGACY = 23  # device of these tests


def manifest_of(model: str) -> Manifest:
    return load_manifest(sample(model).with_suffix(".json"))


def bits(logits: NDArray[np.float32]) -> list[int]:
    found: list[int] = (logits.view(np.uint32) >> 16).tolist()
    return found


@pytest.fixture
def sim(library: Library) -> Iterator[Simulator]:
    """As new; afterwards no violation may have been seen."""
    device = Simulator.beside(library, LEGACY)
    device.power_cycle()
    yield device
    assert device.violations() == ()


@pytest.mark.parametrize(
    ("model", "length"), [("qwen3-tile16", 17), ("qwen3-tile8", 8), ("qwen3-tile1", 3), ("tiny", 255)]
)
def test_its_logits_are_the_oracles(library: Library, sim: Simulator, model: str, length: int) -> None:
    expected = Oracle.of_calbin(sample(model)).sequence()
    prompt = list(range(length))
    with Legacy(library, manifest_of(model), LEGACY) as legacy:
        expected.extend(prompt)
        assert bits(legacy.prefill(0, prompt)) == expected.row().tolist()
        expected.extend([9])
        assert bits(legacy.decode(0, 9)) == expected.row().tolist()


def test_it_has_its_costs(library: Library, sim: Simulator) -> None:
    """Two runtime buffers made and destroyed for each call (S07), Apply before and after it (S02)."""
    with Legacy(library, manifest_of("tiny"), LEGACY) as legacy:
        legacy.prefill(0, [1, 2, 3])
        for call in range(5):
            assert sim.truth("buffers_created") == 2 * (call + 1)
            assert sim.truth("buffers_alive") == 0
            legacy.decode(0, call)
    calls = [c for c in sim.trace() if c.call in ("apply", "infer", "wait")]
    assert [c.call for c in calls] == ["apply", "infer", "wait", "apply"] * 6
    assert [c.b for c in calls if c.call == "apply"] == [n for n in (3, 4, 5, 6, 7, 8) for _ in range(2)]
    assert len({c.thread for c in calls}) == 1


# (planned at, action, a, b) -> what the baseline says. Where the old code spun, aborted or went on, a code comes back.
FAULTS = {
    "S01 Apply refused": (("apply", "refuse", 0, -1, 1), "Apply before infer: refused"),
    "S02 second Apply refused": (("apply", "refuse", 0, -1, 2), "Apply after infer: refused"),
    "S03 CSR": (("set_csr", "return", 4, -1, 1), "SetCsrByName: 4 IllegalValue"),
    "S04 infer": (("infer", "return", 18, -1, 1), "infer: 18 DeviceUnavailable"),
    "S05 Wait": (("wait", "return", 28, -1, 1), "Wait: 28 DeviceCrash"),
    "Wait times out": (("wait", "timeout", 0, -1, 1), "Wait: 13 Timeout"),
    "CCU exception": (("infer", "ccu_exception", 0, -1, 1), "GetStatus: 3"),
    "infer throws": (("infer", "throw", 0, -1, 1), "exception: "),
    "infer throws no exception": (("infer", "throw", 2, -1, 1), "exception of an unknown type"),
    "Apply throws": (("apply", "throw", 1, -1, 1), "exception: "),
}


@pytest.mark.parametrize(("fault", "message"), FAULTS.values(), ids=FAULTS)
def test_its_faults_are_not_reproduced(
    library: Library, sim: Simulator, fault: tuple[str, str, int, int, int], message: str
) -> None:
    call, action, a, b, nth = fault
    with Legacy(library, manifest_of("tiny"), LEGACY) as legacy:
        sim.fault(call, action, a, b, nth)
        with pytest.raises(LegacyFailed) as failed:
            legacy.prefill(0, [1, 2, 3])
        assert message in str(failed.value)
        assert sim.faults_fired() == 1
    with Legacy(library, manifest_of("tiny"), LEGACY) as legacy:
        assert bits(legacy.prefill(0, [1, 2, 3])) == Oracle.of_calbin(sample("tiny")).row([1, 2, 3]).tolist()


def test_a_device_in_doubt_is_left_alone(library: Library, sim: Simulator) -> None:
    """After a Wait that timed out the job still runs in the baseline's memory; only close, which resets, is left."""
    sim.set(decode_us=300_000)
    with Legacy(library, manifest_of("tiny"), LEGACY) as legacy:
        legacy.prefill(0, [1])
        sim.fault("wait", "timeout")
        with pytest.raises(LegacyFailed, match="Wait: 13 Timeout"):
            legacy.decode(0, 2)
        assert sim.truth("jobs_running") == 1
        with pytest.raises(LegacyFailed, match="device in doubt"):
            legacy.decode(0, 3)
    assert [c.result for c in sim.trace() if c.call == "reset"] == [0]


@pytest.mark.parametrize(
    ("tokens", "message"), [([], "count of tokens"), (list(range(257)), "count of tokens")], ids=["none", "257"]
)
def test_what_does_not_fit_is_refused(library: Library, sim: Simulator, tokens: list[int], message: str) -> None:
    with Legacy(library, manifest_of("tiny"), LEGACY) as legacy, pytest.raises(LegacyFailed, match=message):
        legacy.prefill(0, tokens)


def test_beyond_the_last_position(library: Library, sim: Simulator) -> None:
    with Legacy(library, manifest_of("tiny"), LEGACY) as legacy:
        legacy.prefill(0, list(range(256)))
        with pytest.raises(LegacyFailed, match="past \\+ count is more than max_seq"):
            legacy.decode(0, 1)


def test_a_submodel_is_found_by_its_exact_name(library: Library, sim: Simulator) -> None:
    """Not by a part of it (S08)."""
    code = LegacyLibrary(library)
    context = ctypes_pointer()
    for prefill in (b"prefill", b"qwen3_prefil", b"QWEN3_PREFILL"):
        with pytest.raises(LegacyFailed, match="no submodel is called"):
            code.do("open", LEGACY, str(sample("qwen3-tile16")).encode(), prefill, b"qwen3_decode", context)
    with pytest.raises(LegacyFailed, match="not of tokens, positions and logits"):
        code.do("open", LEGACY, str(sample("qwen3-tile16")).encode(), b"qwen3_prefill_embeds", b"qwen3_decode", context)


def ctypes_pointer() -> object:
    return ctypes.byref(ctypes.c_void_p())


def test_a_missing_calbin_is_a_code(library: Library, sim: Simulator) -> None:
    with pytest.raises(LegacyFailed, match="Calbin::Load: 10 FileNotFound"):
        LegacyLibrary(library).do("open", LEGACY, b"/nowhere.calbin", b"a", b"b", ctypes_pointer())


@pytest.mark.parametrize("name", ["vocabulary", "forget", "close"])
def test_no_context_is_a_code(library: Library, name: str) -> None:
    arguments: dict[str, tuple[object, ...]] = {"vocabulary": (None, None), "forget": (None, 0), "close": (None,)}
    with pytest.raises(LegacyFailed, match="NULL"):
        LegacyLibrary(library).do(name, *arguments[name])


def test_without_the_library_it_says_so(library: Library, tmp_path: object) -> None:
    class Elsewhere:
        path = sample("tiny")  # a folder without libraries

    with pytest.raises(NativeMissing, match=r"libcalrt_legacy\.so"):
        LegacyLibrary(Elsewhere())  # type: ignore[arg-type]


# -- conversions: every bit pattern --


def every_pattern() -> NDArray[np.uint16]:
    return np.arange(1 << 16, dtype=np.uint16)


@pytest.mark.parametrize("name", ["convert", "plain_loop"])
@pytest.mark.parametrize(("base", "count"), [(0, 1 << 16), (5, 1000), (65535, 1), (65536, 0)])
def test_conversions_are_exact(library: Library, name: str, base: int, count: int) -> None:
    """Also of NaN, whose payload a float operation might change."""
    target = np.full(count + 1, 7, np.float32)
    LegacyLibrary(library).conversion(name, every_pattern(), base, count, target)()
    expected = every_pattern()[base : base + count].astype(np.uint32) << 16
    assert np.array_equal(target.view(np.uint32)[:count], expected)
    assert target[count] == 7


BAD_RANGES = [(0, 1 << 16, 5), (1, 1 << 16, 1 << 17), (65537, 0, 1), (-1, 2, 2), (0, -1, 2)]


@pytest.mark.parametrize("name", ["convert", "plain_loop"])
@pytest.mark.parametrize("bad", BAD_RANGES)
def test_ranges_are_checked_before_c(library: Library, name: str, bad: tuple[int, int, int]) -> None:
    base, count, room = bad
    with pytest.raises(ValueError, match="elements from"):
        LegacyLibrary(library).conversion(name, every_pattern(), base, count, np.zeros(room, np.float32))


def test_types_are_checked_before_c(library: Library) -> None:
    code = LegacyLibrary(library)
    with pytest.raises(ValueError, match="needed are uint16 and float32"):
        code.conversion("convert", every_pattern(), 0, 1, np.zeros(1, np.float64))
    with pytest.raises(ValueError, match="contiguous"):
        code.conversion("convert", every_pattern()[::2], 0, 1, np.zeros(1, np.float32))
