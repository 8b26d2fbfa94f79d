"""A simulated device for tests: model `tiny` on a stepped clock, so that every moment of a job can be visited.

`Wait()` does not block here (key wait_blocks = 0): a job that is not done answers Timeout at once. Jobs are those of
the vendor kit's rig; what they must say comes from the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from machines.errors import code_named
from runtime.calbin import sample
from runtime.calrt import BufStatus, Library
from runtime.manifest import load_manifest, verify_loaded
from runtime.oracle import Oracle
from runtime.simulator import Simulator
from runtime.vendor_probe.rig import Job, Outcome, Rig

TIMEOUT = code_named("Timeout").number
BUSY = code_named("DeviceBusy").number
UNAVAILABLE = code_named("DeviceUnavailable").number

# Different, so that no phase can be taken for another.
H2D_US, PREFILL_US, DECODE_US, D2H_US = 160, 1000, 500, 800
STEPPED = {
    "clock": 1, "wait_blocks": 0, "h2d_us": H2D_US, "prefill_us": PREFILL_US, "decode_us": DECODE_US, "d2h_us": D2H_US,
}  # fmt: skip
NUMBER = 7  # of the device


class Card:
    """The device, from both sides: `rig` is CalRT's, `sim` is the panel behind it."""

    def __init__(self, sim: Simulator, rig: Rig, oracle: Oracle) -> None:
        self.sim, self.rig, self.oracle = sim, rig, oracle

    def run_out(self) -> None:
        """Until nothing moves any more."""
        while self.sim.step():
            pass

    def to_the_middle_of_the_output(self) -> None:
        """From a submit to where half of its output has been written."""
        self.sim.advance(H2D_US + PREFILL_US + D2H_US // 2 + 10)

    def complete(self, job: Job) -> Outcome:
        self.run_out()
        return self.rig.finish(job)

    def prefill(self, count: int = 16, sequence: int | None = None, past: int = 0) -> tuple[int, Job]:
        """A submitted prefill on a new sequence."""
        sequence = self.rig.new_sequence() if sequence is None else sequence
        return sequence, self.rig.submit(sequence, past, count)

    def says(self, job: Job, count: int) -> bool:
        """Whether the job's row is the oracle's after the rig's first `count` tokens."""
        row = job.logits[job.row].view(np.uint16)
        return bool((row == self.oracle.row(self.rig.tokens(0, count))).all())

    def violations(self) -> list[str]:
        return [v.kind for v in self.sim.violations()]

    def broken(self) -> bool:
        return bool(self.sim.truth("broken"))


@contextmanager
def card_of(library: Library, model: str = "tiny", **settings: int) -> Iterator[Card]:
    """A card with these settings on top of STEPPED; as new at the beginning."""
    sim = Simulator.beside(library, NUMBER)
    sim.power_cycle()
    sim.set(**{**STEPPED, **settings})
    manifest = load_manifest(sample(model).with_suffix(".json"))
    code, calbin = library.calbin(manifest.calbin_path)
    assert code == 0
    assert calbin is not None
    with calbin:
        generation = verify_loaded(manifest, calbin)
    with Rig(library, NUMBER, str(manifest.calbin_path), generation) as rig:
        yield Card(sim, rig, Oracle.of_calbin(manifest.calbin_path))


DONE, RAISED, RUNNING, KILLED = BufStatus.DONE, BufStatus.DONE_CCU_EXCEPTION, BufStatus.RUNNING, BufStatus.KILLED
