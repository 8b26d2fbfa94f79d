"""The device and its generations: model, Calbin, KvManager and pool of the present one, and what is left of old ones.

Theory. A generation (§5.1-8) is what one configuration made. When it ends nothing of it is used again; what was free is
given back under the watchdog of the reset or the configuration that follows, and what may still be the device's is kept
until the process ends, and watched: a change in it is a write that came too late. Which model a new generation is of
follows from what was asked for and from the rules' fallback. Nothing here asks in which state anything is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Self

from attrs import define, field

from machines.protocol.params import RESET_IS_HONEST, RESET_STOPS_DMA
from runtime.buffers import BufferPool, BufferSlot
from runtime.calrt import Calbin, Device, Handle, Library
from runtime.config import Config
from runtime.kv import KvCoordinator, KvSize
from runtime.logs import Events
from runtime.manifest import CalTaskKind, Manifest, ModelGeneration, load_manifest, verify_loaded
from runtime.status import Failure, failed

__all__ = ["ExecutorError", "Generations", "checked"]

WATCHED_POOLS = 4  # of ended generations, the last ones


class ExecutorError(RuntimeError):
    """The executor could not be started."""


@define(eq=False)
class Generation:
    """What was made for one generation: its pool, its KvManager and its Calbin. retired: what is left of its pool is in
    quarantine, and stays there."""

    pool: BufferPool
    handles: list[Handle]
    retired: bool = False

    @property
    def in_doubt(self) -> bool:
        """Something of it is lent, or in quarantine."""
        counts = self.pool.counts()
        return bool(counts.leased or counts.quarantined)

    def retire(self) -> None:
        """It has ended: what of its pool the device cannot be using is given back."""
        if not self.retired:
            self.retired = self.pool.retire() is None and not self.pool.counts().leased

    def release(self) -> bool:
        """Everything; False: some of it is still held, and a second call tries that again."""
        self.handles[:] = [handle for handle in self.handles if handle.release()]
        return not self.handles


def checked(library: Library, path: Path) -> Manifest:
    """A manifest that is sound, and true of its calbin as CalRT loads it. The device is not touched. Raises
    ManifestError or ExecutorError."""
    manifest = load_manifest(path)
    code, calbin = library.calbin(manifest.calbin_path)
    if calbin is None:
        raise ExecutorError(f"{manifest.calbin_path}: {failed('load the calbin', code, library)}")
    with calbin:
        verify_loaded(manifest, calbin)
    return manifest


@define(eq=False)
class Generations:
    """The executor's one device, and everything of its generations.

    kv, pool: None until the first generation is configured. generation_id counts the generations that were begun.
    on_violation: told of what must never be. dropped: leases that nobody gave back, a bug of ours.
    """

    library: Library
    device: Device
    manifest: Manifest
    config: Config
    generation_id: int = 1
    model: ModelGeneration | None = None
    calbin: Calbin | None = None
    kv: KvCoordinator | None = None
    pool: BufferPool | None = None
    rung: Callable[[], int] = lambda: 0
    fallback: Callable[[], bool] = lambda: False
    events: Events = field(factory=Events)
    on_violation: Callable[..., None] = lambda kind, **fields: None
    dropped: SimpleQueue[BufferSlot] = field(factory=SimpleQueue)
    features_off: dict[CalTaskKind, Failure] = field(factory=dict)  # of this generation (§8, codes 27 and 29)
    _asked: Manifest | None = None  # what a planned switch goes to
    _previous: Manifest | None = None  # what a rollback goes to
    _recorded: bool = False  # what differs from the manifest was looked up in this generation
    _generations: list[Generation] = field(factory=list)  # the present one last; of the others what is in doubt
    _begun: list[Handle] = field(factory=list)  # of a configuration that is not complete
    _written_late: set[tuple[int, int, CalTaskKind]] = field(factory=set)
    _closed: bool = False

    @classmethod
    def open(cls, config: Config, events: Events) -> Self:
        """The library, the manifest and the device. Nothing is configured. Raises NativeMissing, ManifestError or
        ExecutorError; then nothing is left open."""
        if ways := config.unproved():
            raise ExecutorError(f"policy {config.policy} is not proved sound: {'; or '.join(ways)} (§14)")
        library = Library.load(config.library or None)
        manifest = checked(library, Path(config.manifest))
        code, device = library.device(config.device)
        if device is None:
            raise ExecutorError(f"device {config.device} does not open: {failed('open', code, library)}")
        return cls(library, device, manifest, config, events=events)

    # -- the present one -----------------------------------------------------------------------------------------------
    def ask(self, manifest: Manifest) -> None:
        """The next generation is to be of this model (a planned switch)."""
        self._asked = manifest

    def _choose_model(self) -> None:
        """The model that was asked for; or, when the rules have used up their fallback, the one before."""
        present, asked, self._asked = self.manifest, self._asked, None
        if self.fallback():
            if asked is not None:
                self.manifest, self._previous = asked, present
        elif self._previous is not None and asked is None:
            self.manifest, self._previous = self._previous, None
        if self.manifest is not present:
            text = f"the model is {self.manifest.path}, no longer {present.path}"
            self.events.warning("model", text, generation=self.generation_id)

    def begin_generation(self) -> Failure | None:
        """A new Calbin, KvManager and pool (§5.1-8); the first failure otherwise. Raises ManifestError."""
        self._choose_model()
        self._release_ended()
        if self.calbin is not None:  # a device that was drained and not reset is configured still
            code = self.device.reset_configuration()
            if failure := failed("reset the configuration", code, self.library):
                return failure
        code, calbin = self.library.calbin(self.manifest.calbin_path)
        if calbin is None:
            return failed("load the calbin", code, self.library)
        self._begun.insert(0, calbin)
        model = verify_loaded(self.manifest, calbin, self.generation_id)
        if failure := failed("configure", self.device.configure(calbin), self.library):
            return failure
        if self.config.inflight > 1 and (code := self.device.enable_parallel_mode(True)):
            return failed("enable parallel mode", code, self.library)
        code, manager = self.device.kv()
        if manager is None:
            return failed("create the KvManager", code, self.library)
        self._begun.insert(0, manager)
        size = KvSize.of(manager)
        if isinstance(size, Failure):
            return size
        pool = BufferPool(self.library, self.device, calbin, model, self.config.slots + 1, self.dropped.put)
        if failure := pool.build():
            return failure
        self._generations.append(Generation(pool, self._begun))
        self._begun = []
        max_seq = next(iter(model.submodels.values())).max_seq
        self.kv = KvCoordinator(manager, size, max_seq, self.config.sequences_max)
        self.calbin, self.pool, self.model = calbin, pool, model  # the model last: with it, requests are looked at
        return None

    # -- ended ones ----------------------------------------------------------------------------------------------------
    def end_generation(self) -> None:
        """What belongs to the generation that ends is kept, and never used again."""
        self.generation_id += 1
        self.features_off.clear()
        self._recorded = False
        if self.pool is not None:
            self.pool.end()
        if self.kv is not None:
            self.kv.retire()

    def _release_ended(self) -> None:
        """Gives back what was free when its generation ended. A call of the device's, under its watchdog: whoever ended
        the generation may be the clock, and must not be stuck in CalRT."""
        for generation in self._generations:
            generation.retire()
        self._generations = [g for g in self._generations if g.in_doubt or not g.release()]

    def _watch_ended(self, is_done: bool) -> None:
        """Report what was written into memory of ended generations that nothing should write any more. is_done: the
        device was reset; if that stops DMA and is no lie, as the facts say, that memory gets a pattern now."""
        for pool in self.pools[-WATCHED_POOLS:]:
            for late in pool.late_writes():
                place = (pool.generation.generation_id, late.slot, late.kind)
                if place not in self._written_late:
                    self._written_late.add(place)
                    where = {"generation": place[0], "slot": late.slot, "task": late.kind.name}
                    self.on_violation("late write", **where, changed_bytes=late.changed_bytes)
            if is_done and all(self.config.facts[fact.name] for fact in (RESET_STOPS_DMA, RESET_IS_HONEST)):
                pool.watch()

    def close(self) -> bool:
        """Give back what is not in quarantine, which is kept for ever. False: something else could not be released; it
        lives on, too, and a second call tries that again."""
        self._watch_ended(is_done=False)
        self._release_ended()
        self._generations = [g for g in self._generations if not g.release() or g.in_doubt]
        self._begun = [handle for handle in self._begun if handle.release()]
        self._closed = self._closed or not self.device.release()
        return self._closed and not self._begun and not any(g.handles for g in self._generations)

    # -- what there is -------------------------------------------------------------------------------------------------
    @property
    def pools(self) -> tuple[BufferPool, ...]:
        """Of every generation, the present one last."""
        return tuple(generation.pool for generation in self._generations)
