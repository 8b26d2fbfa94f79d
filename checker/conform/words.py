"""Which calls of the ABI an effect stands for, in which order, and what their codes mean to the rulebook.

Theory. While an effect is under way its calls are made one after the other. Written down by their names, with a mark
for what they returned, they are a word; each effect has a regular language of words, and each word a set of classes
that may have been observed. It is a set because not every check is CalRT's: logits with a NaN are found by looking at
them. What a code means is §8's to say (machines/errors.py), and no more than the last call of a word may have failed,
but for those that give something back: they are all tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from machines.errors import RETURNS, observed

__all__ = ["DONE", "EXCEPTION", "OUTSIDE", "PARTS", "USES", "Call", "classes", "language_of", "succeeded", "word"]

DONE, EXCEPTION = 2, 3  # of GetStatus (§6.5)
YES_OR_NO = frozenset({"apply", "can_allocate"})
NUMBERS = frozenset({"tokens_per_unit", "units_total", "memory_used", "close", "destroy", "destroy_kv"})
THREW = -1
OUTSIDE = frozenset({"open", "close", "memory_used", "destroy", "destroy_kv"})
"""Calls that no effect stands for, or that several may make on the way: opening, closing, giving back what is free."""


USES = {
    "other": frozenset({"infer", "create_kv", "create_input", "create_output"}),
    "a": frozenset({
        "open", "enable_parallel", "infer", "apply", "can_allocate", "map_buf", "slice_tensor", "set_csr",
        "bind_sequence", "wait", "tensor_size",
    }),
    "b": frozenset({"infer", "apply", "slice_tensor"}),
    "text": frozenset({
        "infer", "create_input", "create_output", "map_buf", "slice_tensor", "undo_slice", "set_csr", "tensor_size",
    }),
}  # fmt: skip
"""Which calls have an argument there; in all others it is 0, or ""."""


class Call(NamedTuple):
    """As the journal's record of it; times on the host's clock."""

    id: int
    call: str
    thread: int
    handle: int
    other: int
    a: int
    b: int
    text: str
    result: int
    begin_ns: int
    end_ns: int

    @property
    def begin_us(self) -> int:
        return self.begin_ns // 1000

    @property
    def end_us(self) -> int:
        return self.end_ns // 1000


def mark(call: Call) -> str:
    """ "": it succeeded; "-": it said no; "!": it failed; "?": it has not returned."""
    if call.end_ns < 0:
        return "?"
    if call.call in YES_OR_NO:
        return {1: "", 0: "-"}.get(call.result, "!")
    if call.call == "get_status":
        return "" if call.result == DONE else "!" if call.result == THREW else "-"
    if call.call in NUMBERS:
        return "!" if call.result == THREW else ""
    return "!" if call.result else ""


def succeeded(call: Call) -> bool:
    """Whether the handle has moved: a call that returned an error moves nothing (machines/abi.py)."""
    return mark(call) in ("", "-")


def word(calls: Sequence[Call]) -> str:
    return " ".join(call.call + mark(call) for call in calls)


_SLICES = "( (slice_tensor|set_csr))*"
_JOB = rf"can_allocate-? apply bind_sequence{_SLICES} infer wait get_status tensor_size apply( undo_slice)*"
_MADE = "( (create_input|create_output|map_buf))*"
LANGUAGES = {
    "reserve": r"(can_allocate-?( apply[-!]?)?|can_allocate!)?",
    "unreserve": r"(apply[-!]?)?",
    "prepare": rf"(bind_sequence(!|{_SLICES}!?))?",
    "infer": r"infer!?",
    "wait": r"(wait(!| get_status[-!]?))?",
    "convert": r"tensor_size!?",
    "commit": r"(apply[-!]?)?",
    "undo": r"(undo_slice!?( undo_slice!?)*)?",
    "remove": r"(apply[-!]?)?",
    "reset": r"(reset_ccu|reset_configuration|reset)!?",
    "configure": rf"((reset_configuration!|(reset_configuration )?configure(!|( enable_parallel(!)?)?"
    rf"( create_kv(!| tokens_per_unit(!| units_total(!|{_MADE}!?)))?)?)))?",
    "golden": rf"({_JOB} )*(can_allocate[-!]?( apply[-!]?( bind_sequence.*)?)?|apply[-!]?)?",
}  # fmt: skip
PARTS = {effect: frozenset(re.findall(r"[a-z_]{4,}", language)) for effect, language in LANGUAGES.items()}
"""The calls that an effect may make."""
_COMPILED = {effect: re.compile(language) for effect, language in LANGUAGES.items()}


def language_of(effect: str, said: str) -> bool:
    """Whether the effect may make these calls in this order."""
    return bool(_COMPILED[effect].fullmatch(said))


def classes(effect: str, calls: Sequence[Call], has_ended: bool) -> frozenset[str]:
    """What may have been observed. has_ended: its generation has ended meanwhile: what it did counts for nothing."""
    found = _MEANS[effect](calls)
    return found | {"failed"} if has_ended and effect in ("reserve", "unreserve", "commit", "undo") else found


def _by_code(effect: str, calls: Sequence[Call], good: frozenset[str]) -> frozenset[str]:
    """The class of the first code that is not success, else `good`."""
    for call in calls:
        if mark(call) == "-":
            return frozenset({"failed"})
        if mark(call) == "!":
            return frozenset({observed(effect, call.result)})
    return good


def _applied(nothing: str, no: str) -> Callable[[Sequence[Call]], frozenset[str]]:
    """One Apply. nothing: what may be observed without it; no: what its "no" means."""

    def means(calls: Sequence[Call]) -> frozenset[str]:
        if not calls:
            return frozenset(nothing.split())
        return frozenset({{"": "ok", "-": no}.get(mark(calls[-1]), "failed")})

    return means


def _prepare(calls: Sequence[Call]) -> frozenset[str]:
    """A check of ours may end it before it is complete."""
    complete = [c.call for c in calls[-2:]] == ["set_csr"] * 2
    return _by_code("prepare", calls, frozenset({"ok" if complete else "request"}))


def _wait(calls: Sequence[Call]) -> frozenset[str]:
    if not calls:
        return frozenset({"error"})
    last = calls[-1]
    if last.call == "get_status" and mark(last) == "-":
        return frozenset({"exception" if last.result == EXCEPTION else "error"})
    if last.call == "tensor_size":
        return frozenset({"error"}) if mark(last) else frozenset({"ok", "error"})
    return _by_code("wait", calls, frozenset({"ok"}))


def _convert(calls: Sequence[Call]) -> frozenset[str]:
    return frozenset({"invalid"}) if any(map(mark, calls)) else frozenset({"valid", "invalid"})


def _undo(calls: Sequence[Call]) -> frozenset[str]:
    return frozenset({"failed"}) if any(map(mark, calls)) else frozenset({"ok", "failed"} if not calls else {"ok"})


def _configure(calls: Sequence[Call]) -> frozenset[str]:
    """What is no code: a manifest that is not true of its calbin."""
    complete = bool(calls) and calls[-1].call == "map_buf"
    ours = {"artifact", "failed"}
    return _by_code("configure", calls, frozenset(ours | {"ok"} if complete else ours))


def _golden(calls: Sequence[Call]) -> frozenset[str]:
    failing = [c for c in calls if c.call != "can_allocate" or mark(c) == "!"]  # its "no" is final only with no KV
    complete = language_of("golden", word(calls)) and bool(calls) and calls[-1].call == "apply" and calls[-1].b == 0
    return _by_code("golden", failing, frozenset({"passed", "failed"} if complete else {"failed"}))


_MEANS: dict[str, Callable[[Sequence[Call]], frozenset[str]]] = {
    "reserve": lambda calls: (
        frozenset({"refused" if mark(calls[0]) == "-" else "failed"})
        if len(calls) == 1 and calls[0].call == "can_allocate"
        else _applied("ok failed", "refused")(calls)
    ),
    "unreserve": _applied("ok failed", "failed"),
    "prepare": _prepare,
    "infer": lambda calls: _by_code("infer", calls, frozenset({"ok"})),
    "wait": _wait,
    "convert": _convert,
    "commit": _applied("failed", "failed"),
    "undo": _undo,
    "remove": _applied("failed", "failed"),
    "reset": lambda calls: _by_code("reset", calls, frozenset({"ok"})),
    "configure": _configure,
    "golden": _golden,
}  # fmt: skip
assert set(RETURNS) <= set(_MEANS) == set(LANGUAGES)
