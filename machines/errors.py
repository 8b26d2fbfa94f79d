"""§8 as data: what a CalRT return code means, for every int there is.

Theory. A code belongs to exactly one class, and the class says what becomes of the job, of new admissions and of the
device. The table below is the specification's; codes it does not mention (3, 6, 26, negative ones, those above 29) are
Unknown, which is treated like a poisoned device. The raw code is never replaced by its class: both travel together.

The shim `calrt_c` adds a few codes of its own, far outside the vendor's range, for what is not the vendor's answer:
an exception that left CalRT, a handle that is not one.
"""

from __future__ import annotations

from attrs import field, frozen

from machines.expr import State
from machines.table import RulebookError, as_tuple

__all__ = ["CLASSES", "CODES", "RETURNS", "SHIM_CODES", "Code", "CodeClass", "ErrorClass", "classify", "code_named"]


class ErrorClass(State):
    """The second column of §8. Success is added, so that the function is total."""

    Success, Request, Artifact, Lifecycle, Compatibility, Transient, Device, Programming, Unknown = range(9)


C = ErrorClass


@frozen
class CodeClass:
    """One row of §8. resets: whether the action may end in a reset of the device."""

    kind: ErrorClass
    job: str
    admission: str
    action: str
    resets: bool


@frozen
class Code:
    """One return code. http, grpc: what a server answers for it (§8, last paragraph). cites: where its name is from."""

    number: int
    name: str
    kind: ErrorClass
    http: int
    grpc: str
    about: str = field(default="")


CLASSES = (
    CodeClass(C.Success, "goes on", "open", "none", resets=False),
    CodeClass(C.Request, "fails", "open for the same model", "record what differs from the manifest", resets=False),
    CodeClass(
        C.Artifact, "fails", "this generation is rejected", "roll back to the last known good model", resets=False
    ),
    CodeClass(C.Lifecycle, "fails", "paused", "drain, check generation and configuration", resets=False),
    CodeClass(C.Compatibility, "fails", "stopped", "a person must repair it; never retried", resets=False),
    CodeClass(C.Transient, "fails", "reduced", "bounded back-off; at the threshold drain", resets=False),
    CodeClass(C.Device, "fails", "stopped at once", "quarantine, then reset, restart or escalate", resets=True),
    CodeClass(C.Programming, "fails", "the feature is switched off", "repair code or configuration", resets=False),
    CodeClass(C.Unknown, "fails", "paused", "treat the device's generation as poisoned", resets=True),
)

_NOT_SPECIFIED = "not in the specification's table"
_INTERNAL, _UNAVAILABLE = (500, "INTERNAL"), (503, "UNAVAILABLE")

CODES = (
    Code(0, "CalrtSuccess", C.Success, 200, "OK"),
    Code(1, "MemoryAllocationFailed", C.Request, 429, "RESOURCE_EXHAUSTED", "memory could not be allocated"),
    Code(2, "AlreadyRegistered", C.Lifecycle, *_UNAVAILABLE, "already registered"),
    Code(3, "Undocumented3", C.Unknown, *_UNAVAILABLE, _NOT_SPECIFIED),
    Code(4, "IllegalValue", C.Artifact, *_INTERNAL, "a value is not legal"),
    Code(5, "IllegalConfiguration", C.Artifact, *_INTERNAL, "a configuration is not legal"),
    Code(6, "Undocumented6", C.Unknown, *_UNAVAILABLE, _NOT_SPECIFIED),
    Code(7, "AlreadyConfigured", C.Lifecycle, *_UNAVAILABLE, "the device is configured already"),
    Code(8, "DriverIncompatible", C.Compatibility, *_UNAVAILABLE, "the driver does not fit the runtime"),
    Code(9, "RuntimeTooOld", C.Compatibility, *_UNAVAILABLE, "the runtime is too old for the artifact"),
    Code(10, "FileNotFound", C.Artifact, *_INTERNAL, "a file is missing"),
    Code(11, "FileUnreadable", C.Artifact, *_INTERNAL, "a file cannot be read"),
    Code(12, "FileCorrupt", C.Artifact, *_INTERNAL, "a file is not what it says"),
    Code(13, "Timeout", C.Transient, 504, "DEADLINE_EXCEEDED", "the runtime waited too long"),
    Code(14, "OutOfRange", C.Request, 400, "INVALID_ARGUMENT", "an offset, size or position is out of range"),
    Code(15, "Unexpected", C.Unknown, *_UNAVAILABLE, "the runtime did not expect this"),
    Code(16, "NotConfigured", C.Lifecycle, *_UNAVAILABLE, "a configuration is missing"),
    Code(17, "DeviceBusy", C.Transient, *_UNAVAILABLE, "the device takes no more work now"),
    Code(18, "DeviceUnavailable", C.Device, *_UNAVAILABLE, "the device does not answer"),
    Code(19, "IllegalCalbin", C.Artifact, *_INTERNAL, "the calbin is not one"),
    Code(20, "UnknownError", C.Unknown, *_UNAVAILABLE, "the runtime does not know"),
    Code(21, "WrongDataType", C.Request, *_INTERNAL, "a tensor has another dtype"),
    Code(22, "WrongShape", C.Request, *_INTERNAL, "a tensor has another shape"),
    Code(23, "DependencyError", C.Compatibility, *_UNAVAILABLE, "something the runtime needs is missing"),
    Code(24, "MapBroken", C.Device, *_UNAVAILABLE, "a mapping of host memory broke"),
    Code(25, "SoftResetFailed", C.Device, *_UNAVAILABLE, "a soft reset did not succeed"),
    Code(26, "Undocumented26", C.Unknown, *_UNAVAILABLE, _NOT_SPECIFIED),
    Code(27, "Unsupported", C.Programming, *_INTERNAL, "this runtime cannot do that"),
    Code(28, "DeviceCrash", C.Device, *_UNAVAILABLE, "the device crashed"),
    Code(29, "WrongDirection", C.Programming, *_INTERNAL, "an input was used as an output, or the reverse"),
)

# The shim's own: no vendor uses them, and a vendor's code is never turned into one of them.
SHIM_CODES = (
    Code(-770001, "ShimException", C.Unknown, *_UNAVAILABLE, "a C++ exception left CalRT; its text is the last error"),
    Code(-770002, "ShimBadHandle", C.Programming, *_INTERNAL, "no handle of this kind, or one already released"),
    Code(-770003, "ShimBadArgument", C.Programming, *_INTERNAL, "a null pointer, or a buffer that is too small"),
    Code(-770004, "ShimCallOrder", C.Programming, *_INTERNAL, "this call is not allowed now (machines/abi.py)"),
    Code(-770005, "ShimNotFinite", C.Device, *_UNAVAILABLE, "the logits hold a NaN or an infinity"),
    Code(-770006, "ShimOutOfRange", C.Device, *_UNAVAILABLE, "the wanted logits lie outside the tensor"),
)

_BY_NUMBER = {c.number: c for c in (*CODES, *SHIM_CODES)}

# What a code means to the protocol: effect -> class -> the observed return that the rulebook declares. A Busy submit is
# the one code with a return of its own (FI05).
_HUMAN = {C.Compatibility: "compatibility"}
_WRONG = {C.Artifact: "artifact", **_HUMAN}
_OURS = {C.Request: "artifact", **_WRONG}  # no client asked: the request was made from the artifact
_CLASSES = {
    C.Success: "ok", C.Request: "request", C.Artifact: "artifact", C.Lifecycle: "lifecycle",
    C.Compatibility: "compatibility", C.Transient: "transient", C.Device: "device", C.Programming: "request",
    C.Unknown: "device",
}  # fmt: skip
RETURNS: dict[str, dict[ErrorClass, str]] = {
    "reserve": {kind: "ok" if kind is C.Success else "failed" for kind in C},
    "prepare": _CLASSES,
    "infer": _CLASSES,
    "wait": {kind: "ok" if kind is C.Success else _WRONG.get(kind, "error") for kind in C},
    "reset": {kind: "ok" if kind is C.Success else _HUMAN.get(kind, "failed") for kind in C},
    "configure": {kind: "ok" if kind is C.Success else _OURS.get(kind, "failed") for kind in C},
    "golden": {kind: "passed" if kind is C.Success else _OURS.get(kind, "failed") for kind in C},
}  # fmt: skip
SPECIAL_RETURNS = {("infer", "DeviceBusy"): "busy", ("wait", "Timeout"): "timeout"}


def classify(number: int) -> Code:
    """The code's entry, for every int: what has no entry is Unknown, under its own number."""
    known = _BY_NUMBER.get(number)
    return known or Code(number, f"Undocumented({number})", C.Unknown, *_UNAVAILABLE, _NOT_SPECIFIED)


def code_named(name: str) -> Code:
    """The code with this name. Raises KeyError with the names there are."""
    for code in _BY_NUMBER.values():
        if code.name == name:
            return code
    raise KeyError(f"no return code is called {name!r}; known are {', '.join(c.name for c in _BY_NUMBER.values())}")


def class_of(kind: ErrorClass) -> CodeClass:
    """§8's row of a class."""
    return CLASSES[kind.value]


def observed(effect: str, number: int) -> str:
    """What the protocol observes when `effect` (a key of RETURNS) returned `number`."""
    code = classify(number)
    return SPECIAL_RETURNS.get((effect, code.name)) or RETURNS[effect][code.kind]


def _problems() -> tuple[str, ...]:
    numbers = [c.number for c in (*CODES, *SHIM_CODES)]
    names = [c.name for c in (*CODES, *SHIM_CODES)]
    problems = [f"code {n} is declared twice" for n in {n for n in numbers if numbers.count(n) > 1}]
    problems += [f"name {n} is declared twice" for n in {n for n in names if names.count(n) > 1}]
    if tuple(c.kind for c in CLASSES) != tuple(C):
        problems.append("the classes do not stand in their order")
    problems += [f"{e} does not say what {k.name} means" for e, t in RETURNS.items() for k in C if k not in t]
    return as_tuple(problems)


if _found := _problems():
    raise RulebookError("error codes", _found)
