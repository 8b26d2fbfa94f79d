"""Names that are nearly the same, for messages alone: an exact lookup (§10.2) says why it failed and never falls back.

Theory. A name that was copied by hand, by a word processor or from a picture differs from the real one in ways that the
eye does not see: case, a blank at the end, an invisible character, a letter of another script. The tests below are
tried in order, from the least difference on, and the first that holds says what it is; of several names for which it
holds, the one that shares most with what was written is the nearest.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

from attrs import frozen

__all__ = ["Near", "hint", "listed", "nearest", "plain", "shown"]

SHOWN_CHARACTERS_MAX = 80
LISTED_MAX = 12


@frozen
class Near:
    """A name that is nearly the one that was written, and a clause that says in what they differ."""

    name: str
    says: str


def nearest(written: str, names: Iterable[str]) -> Near | None:
    """The name that differs least from what was written; None when none is near."""
    others = [n for n in names if n != written]
    for clause, is_near in TESTS:
        if near := [n for n in others if is_near(written, n)]:
            name = min(near, key=lambda n: _difference(written, n))
            return Near(name, f"{clause} ({_place(written, name)})")
    return None


def hint(written: Any, names: Iterable[str]) -> str:
    """The end of a message: the nearest name and in what it was missed; empty when none is near."""
    near = nearest(written, names) if isinstance(written, str) else None
    return f"; the nearest is {shown(near.name)}: what is written {near.says}" if near else ""


def _same(simplify: Callable[[str], str]) -> Callable[[str, str], bool]:
    return lambda written, real: simplify(written) == simplify(real)


def _visible(text: str) -> str:
    return "".join(c for c in text if unicodedata.category(c) not in ("Cf", "Cc", "Zs", "Mn"))


def _other_script(written: str, real: str) -> bool:
    pairs = [(a, b) for a, b in zip(written, real, strict=False) if a != b]
    return len(written) == len(real) and all(a.isascii() != b.isascii() for a, b in pairs)


def _one_place(written: str, real: str) -> bool:
    a, b, _ = _middles(written, real)
    return max(len(a), len(b)) == 1


TESTS: tuple[tuple[str, Callable[[str, str], bool]], ...] = (
    ("differs in white space at its ends", _same(str.strip)),
    ("differs in case", _same(str.casefold)),
    ("differs in characters that are not seen", _same(_visible)),
    ("is the same only after normalisation (NFKC)", _same(lambda t: unicodedata.normalize("NFKC", t))),
    ("differs in letters that only look alike", _other_script),
    ("differs in one character", _one_place),
    ("is cut off", lambda written, real: bool(written) and real.startswith(written)),
    ("goes on too long", lambda written, real: bool(real) and written.startswith(real)),
)


def _middles(a: str, b: str) -> tuple[str, str, int]:
    """What is left of each without their common beginning and end, and where it begins."""
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[start:], b[start:]
    end = next((i for i, (x, y) in enumerate(zip(a[::-1], b[::-1], strict=False)) if x != y), min(len(a), len(b)))
    return a[: len(a) - end], b[: len(b) - end], start


def _difference(a: str, b: str) -> int:
    """Characters of both that are not in their common beginning and end."""
    left, right, _ = _middles(a, b)
    return len(left) + len(right)


def _place(written: str, real: str) -> str:
    a, b, start = _middles(written, real)
    if len(a) == len(b):  # name the first pair alone: the others are of the same kind
        a, b = a[:1], b[:1]
    return f"character {start + 1}: {_characters(a)} where {_characters(b)} is"


def _characters(text: str) -> str:
    if not text:
        return "nothing"
    named = [f"U+{ord(c):04X} {unicodedata.name(c, '(no name)')}" for c in text[:1]]
    return " ".join(named) + (f" and {len(text) - 1} more" if len(text) > 1 else "")


def shown(value: Any) -> str:
    """A value as JSON spells it, on one line, in ASCII so that look-alikes can be told apart, and not too long."""
    try:
        text = json.dumps(value, default=str)
    except RecursionError:
        return "something nested deeply"
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}... ({len(text)} characters)"


def plain(text: str) -> str:
    """A text from outside, such as a path, on one line and without control characters."""
    return text if text.isprintable() else shown(text)


def listed(names: Iterable[str]) -> str:
    """Names for a message, at most a few."""
    all_names = [shown(n) for n in names]
    more = len(all_names) - LISTED_MAX
    return ", ".join(all_names[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "") if all_names else "none"
