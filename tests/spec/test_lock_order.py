"""§5.2, last paragraph: locks are taken in one order, and Wait() is called with none of them held.

Five locks became one monitor, but what is beside it (pool, KvManager, records, handles, what is told) has locks of its
own. Here each of them says which were held when it was taken, in a run with faults, cancels, recoveries and somebody
who asks for metrics and health all the time. There is one order if that relation has no cycle.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from executing import READY_S, Bench, executing

from runtime.buffers import BufferPool
from runtime.calrt import Library
from runtime.engine import Engine
from runtime.executor import DeviceExecutor, Refused
from runtime.gate import Gate
from runtime.job import JobHandle
from runtime.kv import KvCoordinator
from runtime.logs import Events
from runtime.observer import Observer
from runtime.recorder import Recorder
from runtime.records import Records

PROMPT = list("Grüße".encode())
LOCKS: tuple[tuple[type, str], ...] = (
    (Engine, "_mu"), (BufferPool, "_lock"), (KvCoordinator, "_calls"), (KvCoordinator, "_records"), (Records, "_mu"),
    (JobHandle, "_mu"), (Observer, "_mu"), (Recorder, "_mu"), (DeviceExecutor, "_closer"), (Events, "_mu"),
    (Gate, "_mu"),
)  # fmt: skip
PARKING = ("token: Any = field(factory=threading.Lock)", "lock = threading.Lock()\n")  # of one thread
RUNTIME = Path(__file__).parents[2] / "runtime"
OVER_CALLS = {
    "KvCoordinator._calls": "kv_"
}  # KvManager is called by one at a time (§5.1-1): its lock is there for that


@define
class Watch:
    """Which locks were taken while which were held, and which were held in which call of CalRT."""

    after: dict[str, set[str]] = field(factory=lambda: defaultdict(set))
    in_calls: set[tuple[str, str]] = field(factory=set)
    calls: set[str] = field(factory=set)
    _mine: Any = field(factory=threading.local)

    @property
    def held(self) -> list[str]:
        """Of this thread, in the order in which they were taken."""
        if not hasattr(self._mine, "held"):
            self._mine.held = []
        found: list[str] = self._mine.held
        return found

    def order(self) -> list[str]:
        """Raises CycleError."""
        return [*TopologicalSorter(self.after).static_order()]


@define(eq=False)
class Watched:
    """A lock that says what was held when it was taken."""

    name: str
    watch: Watch
    lock: Any = field(factory=threading.Lock)

    def acquire(self, *arguments: Any, **more: Any) -> bool:
        self.watch.after[self.name].update(self.watch.held)
        taken: bool = self.lock.acquire(*arguments, **more)
        if taken:
            self.watch.held.append(self.name)
        return taken

    def release(self) -> None:
        self.watch.held.remove(self.name)
        self.lock.release()

    def locked(self) -> bool:
        return bool(self.lock.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


@contextmanager
def watching() -> Iterator[Watch]:
    """Every executor that is made meanwhile has watched locks."""
    watch, call = Watch(), Library.call

    def made(kind: type, attribute: str) -> Any:
        init = kind.__init__  # type: ignore[misc]

        def initialise(self: Any, *arguments: Any, **more: Any) -> None:
            init(self, *arguments, **more)
            setattr(self, attribute, Watched(f"{kind.__name__}.{attribute}", watch))

        return initialise

    def calling(library: Library, name: str, *arguments: Any) -> int:
        watch.calls.add(name)
        watch.in_calls |= {(held, name) for held in watch.held}
        return call(library, name, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        for kind, attribute in LOCKS:
            patch.setattr(kind, "__init__", made(kind, attribute))
        patch.setattr(Library, "call", calling)
        yield watch


UNREST = {"recoveries_max": 1000, "execution_ms": 300, "grace_ms": 50, "sequences_max": 100}


def unrest(b: Bench) -> None:
    """Clients with cancels on a device with faults, while somebody looks."""
    over = threading.Event()

    def client(number: int) -> None:
        for i in range(12):
            try:
                handle = b.enqueue(100 * number + i, PROMPT)
                if i % 4 == 3:
                    handle.cancel()
                handle.wait_until(None)
            except Refused:
                b.executor.wait_ready(READY_S)
            b.executor.seq_rm(100 * number + i)

    def look() -> None:
        while not over.wait(0.005):
            b.executor.metrics.text()
            b.executor.health()
            b.executor.journal.entries()

    looking = threading.Thread(target=look)
    clients = [threading.Thread(target=client, args=(number,)) for number in range(3)]
    for thread in (looking, *clients):
        thread.start()
    for thread in clients:
        thread.join(60)
    over.set()
    looking.join(60)


@pytest.mark.shows("§5.2.order", "§5.2.completion")
def test_locks_are_taken_in_one_order_and_none_is_held_in_a_call(library: Library, tmp_path: Path) -> None:
    with watching() as watch, executing(library, **UNREST, incident_directory=str(tmp_path)) as b:
        b.sim.fault("can_allocate", "refuse", nth=2)  # each at a job of the first generation: a golden run is spared
        b.sim.fault("set_csr", "return", 14, 0, nth=5)
        b.sim.fault("infer", "ccu_exception", nth=6)
        unrest(b)
        b.sim.faults_clear()
        assert b.executor.wait_ready(READY_S)
        assert b.executor.calls.generation_id >= 2, "there was a recovery"
        b.executor.close()
    taken = {f"{kind.__name__}.{attribute}" for kind, attribute in LOCKS}
    assert set(watch.after) == taken, "each was taken"
    watch.order()
    wrong = {(held, name) for held, name in watch.in_calls if not name.startswith(OVER_CALLS.get(held, "nothing"))}
    assert wrong == set()
    assert {"output_wait", "infer", "device_configure", "device_reset_ccu"} <= watch.calls
    assert not {held for held, name in watch.in_calls if name == "output_wait"}


def test_control_two_locks_in_both_orders(library: Library) -> None:
    watch = Watch()
    first, second = Watched("first", watch), Watched("second", watch)
    with first, second:
        pass
    assert watch.order() == ["first", "second"]
    with second, first:
        pass
    with pytest.raises(CycleError):
        watch.order()


def test_control_a_call_with_the_pool_locked(library: Library) -> None:
    with watching() as watch, executing(library) as b:
        pool = b.executor.calls.pool
        assert pool is not None
        with pool._lock:
            b.executor.calls.device.memory_used()
    assert {held for held, _ in watch.in_calls} >= {"BufferPool._lock"}


def needed(module: str, known: set[str]) -> set[str]:
    """The modules of runtime/ that this one imports, and those that they do."""
    if module not in known:
        known.add(module)
        for name in re.findall(
            r"^from runtime\.(\w+) import", (RUNTIME / f"{module}.py").read_text("utf-8"), re.MULTILINE
        ):
            needed(name, known)
    return known


def test_every_lock_of_the_executor_is_watched() -> None:
    """Found in the source. Where one thread parks until another lets it go on, a lock is no lock."""
    found: Counter[str] = Counter()
    for module in needed("executor", set()):
        text = (RUNTIME / f"{module}.py").read_text(encoding="utf-8")
        for place in PARKING:
            text = text.replace(place, "")
        found[module] += len(re.findall(r"^(?!from|import).*(?:\bLock\(\)|threading\.R?Lock\b)", text, re.MULTILINE))
    watched = Counter(kind.__module__.removeprefix("runtime.") for kind, _ in LOCKS)
    assert +found == watched
