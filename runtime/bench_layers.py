"""What each layer computes for a token: CPU time of its methods, without that of the watched methods that they call.

Theory. A method is watched by putting another one in its place while a measurement lasts; nothing of it stays. Per
thread there is a stack of the watched calls that are under way, so each is charged only with what is its own, and the
sum is what was spent in all of them. What is watched runs slower for it: a microsecond or so for each call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from attrs import define

from runtime.engine import Engine
from runtime.executor import DeviceExecutor
from runtime.kv import KvCoordinator
from runtime.lane import Lane

__all__ = ["Layer", "Layers", "layers_of"]

LAYERS: dict[type, tuple[str, ...]] = {
    Engine: ("fire", "take", "report"),
    KvCoordinator: ("reserve", "commit"),
    Lane: ("infer", "read", "undo"),
}
"""By class the methods that are watched; and what belongs to a step besides the engine (`Engine.on_step`)."""


@define
class Layer:
    """times: how often it was called; cpu_ns: of their threads, without what is charged to others."""

    times: int = 0
    cpu_ns: int = 0


class Layers:
    """The watched methods by name. Thread-safe."""

    def __init__(self) -> None:
        self.spent: dict[str, Layer] = {}
        self._mu, self._own = threading.Lock(), threading.local()

    @contextmanager
    def watching(self, owner: Any, name: str) -> Iterator[None]:
        """The method or function `name` of a class or an object is watched while this lasts."""
        called = f"{(owner if isinstance(owner, type) else type(owner)).__name__}.{name}"
        self.spent[called] = Layer()
        with patch.object(owner, name, self._watched(self.spent[called], getattr(owner, name))):
            yield

    def _watched(self, layer: Layer, honest: Callable[..., Any]) -> Callable[..., Any]:
        def method(*arguments: Any, **more: Any) -> Any:
            others: list[int] = self._own.__dict__.setdefault("others", [])  # of each call under way: charged to others
            others.append(0)
            begin_ns = time.thread_time_ns()
            try:
                return honest(*arguments, **more)
            finally:
                cpu_ns = time.thread_time_ns() - begin_ns
                own_ns = cpu_ns - others.pop()
                if others:
                    others[-1] += cpu_ns
                with self._mu:
                    layer.times += 1
                    layer.cpu_ns += own_ns

        return method


def layers_of(executor: DeviceExecutor, work: Callable[[], object]) -> dict[str, Layer]:
    """What the executor's layers spend while `work` is done."""
    layers = Layers()
    with ExitStack() as stack:
        stack.enter_context(layers.watching(executor.engine, "on_step"))
        for owner, names in LAYERS.items():
            for name in names:
                stack.enter_context(layers.watching(owner, name))
        work()
    return layers.spent
