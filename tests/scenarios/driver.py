"""A driver that misbehaves between the binding and CalRT: calls that do not return, or spin with its lock held.

Theory. The simulated device can hang; here it is the calls. Every call of the binding goes through one function
(`Library.call`), so a driver with one lock, as real ones have, is put in its place. `hold`: the call sits in it, and
others may be made. `spin`: it burns a processor in native code, without the GIL, and holds the lock, so that every
other call waits behind it for ever. Wait() blocks outside of that lock, or nobody could submit beside it.
All of them return when the block ends, so that no thread is left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import pbkdf2_hmac
from typing import Any

from attrs import define, field

from runtime.calrt import Library

PURE = ("version", "last_error", "enforces_call_order", "logits")  # the shim's own: the driver is not asked
BURN_ROUNDS = 20_000  # of a hash: some 10 ms


@define(eq=False)
class Driver:
    """held: calls that are in a `hold` or a `spin` now, by name. made: every call so far."""

    library: Library
    let_go: threading.Event = field(factory=threading.Event)
    held: list[str] = field(factory=list)
    made: list[str] = field(factory=list)
    _by: dict[str, str] = field(factory=dict)
    _misbehaves: dict[str, str] = field(factory=dict)
    _lock: Any = field(factory=threading.Lock)

    def hold(self, *names: str) -> None:
        """From now on these calls do not return, and have not been made."""
        self._misbehaves |= dict.fromkeys(names, "hold")

    def hold_next(self, name: str, by: str = "") -> None:
        """The next such call does not return. by: the name of the thread that makes it; "": any."""
        self._by[name] = by
        self._misbehaves[name] = "hold next"

    def spin(self, name: str) -> None:
        """The next such call spins with the lock held."""
        self._misbehaves[name] = "spin"

    def __call__(self, name: str, *arguments: Any) -> int:
        if name in PURE:
            return Library.call(self.library, name, *arguments)
        self.made.append(name)
        how = self._misbehaves.get(name, "")
        if how == "hold next" and self._by[name] not in ("", threading.current_thread().name):
            how = ""
        if how in ("hold next", "spin"):
            del self._misbehaves[name]
        if how.startswith("hold"):
            self._stay(name, self.let_go.wait)
        elif how == "spin":
            with self._lock:
                self._stay(name, self._burn)
        if name != "output_wait":
            with self._lock:
                return Library.call(self.library, name, *arguments)
        return Library.call(self.library, name, *arguments)

    def _stay(self, name: str, until: Any) -> None:
        self.held.append(name)
        until()
        self.held.remove(name)

    def _burn(self) -> None:
        while not self.let_go.is_set():
            pbkdf2_hmac("sha256", b"", b"", BURN_ROUNDS)


@contextmanager
def driving(library: Library) -> Iterator[Driver]:
    """Every call of this library goes through the driver. Executors must be closed inside."""
    driver = Driver(library)
    library.call = driver  # type: ignore[method-assign]
    try:
        yield driver
    finally:
        driver.let_go.set()
        del library.call
