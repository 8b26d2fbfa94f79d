"""The form of a journal: which lines it has, which fields each has, and the chain that binds them.

Theory. A journal is a list of records, in a file one line of JSON each: a *head*, then *steps* (one rule that was
fired) and *calls* of the ABI, then an *end*. A step is judged by the rulebook, a call by the order of CalRT's calls,
the end by the state that the steps lead to; but no rule says that a step could not have come a microsecond later. So
each record carries a digest over itself and the digest before it: whatever is altered, removed or put
elsewhere breaks the chain there. It has no key: it is against accidents, not against somebody who makes it anew.

A call is written when it is first seen; one that has not returned by then has `end_ns` -1, and a *return* follows. A
call that returned before a step was taken stands before it. A writer that was too slow says what is missing (a *gap* of
steps, *lost* calls); after a gap it goes on with a state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = [
    "CALL", "CHAIN", "END", "FORMAT", "GAP", "HEAD", "KINDS", "LOST", "RETURN", "STEP", "chained", "kind_of", "linked",
]  # fmt: skip

FORMAT = 2
CHAIN = "chain"  # the field that each record has besides
_TEXT = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
DIGITS = 16  # of the digest, in hexadecimal

HEAD: Mapping[str, type | tuple[type, ...]] = {
    "journal": int, "parameters": dict, "begins": int, "generation": int,
    "state": (dict, type(None)), "calls": (int, type(None)),
}  # fmt: skip
"""parameters: the rulebook's. begins: number of the first step; generation and state: before it, state None for the
initial one. calls: id of the first call that was recorded, None where there is no record of calls."""
STEP: Mapping[str, type | tuple[type, ...]] = {
    "number": int, "at_us": int, "rule": str, "element": (list, int, type(None)), "generation": int, "observed": str,
}  # fmt: skip
"""element: what the rule was about: of a job its number and its sequence's; None for the device. generation: the
present one after the step. observed: what a call brought back, or "". at_us: the host's monotonic clock."""
CALL: Mapping[str, type | tuple[type, ...]] = {
    "call": str, "id": int, "thread": int, "handle": int, "other": int, "a": int, "b": int, "text": str,
    "result": int, "begin_us": int, "end_us": int, "begin_ns": int, "end_ns": int,
}  # fmt: skip
"""As in the simulator's trace (calrt_sim.h); id: its number there."""
RETURN: Mapping[str, type | tuple[type, ...]] = {
    "returned": int, "handle": int, "a": int, "result": int, "end_us": int, "end_ns": int,
}  # fmt: skip
"""returned: the id of a call."""
GAP: Mapping[str, type | tuple[type, ...]] = {"gap": int, "begins": int, "generation": int, "state": dict}
"""gap: so many steps are not there. The others as in the head, and after it."""
LOST: Mapping[str, type | tuple[type, ...]] = {"lost": int, "next": int}
"""lost: so many calls are not there. next: id of the first one after them."""
END: Mapping[str, type | tuple[type, ...]] = {
    "end": int, "at_us": int, "generation": int, "state": dict, "calls": (int, type(None)),
}  # fmt: skip
"""end: how many steps there were in all, since 0. state: every variable after the last one. at_us: when that was read.
calls: id of the next call when all that were made until then had been recorded."""

KINDS = {"journal": HEAD, "number": STEP, "call": CALL, "returned": RETURN, "gap": GAP, "lost": LOST, "end": END}
"""The forms, each by its first field, which no other form has."""


def kind_of(record: Mapping[str, Any]) -> str | None:
    """The first field of its form; None for no record of a journal. A step whose number is missing is still a step."""
    for first in KINDS:
        if first in record:
            return first
    return "number" if "rule" in record or "at_us" in record else None


def linked(before: str, record: Mapping[str, Any]) -> str:
    """The record's digest, after that of the record before it ("" before the head)."""
    own = {key: value for key, value in record.items() if key != CHAIN}
    return hashlib.sha256(f"{before}\n{_TEXT(own)}".encode()).hexdigest()[:DIGITS]


def chained(records: Iterable[Mapping[str, Any]], before: str = "") -> Iterator[dict[str, Any]]:
    """The records, each with its digest last."""
    for record in records:
        before = linked(before, record)
        yield {**record, CHAIN: before}
