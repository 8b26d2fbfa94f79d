"""Breaking text into lines that a reader can take in."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

__all__ = ["packed", "wrapped_expression"]

_GLUE = "\N{NO-BREAK SPACE}"
_OPERATOR = re.compile(r" (==|!=|<=|<|\+|-|->|in) ")


def wrapped_expression(text: str, columns: int) -> list[str]:
    """Lines that break between operands of `&`, `|` and `if`, never inside a comparison."""
    glued = _OPERATOR.sub(rf"{_GLUE}\1{_GLUE}", text)
    broken = textwrap.wrap(glued, columns, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)
    return [line.replace(_GLUE, " ") for line in broken]


def packed(parts: Iterable[str], columns: int) -> list[str]:
    """The parts with commas between, in as few lines as fit; a line breaks between parts where it can."""
    text: list[str] = []
    for part in dict.fromkeys(parts):
        glue = " " if text and text[-1].endswith(":") else ", "
        if text and len(text[-1]) + len(glue) + len(part) <= columns:
            text[-1] += glue + part
        else:
            if text:
                text[-1] += glue.rstrip()
            text.extend(wrapped_expression(part, columns))
    return text
