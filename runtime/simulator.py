"""The simulator's control panel in Python: what a test does to the device behind CalRT's back, and what it may ask.

None of this is CalRT: it binds `calrt_sim.h`, which only the simulator exports. The executor does without it; whoever
writes down what happened copies the trace where there is one (`calllog`). A device is a number; it lives as long as the
process, whatever handles come and go.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import frozen

from runtime.calrt import Library
from runtime.calrt_c import c_integer, c_text
from runtime.simulator_c import (
    ARGUMENTS,
    ActionInfo,
    CallRecord,
    JobRecord,
    KeyInfo,
    ViolationRecord,
    i32,
    i64,
    u32,
    u64,
)

__all__ = ["Action", "Call", "Ended", "Key", "NotSimulated", "Simulator", "SimulatorError", "Violation"]

CALRT_NAME = "libcalrt.so"


class NotSimulated(RuntimeError):
    """The CalRT library is not the simulator: it has no control panel."""


class SimulatorError(ValueError):
    """Refused: an unknown key, a value out of range, a power cycle of an open device, what C would cut short."""


@frozen
class Key:
    """A setting of the device: vendor facts, clock, latencies (us), sizes, mutants."""

    name: str
    about: str
    default: int
    minimum: int
    maximum: int


@frozen
class Action:
    """Something a planned fault can do, and the calls for which it can be planned."""

    name: str
    calls: tuple[str, ...]
    about: str


@frozen
class Call:
    """One record of the ABI trace. begin_us, end_us: the device's clock. begin_ns, end_ns: the host's monotonic clock.
    Both ends are -1 while the call has not returned."""

    number: int
    thread: int
    begin_us: int
    end_us: int
    handle: int
    other: int
    a: int
    b: int
    result: int
    call: str
    text: str
    begin_ns: int
    end_ns: int


@frozen
class Ended:
    """A job that ended by itself, by the device's clock: begun, to end as planned, and when Wait() could know."""

    number: int
    job: int
    begin_us: int
    end_us: int
    told_us: int


@frozen
class Violation:
    """What the host did to live memory, or against the order of calls."""

    number: int
    at_us: int
    job: int
    kind: str
    text: str


def _number(c_type: Any, what: str, value: int) -> int:
    """The int, which ctypes would cut to its C type. Raises SimulatorError."""
    try:
        return c_integer(c_type, what, value)
    except (TypeError, ValueError) as error:
        raise SimulatorError(str(error)) from None


def _text(what: str, value: str) -> bytes:
    """The name, which C would end at a NUL. Raises SimulatorError."""
    try:
        return c_text(what, value)
    except (TypeError, ValueError) as error:
        raise SimulatorError(str(error)) from None


class Simulator:
    """Device `index` (0 to 63) of the simulator `library`, the file libcalrt.so that the shim has loaded.

    Raises NotSimulated when that library has no control panel; SimulatorError for what the panel refuses, and for what
    must not reach it, such as a number that C would cut.
    """

    def __init__(self, library: Path, index: int = 0) -> None:
        try:
            self._library = ctypes.CDLL(str(library))
            self._functions = {name: getattr(self._library, f"calrtsim_{name}") for name in ARGUMENTS}
            self._last_error = self._library.calrtsim_last_error
        except (OSError, AttributeError) as error:
            raise NotSimulated(f"{library.name} is not the simulator: {error}") from None
        for name, function in self._functions.items():
            function.argtypes, function.restype = ARGUMENTS[name], ctypes.c_int
        self._last_error.argtypes, self._last_error.restype = (), ctypes.c_char_p
        self.index = _number(u32, "the device's index", index)

    @staticmethod
    def beside(library: Library, index: int = 0) -> Simulator:
        """The panel of the CalRT that this shim was linked to. Raises NotSimulated."""
        return Simulator(library.path.with_name(CALRT_NAME), index)

    @staticmethod
    def unused(library: Library, numbers: Iterable[int]) -> Simulator | None:
        """The panel of the first of these devices that nobody has open, which is as new then; None: all are open."""
        for number in numbers:
            simulator = Simulator.beside(library, number)
            with suppress(SimulatorError):
                simulator.power_cycle()
                return simulator
        return None

    def _do(self, name: str, *arguments: Any) -> None:
        if self._functions[name](self.index, *arguments) != 0:
            raise SimulatorError((self._last_error() or b"").decode())

    def _ask(self, name: str, *arguments: Any) -> int:
        value = i64()
        self._do(name, *arguments, ctypes.byref(value))
        return value.value

    def _listed(self, name: str, kind: type[Any]) -> Iterator[Any]:
        i, info = 0, kind()
        while self._functions[name](i, ctypes.byref(info)) == 0:
            yield info
            i, info = i + 1, kind()

    # -- settings and truth -------------------------------------------------------------------------------------------
    def settings(self) -> tuple[Key, ...]:
        return tuple(
            Key(k.name.decode(), k.about.decode(), k.default_value, k.minimum, k.maximum)
            for k in self._listed("key", KeyInfo)
        )

    def actions(self) -> tuple[Action, ...]:
        return tuple(
            Action(a.name.decode(), tuple(a.calls.decode().split()), a.about.decode())
            for a in self._listed("action", ActionInfo)
        )

    def violation_kinds(self) -> tuple[str, ...]:
        text = ctypes.create_string_buffer(64)
        names: list[str] = []
        while self._functions["violation_kind"](len(names), text, len(text)) == 0:
            names.append(text.value.decode())
        return tuple(names)

    def set(self, **settings: int) -> None:
        """Set keys, such as `set(clock=1, decode_us=5000)`."""
        for key, value in settings.items():
            self._do("set", _text("the key", key), _number(i64, f"the value of {key}", value))

    def get(self, key: str) -> int:
        return self._ask("get", _text("the key", key))

    def truth(self, name: str) -> int:
        """What the device knows: now_us, broken, jobs_running, memory_used, ... (calrt_sim.h lists them)."""
        return self._ask("truth", _text("the name", name))

    def kv(self, sequence: int) -> tuple[int, int]:
        """(length in tokens, digest of the entries) that the device holds; length -1: nothing."""
        length, digest = i64(), u64()
        self._do("kv", _number(i32, "the sequence", sequence), ctypes.byref(length), ctypes.byref(digest))
        return length.value, digest.value

    def power_cycle(self) -> None:
        """As new: no jobs, KV, faults, trace or violations; every key at its default."""
        self._do("power_cycle")

    # -- the stepped clock --------------------------------------------------------------------------------------------
    def step(self) -> bool:
        """To the device's next event; False when there is none."""
        moved = ctypes.c_int()
        self._do("step", ctypes.byref(moved))
        return bool(moved.value)

    def advance(self, us: int) -> None:
        self._do("advance", _number(i64, "the span in us", us))

    # -- faults -------------------------------------------------------------------------------------------------------
    def fault(self, call: str, action: str, a: int = 0, b: int = 0, nth: int = 1) -> None:
        """At the nth coming call of `call`, `action` happens (see `actions()` for what a and b mean)."""
        a_type = ctypes.c_int if action == "return" else i64  # a code of CalRT's, which is an int
        names = (_text("the call", call), _number(i64, "nth", nth), _text("the action", action))
        self._do("fault", *names, _number(a_type, "a", a), _number(i64, "b", b))

    def fault_seed(self, seed: int, per_million: int) -> None:
        self._do("fault_seed", _number(u64, "the seed", seed), _number(i64, "per_million", per_million))

    def faults_clear(self) -> None:
        self._do("faults_clear")

    def faults_fired(self) -> int:
        return self._ask("faults_fired")

    # -- records ------------------------------------------------------------------------------------------------------
    def trace(self, start: int = 0, most: int | None = None) -> tuple[Call, ...]:
        """The calls that are kept, oldest first, from number `start` on; at most so many numbers."""
        return tuple(
            Call(
                r.number, r.thread, r.begin_us, r.end_us, r.handle, r.other, r.a, r.b, r.result, r.call.decode(),
                r.text.decode(errors="replace"), r.begin_ns, r.end_ns,
            )
            for r in self._records("trace", CallRecord, start, most)
        )  # fmt: skip

    def jobs(self, start: int = 0) -> tuple[Ended, ...]:
        """The ended jobs that are kept, oldest first, from number `start` on."""
        return tuple(
            Ended(*(getattr(r, f) for f, _ in JobRecord._fields_)) for r in self._records("jobs", JobRecord, start)
        )

    def calls_total(self) -> int:
        """How many calls there were so far: the number that the next one will have in the trace."""
        return self._total("trace")

    def violations_total(self) -> int:
        """How many violations there were so far."""
        return self._total("violations")

    def _total(self, name: str) -> int:
        read, total = u32(), i64()
        self._do(name, 0, 0, None, ctypes.byref(read), ctypes.byref(total))
        return total.value

    def violations(self) -> tuple[Violation, ...]:
        return tuple(
            Violation(r.number, r.at_us, r.job, r.kind.decode(), r.text.decode(errors="replace"))
            for r in self._records("violations", ViolationRecord)
        )

    def _records(self, name: str, kind: type[Any], start: int = 0, most: int | None = None) -> list[Any]:
        capacity, found = 256 if most is None else most, []
        while True:  # pages are of numbers, and the oldest may be gone
            page, read, total = (kind * capacity)(), u32(), i64()
            self._do(name, start, capacity, page, ctypes.byref(read), ctypes.byref(total))
            found += page[: read.value]
            start += capacity
            if start >= total.value or most is not None:
                return found
