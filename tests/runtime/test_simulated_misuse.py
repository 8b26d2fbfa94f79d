"""What must not reach the simulator's panel: ctypes would cut a number to its C type, and end a name at a NUL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runtime.calrt import Library
from runtime.simulator import Simulator, SimulatorError

NUMBER = 8  # of the device
DECODE_US = 300
TOP = 1 << 64


@pytest.fixture
def sim(library: Library) -> Iterator[Simulator]:
    sim = Simulator.beside(library, NUMBER)
    sim.power_cycle()
    sim.set(clock=1, decode_us=DECODE_US)
    yield sim
    sim.power_cycle()


REFUSED: list[tuple[Callable[[Simulator], Any], str]] = [
    (lambda s: s.set(decode_us=TOP + 5), "the value of decode_us is 18446744073709551621; allowed are -9223372036854"),
    (lambda s: s.set(decode_us=2.9), "the value of decode_us is 2.9; an integer is needed"),
    (lambda s: s.set(decode_us=True), "the value of decode_us is True; an integer is needed"),
    (lambda s: s.set(decode_us="7"), "the value of decode_us is '7'; an integer is needed"),
    (lambda s: s.set(**{"decode_us\0junk": 7}), r"the key is 'decode_us\x00junk'; a NUL would end it in C"),
    (lambda s: s.get("decode_us\0junk"), r"the key is 'decode_us\x00junk'; a NUL"),
    (lambda s: s.get(b"decode_us"), "the key is b'decode_us'; a str is needed"),
    (lambda s: s.truth("now_us\0junk"), r"the name is 'now_us\x00junk'; a NUL"),
    (lambda s: s.kv((1 << 32) + 1), "the sequence is 4294967297; allowed are -2147483648 to 2147483647"),
    (lambda s: s.advance(TOP + 1), "the span in us is 18446744073709551617; allowed are"),
    (lambda s: s.fault("infer\0junk", "hang"), r"the call is 'infer\x00junk'; a NUL"),
    (lambda s: s.fault("infer", "hang\0junk"), r"the action is 'hang\x00junk'; a NUL"),
    (lambda s: s.fault("infer", "return", 1 << 40), "a is 1099511627776; allowed are -2147483648 to 2147483647"),
    (lambda s: s.fault("infer", "late", 1 << 63), "a is 9223372036854775808; allowed are"),
    (lambda s: s.fault("infer", "return", 4, TOP), "b is 18446744073709551616; allowed are"),
    (lambda s: s.fault("infer", "hang", nth=TOP + 1), "nth is 18446744073709551617; allowed are"),
    (lambda s: s.fault_seed(TOP, 1000), "the seed is 18446744073709551616; allowed are 0 to 18446744073709551615"),
    (lambda s: s.fault_seed(1, TOP), "per_million is 18446744073709551616; allowed are"),
]


@pytest.mark.parametrize(("deed", "text"), REFUSED)
def test_nothing_is_cut(sim: Simulator, deed: Callable[[Simulator], Any], text: str) -> None:
    with pytest.raises(SimulatorError) as caught:
        deed(sim)
    assert str(caught.value).startswith(text)
    assert sim.get("decode_us") == DECODE_US
    assert sim.truth("now_us") == 0


@pytest.mark.parametrize("index", [1 << 32, (1 << 32) + NUMBER, -1, 1.0, True])
def test_another_card_is_not_taken_for_it(library: Library, index: Any) -> None:
    with pytest.raises(SimulatorError, match=f"the device's index is {index}; "):
        Simulator.beside(library, index)


def test_what_just_fits_arrives(sim: Simulator) -> None:
    """Control: the panel itself says what it thinks of numbers that C can hold."""
    sim.fault("infer", "return", -(1 << 31))
    sim.fault("infer", "late", 1 << 31)
    sim.fault_seed(TOP - 1, 0)
    assert sim.kv((1 << 31) - 1) == (-1, 0)
    with pytest.raises(SimulatorError, match="decode_us"):
        sim.set(decode_us=(1 << 63) - 1)
