"""Journals with one record removed, put elsewhere, or altered in one field; and the judge in the middle of one."""

from __future__ import annotations

import copy
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from checker.conform.judge import Judge, Refuted
from machines.evidence import CHAIN, linked

Records = list[dict[str, Any]]


def kind(record: dict[str, Any]) -> str:
    """A kind of line: each rule and each call of the ABI is one of its own."""
    if "rule" in record:
        return f"step {record['rule']}"
    return f"call {record['call']}" if "call" in record else next(iter(record))


def places(records: Records) -> dict[str, list[int]]:
    found = defaultdict(list)
    for i, record in enumerate(records):
        found[kind(record)].append(i)
    return found


def altered(record: dict[str, Any], rng: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """One field at a time: a number one more, a name that is none, another state."""
    for name, value in record.items():
        match value:
            case _ if name == CHAIN:
                continue
            case int():
                new: Any = value + 1
            case str():
                new = f"{value}x"
            case list():
                new = [value[0] + 1, *value[1:]]
            case dict():
                which = rng.choice([key for key, of in value.items() if isinstance(of, int)])
                new = {**value, which: value[which] + 1}
            case _:
                new = 7
        yield f"alter {name}", {**record, name: new}


def mutants(records: Records, at: int, rng: random.Random) -> Iterator[tuple[str, Records]]:
    """What is done, and the records from `at` on."""
    here, rest = records[at], records[at + 1 :]
    yield "remove", rest
    if rest:
        yield "swap", [rest[0], here, *rest[1:]]
    else:
        yield "repeat", [here, here]
    for name, new in altered(here, rng):
        yield name, [new, *rest]


def relinked(before: str, records: Records) -> Records:
    """With the chain made anew, as somebody would who knows how."""
    made = []
    for record in records:
        before = linked(before, record)
        made.append({**record, CHAIN: before})
    return made


def fork(judge: Judge) -> Judge:
    """Another that goes on from the same place."""
    other = copy.copy(judge)
    other.courses = [course.copy() for course in judge.courses]
    other.abi, other.rules, other.unsure = copy.deepcopy(judge.abi), Counter(judge.rules), list(judge.unsure)
    return other


def verdict(judge: Judge, records: Records) -> str:
    """Why it is not clean, or ""."""
    try:
        for record in records:
            judge.feed(record)
    except Refuted as refuted:
        return str(refuted)
    return "" if judge.ended and not judge.unsure else "it has no end"


def judges(records: Records, chain: bool) -> Iterator[tuple[int, Judge]]:
    """Before each record, a judge that has read those before it."""
    judge = Judge(chain=chain)
    for i, record in enumerate(records):
        yield i, judge
        judge.feed(record)
