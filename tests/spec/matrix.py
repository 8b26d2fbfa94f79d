"""§8's table, and an executor to hold it against: each call can return each code, and time moves by hand.

What a class of codes means is written here as the specification says it (`ROWS`). Two of its sentences stand above that
table and are applied to it: what may have reached the device is in doubt (§6.5, §7), and a resource in doubt comes back
by a reset only. Time stands still (a clock that the test moves), so a back-off ends when the test says so.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from attrs import define, field, frozen
from executing import Bench, executing

from machines.admission import AdmissionMode
from machines.device import DeviceState
from machines.protocol import RULEBOOK
from runtime.calrt import Library
from runtime.executor import Refused
from runtime.oracle import Oracle
from runtime.status import Status, now_us

PROMPT = list("Grüße".encode())

STAYS, RECONFIGURES, RESETS, ENDS = "stays", "is configured anew", "is reset", "Failed"


@frozen
class Row:
    """One row of §8. mode: of admission right after; way: what becomes of the device."""

    codes: tuple[int, ...]
    mode: str
    way: str


ROWS = {
    "request": Row((1, 14, 21, 22), "Open", STAYS),
    "lifecycle": Row((2, 7, 16), "Paused", RECONFIGURES),
    "artifact": Row((4, 5, 19, 10, 11, 12), "Rejected", ENDS),  # there is no model to roll back to; see below
    "compatibility": Row((8, 9, 23), "Stopped", ENDS),
    "transient": Row((13, 17), "Reduced", STAYS),
    "device": Row((18, 24, 25, 28), "Stopped", RESETS),
    "programming": Row((27, 29), "Open", STAYS),
    "unknown": Row((15, 20, 3, 6, 26, -1, 30, -(2**31), 2**31 - 1), "Stopped", RESETS),
}
FAILING = {r.id for r in RULEBOOK.rules if r.outcome and not {"ok", "valid"} & {*r.outcome[1]}}
CODES = {code: name for name, row in ROWS.items() for code in row.codes}
ALWAYS = {row.codes[0] for row in ROWS.values()} | {17}  # one of each class, and Busy; the others nightly
TIERED = [
    pytest.param(
        code,
        marks=[pytest.mark.shows(f"§8.{name.capitalize()}"), *([] if code in ALWAYS else [pytest.mark.nightly])],
    )
    for code, name in CODES.items()
]
IN_DOUBT = {STAYS: RESETS, RECONFIGURES: RESETS}
CLEAN = ("input_bind_sequence", "input_slice_tensor", "input_set_csr")  # of `prepare`: nothing was started
WAITED = ("output_wait", "output_get_status", "output_tensor_size")
RESERVED = ("kv_can_allocate", "kv_apply")
RUNGS = ("device_reset_ccu", "device_reset_configuration", "device_reset")
CONFIGURED = (
    "calbin_load", "device_reset_configuration", "device_configure", "kv_create", "kv_units_total", "input_create",
    "input_map_buf", "output_map_buf",
)  # fmt: skip
GOLDEN = ("kv_can_allocate", "input_bind_sequence", "infer", "output_wait", "output_get_status", "kv_apply")


def expected(call: str, code: int) -> tuple[str, str]:
    """The mode after, and the way of the device, for a call about a job."""
    name, row = CODES[code], ROWS[CODES[code]]
    if call in CLEAN or (call, code) == ("infer", 17):  # a Busy submit has started nothing (FI05)
        return row.mode, row.way
    if call == "infer":
        return row.mode, IN_DOUBT.get(row.way, row.way)
    if call in WAITED[:2] and name in ("artifact", "compatibility"):
        return row.mode, ENDS
    return "Stopped", RESETS  # KvManager has no codes (§7), and whoever waited for a job does not know its end


FRESH = itertools.count(1)  # sequences


# -- the bench ---------------------------------------------------------------------------------------------------------
@frozen
class Planned:
    """The next `call`, counted after the first call `after`, returns `code`."""

    call: str
    code: int
    after: str = ""


@define
class Hand:
    """Time that moves when the test says so, and one call that returns a code instead of being made."""

    at_us: int = field(factory=now_us)
    bench: Any = None
    modes: list[tuple[str, str, str]] = field(factory=list)  # after each step: rule, mode, device

    def now_us(self) -> int:
        return self.at_us

    def advance(self, us: int) -> None:
        self.at_us += us
        self.bench.executor.crew.clock.wake()

    def watch(self, bench: Bench) -> None:
        """See every step inside the monitor, where nothing else happens at the same time."""
        self.bench, engine = bench, bench.executor.engine
        add = engine.journal.add

        def seeing(at_us: int, rule: str, *more: Any) -> None:
            add(at_us, rule, *more)
            mode, device = list(AdmissionMode)[engine._s.mode].name, list(DeviceState)[engine._s.device].name
            self.modes.append((rule, mode, device))

        engine.journal.add = seeing  # type: ignore[method-assign]

    @contextmanager
    def returns(self, *planned: Planned) -> Iterator[list[str]]:
        """Each planned call is not made, once, and returns its code. Yields the names of the calls, of all threads."""
        functions = self.bench.executor.calls.library._functions
        before, seen, mu, left = dict(functions), [], threading.Lock(), list(planned)

        def other(name: str) -> Any:
            def made(*arguments: Any) -> int:
                with mu:
                    due = next((p for p in left if p.call == name and (not p.after or p.after in seen)), None)
                    seen.append(name)
                    if due is not None:
                        left.remove(due)
                        return due.code
                return int(before[name](*arguments))

            return made

        functions.update({name: other(name) for name in before})
        try:
            yield seen
        finally:
            functions.update(before)
        assert not left, f"{left[0].call} was not called"


def read(b: Bench) -> tuple[str, str]:
    mode, device = b.executor.engine.read(lambda s: (s.mode, s.device))
    return list(AdmissionMode)[mode].name, list(DeviceState)[device].name


def settled(b: Bench) -> bool:
    return read(b)[1] in ("Ready", "Failed") and not b.executor.engine.read(lambda s: s.work)


def ask(b: Bench, seq_id: int, values: list[int] | None = None, past: int = 0) -> Status:
    try:
        return b.run(seq_id, values or PROMPT, past).status
    except Refused as refused:
        return refused.status


def serves(b: Bench, oracle: Oracle | None = None) -> bool:
    seq_id = next(FRESH)
    right = b.tokens(seq_id, PROMPT, 2) == (oracle or b.oracle).tokens(PROMPT, 2)
    return right and b.executor.seq_rm(seq_id).ok


class Benches:
    """A Ready executor, used again as long as it is."""

    def __init__(self, library: Library, **config: Any) -> None:
        self._library, self._config = library, {"recoveries_max": 1000, "strikes_max": 3, **config}
        self._stack, self._hand = ExitStack(), Hand()

    def ready(self) -> tuple[Bench, Hand]:
        if self._hand.bench is None or read(self._hand.bench) != ("Open", "Ready"):
            self.close()
            self._hand = hand = Hand()
            hand.watch(self._stack.enter_context(executing(self._library, now_us=hand.now_us, **self._config)))
        self._hand.modes.clear()
        return self._hand.bench, self._hand

    def close(self) -> None:
        """Also when it is asked again: an idle executor that was closed is Ready for the rulebook."""
        self._stack.close()
        self._hand = Hand()
