"""A refusal as a test that fails in the same way, with nothing but this checker and what stands in it."""

from __future__ import annotations

import pprint
from collections.abc import Mapping
from typing import Any

from checker.conform.replaying import Again, Found
from machines.evidence import CHAIN, FORMAT

__all__ = ["as_pytest"]

_STEPS = '''"""{title}

The state before the first of these records, and the records; the last one is refused.
"""

from checker.conform.abi import Abi  # noqa: F401
from checker.conform.handles import Handles  # noqa: F401
from checker.conform.judge import refusal_of
from checker.conform.learnt import Learnt, Window  # noqa: F401
from checker.conform.words import Call  # noqa: F401

HEAD = {head}

KNOWN = {known}

RECORDS = {records}


def test_these_records_are_allowed() -> None:
    assert refusal_of([HEAD, *RECORDS], chain=False, known=KNOWN) == ""
'''
_CHAIN = '''"""{title}"""

from machines.evidence import linked

BEFORE = {before!r}
RECORD = {record}


def test_the_record_is_as_it_was_written() -> None:
    assert linked(BEFORE, RECORD) == RECORD.get({chain!r})
'''
_TEXT = '''"""{title}"""

import json

LINE = {text!r}


def test_the_line_is_a_record() -> None:
    assert isinstance(json.loads(LINE), dict)
'''


def as_pytest(found: Found, title: str) -> str:
    """Raises ValueError where the state before is not known well enough."""
    title = title.replace("\\", "\\\\").replace('"""', "'''")
    if found.record is None:
        return _TEXT.format(title=title, text=found.text)
    if found.refusal.kind == "chain":
        return _CHAIN.format(title=title, before=found.chain_before, record=_shown(dict(found.record)), chain=CHAIN)
    if found.again is None:
        raise ValueError("the state before the refused line is not known well enough to begin a test with it")
    records = [{k: v for k, v in record.items() if k != CHAIN} for record in found.again.records]
    return _STEPS.format(
        title=title, head=_shown(_head(found.again)), known=repr(found.again.abi), records=_shown(records)
    )


def _head(again: Again) -> Mapping[str, Any]:
    course = again.course
    state = course.law.state(course.books)
    initial = course.number == 0
    return {
        "journal": FORMAT, "parameters": course.law.values, "begins": course.number,
        "generation": 1 if course.generation is None else course.generation, "state": None if initial else state,
        "calls": None if again.abi is None else again.abi.next,
    }  # fmt: skip


def _shown(value: Any) -> str:
    return pprint.pformat(value, width=118, sort_dicts=False, compact=True)
