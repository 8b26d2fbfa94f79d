"""A configured device of model `tiny` on a stepped clock, with pools of buffers on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from attrs import define, field
from card import STEPPED
from numpy.typing import NDArray

from runtime.buffers import BufferLease, BufferPool, BufferSlot
from runtime.calbin import sample
from runtime.calrt import Calbin, Device, Handle, Kv, Library
from runtime.lane import Lane
from runtime.manifest import CalTaskKind, ModelGeneration, load_manifest, verify_loaded
from runtime.oracle import Oracle
from runtime.prepare import program
from runtime.simulator import Simulator

NUMBER = 10  # of the device
IDS, EMBEDS, DECODE = CalTaskKind.PrefillIds, CalTaskKind.PrefillEmbeds, CalTaskKind.Decode


def model_of(name: str) -> ModelGeneration:
    """A sample's generation as its manifest says, without a device."""
    manifest = load_manifest(sample(name).with_suffix(".json"))
    submodels = {m.kind: m for m in manifest.submodels}
    return ModelGeneration(1, manifest.calbin_sha256, manifest.calrt_version, submodels)


def there(result: tuple[int, Handle | None]) -> Handle:
    code, handle = result
    assert code == 0
    assert handle is not None
    return handle


@define(eq=False)
class Bench:
    """CalRT's side (`device`, `calbin`, `kv`), the panel behind it (`sim`), and what the device must say (`oracle`)."""

    library: Library
    sim: Simulator
    device: Device
    calbin: Calbin
    kv: Kv
    model: ModelGeneration
    oracle: Oracle
    pools: list[BufferPool] = field(factory=list)
    expected: set[str] = field(factory=set)  # violations that the test makes on purpose

    def pool(self, slots: int = 2, on_drop: Callable[[BufferSlot], None] | None = None) -> BufferPool:
        pool = BufferPool(self.library, self.device, self.calbin, self.model, slots, on_drop)
        self.pools.append(pool)
        return pool

    def built(self, slots: int = 2, on_drop: Callable[[BufferSlot], None] | None = None) -> BufferPool:
        pool = self.pool(slots, on_drop)
        assert pool.build() is None
        return pool

    def run_out(self) -> None:
        while self.sim.step():
            pass

    def calls(self) -> list[tuple[str, str]]:
        return [(c.call, c.text) for c in self.sim.trace()]

    def submit(self, lane: Lane, sequence: int, values: NDArray[np.generic], past: int = 0) -> None:
        assert self.kv.apply(sequence, past + len(values)) == (0, True)
        assert program(lane, sequence, values, past) is None
        assert lane.infer() == 0

    def call(
        self, lease: BufferLease, kind: CalTaskKind, sequence: int, values: NDArray[np.generic], past: int = 0
    ) -> NDArray[np.uint16]:
        """A whole call; the row as BF16 bits."""
        lane = lease.lane(kind)
        self.submit(lane, sequence, values, past)
        self.run_out()
        assert lane.output.wait()[0] == 0
        assert lane.output.get_status()[0] == 0
        row = np.empty(lane.contract.vocabulary, np.float32)
        assert lane.read(len(values), row) is None
        return (row.view(np.uint32) >> 16).astype(np.uint16)

    def close(self) -> None:
        """Only here, when the device has stopped for certain, is what is in quarantine let go."""
        self.sim.faults_clear()
        self.run_out()
        self.device.reset()
        for pool in self.pools:
            pool.retire()
            assert {slot.release() for slot in pool.quarantined()} <= {None}
        assert [h.release() for h in (self.kv, self.device, self.calbin)] == [0, 0, 0]


@contextmanager
def bench_of(library: Library, model: str = "tiny", **settings: int) -> Iterator[Bench]:
    """As new at the beginning; at the end nothing may be alive, and no violation have been seen."""
    sim = Simulator.beside(library, NUMBER)
    sim.power_cycle()
    sim.set(**{**STEPPED, "trace_limit": 100_000, **settings})
    manifest = load_manifest(sample(model).with_suffix(".json"))
    calbin, device = there(library.calbin(manifest.calbin_path)), there(library.device(NUMBER))
    assert isinstance(calbin, Calbin)
    assert isinstance(device, Device)
    generation = verify_loaded(manifest, calbin)
    assert device.configure(calbin) == 0
    kv = there(device.kv())
    assert isinstance(kv, Kv)
    bench = Bench(library, sim, device, calbin, kv, generation, Oracle.of_calbin(manifest.calbin_path))
    try:
        yield bench
    finally:
        bench.close()
    assert sim.truth("buffers_alive") == 0
    assert {v.kind for v in sim.violations()} == bench.expected
