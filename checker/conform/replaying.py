"""A whole file judged: the verdict, what was counted, and, where it is refuted, enough to say it again.

Theory. The judge knows the present only. So that a refusal can be shown again without the whole file, the state is
kept every so many records, with the records since: from there the last few are judged once more, to find the state just
before them. Both are bounded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from checker.conform.abi import Abi
from checker.conform.judge import LIMIT, Judge, Refuted, TooMany
from checker.conform.reading import Line, lines_of
from checker.exits import Exit
from machines.history import Course
from machines.law import Refusal

__all__ = ["Again", "Found", "Outcome", "judged", "replay", "resumed"]

ANCHOR_EVERY = 500  # records
SINCE_MAX = 20_000  # records that are kept, at most
SHOWN_BEFORE = 6  # records before the refused one


@frozen
class Again:
    """Records that are refused in the same way, from a state on. before: the digest before the first one."""

    course: Course
    abi: Abi | None
    records: tuple[Mapping[str, Any], ...]


@frozen
class Found:
    """A refusal. line: of the file. states: in which the run may have been before it. text: of a line that is no
    record."""

    line: int
    record: Mapping[str, Any] | None
    refusal: Refusal
    states: tuple[Course, ...]
    again: Again | None
    text: str = ""
    chain_before: str = ""


@frozen
class Outcome:
    """What came of it. judge: what it has counted."""

    exit: Exit
    why: tuple[str, ...]
    judge: Judge
    lines: int
    found: Found | None = None


@define(eq=False)
class _Kept:
    """The last state that was certain, and the records since."""

    course: Course | None = None
    abi: Abi | None = None
    records: list[Mapping[str, Any]] = field(factory=list)

    def add(self, judge: Judge, record: Mapping[str, Any]) -> None:
        """After it was judged."""
        self.records.append(record)
        if len(judge.courses) == 1 and (self.course is None or len(self.records) >= ANCHOR_EVERY):
            self.course, self.abi, self.records = judge.courses[0].copy(), copy.deepcopy(judge.abi), []
        elif len(self.records) > SINCE_MAX:
            self.course, self.abi, self.records = None, None, []

    def again(self, record: Mapping[str, Any], chain: bool) -> Again | None:
        """The state a few records before the refused one."""
        if self.course is None:
            return None
        judge = resumed(self.course, self.abi)
        tail = [*self.records, record]
        first = len(tail) - 1 - SHOWN_BEFORE
        for earlier in tail[: max(0, first)]:
            judge.feed(earlier)
        if len(judge.courses) != 1:
            return Again(self.course, self.abi, tuple(tail))
        return Again(judge.courses[0], judge.abi, tuple(tail[max(0, first) :]))


def resumed(course: Course, abi: Abi | None) -> Judge:
    """A judge that goes on from there. It judges no chain: that is not the state's."""
    judge = Judge(chain=False)
    judge.courses, judge.abi, judge._begun = [course.copy()], copy.deepcopy(abi), True
    return judge


def replay(
    path: Path, limit: int = LIMIT, chain: bool = True, end: bool = True,
    progress: Callable[[Line, Judge], None] = lambda line, judge: None,
) -> Outcome:  # fmt: skip
    """Judge a file. chain: the digests must be there and right; end: a journal without an end is not clean. Raises
    BadFile."""
    return judged(lines_of(path), Judge(limit, chain), end, progress)


def judged(
    lines: Iterable[Line], judge: Judge, end: bool = True,
    progress: Callable[[Line, Judge], None] = lambda line, judge: None,
) -> Outcome:  # fmt: skip
    kept, line, last = _Kept(), Line(0, 0, None), ""
    cut = False
    try:
        for line in lines:
            if line.record is None and line.cut and judge.courses and not judge.ended:
                cut = True
                break
            if line.record is None:
                refusal = Refusal("form", "it comes after the end" if judge.ended else "the line is no JSON object")
                found = Found(line.number, None, refusal, tuple(judge.courses), None, line.text)
                return Outcome(Exit.REFUTED, (f"line {line.number}: {refusal}",), judge, line.number, found)
            judge.feed(line.record)
            kept.add(judge, line.record)
            last = str(line.record.get("chain"))
            progress(line, judge)
    except Refuted as refuted:
        if refuted.refusal.kind == "format":
            return Outcome(Exit.NOT_A_JOURNAL, (f"line {line.number}: {refuted}",), judge, line.number)
        again = None if refuted.refusal.kind == "chain" else kept.again(refuted.record, judge.chain)
        found = Found(
            line.number, refuted.record, refuted.refusal, tuple(refuted.before), again, chain_before=last
        )  # fmt: skip
        return Outcome(Exit.REFUTED, (f"line {line.number}: {refuted}",), judge, line.number, found)
    except TooMany:
        why = f"line {line.number}: more than {judge.limit} states are possible (--limit-states)"
        return Outcome(Exit.UNDETERMINED, (why, *judge.unsure), judge, line.number)
    return _ended(judge, line.number, cut, end)


def _ended(judge: Judge, lines: int, cut: bool, end: bool) -> Outcome:
    """Nothing was refused."""
    if not judge.courses:
        return Outcome(Exit.NOT_A_JOURNAL, ("it has no head",), judge, lines)
    if judge.unsure:
        return Outcome(Exit.UNDETERMINED, tuple(judge.unsure), judge, lines)
    if not judge.ended:
        what, number = "its last line is cut short" if cut else "it has no end", judge.courses[0].number
        why = f"{what}: {f'steps may be missing after number {number - 1}' if number else 'no step is in it'}"
        return Outcome(Exit.NO_END if end else Exit.PROVED, (why,), judge, lines)
    return Outcome(Exit.PROVED, (), judge, lines)
