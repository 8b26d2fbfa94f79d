"""What may go wrong at a call: the adversary's moves, one for each outcome that the rulebook's effects declare.

Theory. The scheduler makes a call when it chooses to, and with it chooses what the device does: nothing special, or one
of these. Each is a fault of the simulator's plan for the calls of CalRT that the effect stands for, planned just before
and cleared just after. Codes are one for each class of §8, found in its table; b = -1 lets the vendor facts say whether
a refused submit runs all the same. Apply and canAllocate have no code: they refuse, or throw.
"""

from __future__ import annotations

from attrs import frozen

from machines.errors import CODES, ErrorClass

__all__ = ["FAULTS", "SPOILS", "Fault"]

RESETS = ("reset_ccu", "reset_configuration", "reset")


@frozen
class Fault:
    """name: `effect.what`. calls: of CalRT, at whose next one `action` happens, with a and b (docs/simulator.md)."""

    effect: str
    what: str
    calls: tuple[str, ...]
    action: str
    a: int = 0
    b: int = 0

    @property
    def name(self) -> str:
        return f"{self.effect}.{self.what}"


def _code(kind: ErrorClass) -> int:
    return next(c.number for c in CODES if c.kind is kind and c.name not in ("DeviceBusy",))


C = ErrorClass
BUSY = next(c.number for c in CODES if c.name == "DeviceBusy")
_CLASSES = {
    "transient": C.Transient, "request": C.Request, "programming": C.Programming, "lifecycle": C.Lifecycle,
    "artifact": C.Artifact, "compatibility": C.Compatibility, "device": C.Device, "unknown": C.Unknown,
}  # fmt: skip


def _returns(effect: str, calls: tuple[str, ...], *kinds: str, b: int = 0) -> tuple[Fault, ...]:
    return tuple(Fault(effect, kind, calls, "return", _code(_CLASSES[kind]), b) for kind in kinds)


SPOILS = ("hang", "ccu_exception", "nan", "inf", "short_tensor")
"""Of `infer`: what the job's output, or its end, then cannot be."""

FAULTS: tuple[Fault, ...] = (
    Fault("reserve", "refused", ("apply",), "refuse"),
    Fault("reserve", "can_not", ("can_allocate",), "refuse"),
    Fault("reserve", "throw", ("apply",), "throw"),
    Fault("reserve", "ask_throws", ("can_allocate",), "throw"),
    *_returns("prepare", ("set_csr",), *_CLASSES),
    Fault("prepare", "sliced_and_failed", ("slice_tensor",), "return", _code(C.Request), 1),
    Fault("infer", "busy", ("infer",), "return", BUSY, -1),
    *_returns("infer", ("infer",), *_CLASSES, b=-1),
    Fault("infer", "throw", ("infer",), "throw"),
    *(Fault("infer", what, ("infer",), what) for what in SPOILS),
    Fault("infer", "nan_last", ("infer",), "nan", 511),
    Fault("infer", "double", ("infer",), "double"),
    *_returns("wait", ("wait",), "device", "artifact", "compatibility"),
    Fault("wait", "timeout", ("wait",), "timeout"),
    Fault("commit", "refused", ("apply",), "refuse"),
    Fault("commit", "throw", ("apply",), "throw"),
    *_returns("undo", ("undo_slice",), "device"),
    Fault("undo", "done_and_failed", ("undo_slice",), "return", _code(C.Device), 1),
    Fault("unreserve", "throw", ("apply",), "throw"),
    Fault("unreserve", "refused", ("apply",), "refuse"),
    Fault("remove", "throw", ("apply",), "throw"),
    Fault("reset", "fail", RESETS, "fail"),
    *_returns("reset", RESETS, "compatibility"),
    Fault("reset", "ignore", RESETS, "ignore"),
    *_returns("configure", ("configure",), "artifact", "compatibility", "device"),
    *_returns("golden", ("infer",), "device", "artifact", "compatibility"),
    *(Fault("golden", what, ("infer",), what) for what in ("hang", "nan")),
)
