"""What an executor costs while nothing can be done: idle, and with a line of clients that wait for KV.

Theory. Nobody polls, so a process that waits should take next to no processor time; and a unit of KV that was freed
serves one client, so one should wake, however many wait. Both are asked of the kernel: the process's CPU time, and of
each waiting thread how often it has gone to sleep since. The device itself is full here, which only a refused `Apply`
says; so one retry a while is in these numbers (`kv_retry_ms`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from runtime.bench_line import Goal, Line, line
from runtime.bench_profile import Thread, threads_now
from runtime.bench_setting import Setting
from runtime.bench_sides import DEVICES, Client, executor_on
from runtime.calbin import sample
from runtime.executor import DeviceExecutor
from runtime.manifest import load_manifest
from runtime.run import idle
from runtime.simulator import Simulator
from runtime.straight import DeviceFailed

__all__ = ["IDLE", "WAITERS", "idle_lines", "idle_ms", "waiter_lines", "waiters_ms"]

IDLE, WAITERS = "idle", "waiters"
CPU = Goal(1.0)  # %
ONE = Goal(1.0)  # wake-up
PROMPT = tuple(range(16))
HELD = 2  # sequences that hold all KV of the device
SETTLE_S = 0.05  # until the threads that a step has woken sleep again
NAME, ACTOR = "waiter", "calexec "  # how the names of threads begin
TAKEN_S = 20.0


def idle_lines(s: Setting) -> Iterator[Line]:
    """Raises DeviceFailed."""
    Simulator.beside(s.library, DEVICES["executor"]).power_cycle()
    with executor_on(s.manifest) as executor:
        idle(executor)
        yield line(IDLE, "idle executor: CPU", _cpu_percents(s), goal=CPU, value_unit="%")


def idle_ms(s: Setting) -> float:
    return s.size.blocks * s.size.idle_s * 1_000


def _cpu_percents(s: Setting) -> list[float]:
    """Of one processor, in each of the blocks."""
    found: list[float] = []
    for _ in range(s.size.blocks):
        cpu_ns, wall_ns = time.process_time_ns(), time.monotonic_ns()
        time.sleep(s.size.idle_s)
        found.append(100 * (time.process_time_ns() - cpu_ns) / (time.monotonic_ns() - wall_ns))
        s.step(1_000 * s.size.idle_s)
    return found


# -- a line of clients -------------------------------------------------------------------------------------------------


def waiter_lines(s: Setting) -> Iterator[Line]:
    """Raises DeviceFailed."""
    manifest = load_manifest(sample("tiny").with_suffix(".json"))
    simulator = Simulator.beside(s.library, DEVICES["executor"])
    simulator.power_cycle()
    simulator.set(kv_units=HELD)
    everybody = s.size.waiters + HELD
    with executor_on(manifest, jobs_max=everybody, sequences_max=everybody) as executor, waiting(executor, s) as queue:
        many = f"{s.size.waiters} waiters"
        yield line(WAITERS, f"{many}: CPU", _cpu_percents(s), goal=CPU, value_unit="%")
        woken, actors = zip(*(freed(executor, queue, s) for _ in range(s.size.freed)), strict=True)
        yield line(WAITERS, f"{many}: woken by a freed unit", woken, goal=ONE)
        yield line(WAITERS, f"{many}: wake-ups of actors for it", actors)


def waiters_ms(s: Setting) -> float:
    return s.size.blocks * s.size.idle_s * 1_000 + 2 * s.size.freed * SETTLE_S * 1_000


@contextmanager
def waiting(executor: DeviceExecutor, s: Setting) -> Iterator[SimpleQueue[int]]:
    """All KV is held, and so many clients wait for it, a thread each. Yields the queue of the sequences that hold some,
    in the order in which they came to it. Afterwards everybody is sent home."""
    holding: SimpleQueue[int] = SimpleQueue()
    home = threading.Event()
    first = Client(executor)
    for sequence in range(HELD):
        first.prefill(sequence, PROMPT)
        holding.put(sequence)

    def wait(sequence: int) -> None:
        try:
            Client(executor).prefill(sequence, PROMPT)
        except DeviceFailed:  # the end: its job was cancelled
            return
        holding.put(sequence)
        home.wait()

    threads = [
        threading.Thread(target=wait, args=(HELD + i,), name=f"{NAME} {i}", daemon=True) for i in range(s.size.waiters)
    ]
    for thread in threads:
        thread.start()
    _until_all_wait(executor, s.size.waiters)
    try:
        yield holding
    finally:
        for context in executor.records.contexts():
            context.handle.cancel()
        home.set()
        for thread in threads:
            thread.join()


def _until_all_wait(executor: DeviceExecutor, number: int) -> None:
    while len(executor.records.contexts()) < number:
        time.sleep(SETTLE_S)
    time.sleep(SETTLE_S)


def freed(executor: DeviceExecutor, holding: SimpleQueue[int], s: Setting) -> tuple[float, float]:
    """Free one unit, and see it taken: (how many waiting clients have woken, how often actors have)."""
    before = threads_now()
    Client(executor).forget(holding.get())
    taken = holding.get(timeout=TAKEN_S)
    holding.put(taken)
    time.sleep(SETTLE_S)
    after = threads_now()
    s.step(2 * SETTLE_S * 1_000)
    slept = {
        thread.name: thread.sleeps - before.get(number, Thread("", 0, 0)).sleeps for number, thread in after.items()
    }
    clients = sum(times > 0 for name, times in slept.items() if name.startswith(NAME))
    return float(clients), float(sum(times for name, times in slept.items() if name.startswith(ACTOR)))
