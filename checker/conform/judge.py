"""A journal held against the rulebook, record by record, in one pass and with bounded memory.

Theory. Of each record is judged, in this order: that it is one (its fields and their types), that it is where it was
written (the chain), that the rulebook allows it there (machines/history.py), and that the calls of the ABI say the same
(checker/conform/abi.py). The first that is not so ends it, since nothing after it means anything. Where fields are
missing, what is kept is the set of states in which the run may be (checker/conform/possible.py).

A journal that ends without saying so is not refuted: all of it was allowed, and its last lines may be missing.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import define, field

from checker.conform.abi import Abi
from checker.conform.form import shown, wrong_element, wrong_fields, wrong_format, wrong_parameters
from checker.conform.possible import Said, Taken, TooMany, possible
from machines.evidence import CHAIN, KINDS, kind_of, linked
from machines.history import Course
from machines.law import Law, Refusal
from machines.protocol import RULEBOOK
from machines.protocol.host import WAITS

__all__ = ["LIMIT", "Judge", "Refuted", "TooMany", "refusal_of", "told"]

LIMIT = 1000  # possible states


class Refuted(Exception):
    """A record that is not allowed. before: the states in which the run may have been."""

    def __init__(self, record: Mapping[str, Any], refusal: Refusal, before: list[Course]) -> None:
        self.record, self.refusal, self.before = record, refusal, before
        super().__init__(f"{told(record)}: {refusal}")


def told(record: Mapping[str, Any]) -> str:
    """Which record it is, in words."""
    match kind_of(record):
        case "number":
            about = f" of {shown(record['element'])}" if record.get("element") is not None else ""
            rule = shown(record.get("rule") or "an unknown rule", str)
            return f"step {shown(record.get('number', '?'), str)}, {rule}{about}"
        case "call":
            return f"call {shown(record.get('id'))}, {shown(record.get('call'), str)}"
        case "returned":
            return f"the return of call {shown(record.get('returned'))}"
        case None:
            return "a record"
        case kind:
            return {"journal": "the head", "gap": "a gap", "lost": "lost calls", "end": "the end"}[kind]


@define(eq=False)
class Judge:
    """limit: of possible states. chain: whether it is judged. known: what earlier calls have taught, where the records
    begin in the middle.

    steps, calls: how many were judged. rules: how often each was fired. unsure: why not all was judged, in words."""

    limit: int = LIMIT
    chain: bool = True
    known: Abi | None = None
    courses: list[Course] = field(factory=list, init=False)
    abi: Abi | None = field(default=None, init=False)
    ended: bool = field(default=False, init=False)
    steps: int = field(default=0, init=False)
    calls: int = field(default=0, init=False)
    missing: int = field(default=0, init=False)
    jobs: int = field(default=0, init=False)
    most_states: int = field(default=1, init=False)
    rules: Counter[str] = field(factory=Counter, init=False)
    unsure: list[str] = field(factory=list, init=False)
    _last: str = field(default="", init=False)
    _begun: bool = field(default=False, init=False)
    _unnamed: bool = field(default=False, init=False)  # an element may be there that no line has named

    def feed(self, record: Mapping[str, Any]) -> None:
        """Raises Refuted, or TooMany."""
        kind = kind_of(record)
        if wrong := self._form(kind, record):
            raise Refuted(record, wrong, self.courses)
        match kind:
            case "journal":
                self._head(record)
            case "number":
                self._step(record)
            case "call" | "returned":
                self._call(kind, record)
            case "gap":
                self._gap(record)
            case "lost":
                self._lost(record)
            case "end":
                self._end(record)

    # -- what it is ----------------------------------------------------------------------------------------------------
    def _form(self, kind: str | None, record: Mapping[str, Any]) -> Refusal | None:
        if kind is None:
            return Refusal("form", f"it has none of the fields {', '.join(KINDS)}")
        if (kind == "journal") == bool(self.courses):
            return Refusal("form", "there are two heads" if self.courses else "the head is missing")
        if self.ended:
            return Refusal("form", "it comes after the end")
        if kind == "journal" and (wrong := wrong_format(record["journal"])):
            return Refusal("format", wrong)
        if wrong := wrong_fields(kind, record):
            return Refusal("form", wrong)
        return self._linked(record) if self.chain else None

    def _linked(self, record: Mapping[str, Any]) -> Refusal | None:
        due, self._last = linked(self._last, record), str(record.get(CHAIN))
        if CHAIN not in record:
            return Refusal("chain", "it has no chain")
        if self._last != due:
            return Refusal(
                "chain", f"its chain is {shown(self._last, str)}, and over it and what came before it is {due}"
            )
        return None

    # -- where it begins -----------------------------------------------------------------------------------------------
    def _head(self, record: Mapping[str, Any]) -> None:
        values = record["parameters"]
        if wrong := wrong_parameters(values):
            raise Refuted(record, Refusal("form", wrong), [])
        law = _law(tuple(sorted(values.items())))
        if (record["state"] is None) != (record["begins"] == 0) or (record["begins"], record["generation"]) < (0, 1):
            raise Refuted(record, Refusal("form", "the initial state is that before step 0, and no other"), [])
        self._begin(law, record)
        if record["calls"] is not None:
            self.abi = copy.deepcopy(self.known) or Abi(record["calls"])
            self._begun = self.known is not None

    def _begin(self, law: Law, record: Mapping[str, Any]) -> None:
        try:
            books = law.initial() if record["state"] is None else law.books(record["state"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refuted(record, Refusal("state", f"its state is none: {error}"), self.courses) from None
        at_us = self.courses[0].at_us if self.courses else None
        self.courses = [Course(law, books, record["begins"], at_us, record["generation"])]
        self._begun = False

    def _gap(self, record: Mapping[str, Any]) -> None:
        self.unsure.append(f"{record['gap']} steps before step {record['begins']} were not written")
        if record["begins"] != self.courses[0].number + record["gap"] or record["gap"] < 1:
            raise Refuted(record, Refusal("number", "it does not end where it says that steps go on"), self.courses)
        self._begin(self.courses[0].law, record)

    def _lost(self, record: Mapping[str, Any]) -> None:
        if self.abi is None or record["next"] != self.abi.next + record["lost"] or record["lost"] < 1:
            raise Refuted(record, Refusal("number", "it does not end where it says that calls go on"), self.courses)
        self.abi.skip(dict(record))
        self.unsure.append(f"{record['lost']} calls before call {record['next']} were not written")

    # -- steps ---------------------------------------------------------------------------------------------------------
    def _step(self, record: Mapping[str, Any]) -> None:
        said = Said.by(dict(record))
        if not self._begun:
            self._begun = True
            if self.abi and (course := self.courses[0]):
                first = said.at_us if course.number else None
                self.abi.begin(course.law, course.books, first, course.generation)
        taken = self._taken(record, said)
        self.steps += 1
        if taken is None:
            return
        self.rules[taken.lawful.rule.id] += 1
        self.jobs += taken.lawful.rule.id.startswith("client.arrive.")
        rule = taken.lawful.rule
        if self.abi and said.at_us is None and (rule.begins or rule.outcome):
            self._no_more_calls(record, "when it was is not known")
        if self.abi:
            wrong = self.abi.step(
                taken.lawful, taken.key, taken.course.number - 1, said.at_us, taken.course.generation, said.observed
            ) or self.abi.tidy(taken.course.books, said.at_us)
            if wrong:
                raise Refuted(record, Refusal("calls", wrong), self.courses)

    def _taken(self, record: Mapping[str, Any], said: Said) -> Taken | None:
        """The step, where it can have been only one."""
        if len(self.courses) == 1 and said.rule is not None:
            (course,) = self.courses
            lawful = course.law.rules.get(said.rule)
            if not (self._unnamed or (lawful and lawful.sort and said.key is None)):
                return self._one(record, said, course)
        named = self.courses[0].law.rules.get(said.rule or "")
        missing = said.rule is None or bool(named and named.sort and said.key is None)
        self.missing += missing
        self._unnamed = self._unnamed or missing
        found, steps, refusal = possible(self.courses, said, self.limit)
        if not found:
            raise Refuted(record, refusal or Refusal("guard", "no rule that fits is enabled"), self.courses)
        self.courses = [t.course for t in found]
        self.most_states = max(self.most_states, len(found))
        if len(steps) > 1 and self.abi:
            self._no_more_calls(record, "it may be several steps")
        return found[0] if len(steps) == 1 else None

    def _no_more_calls(self, record: Mapping[str, Any], why: str) -> None:
        self.unsure.append(f"from {told(record)} on calls are not judged: {why}")
        self.abi = None

    def _one(self, record: Mapping[str, Any], said: Said, course: Course) -> Taken:
        lawful = course.law.rules.get(str(said.rule))
        if lawful and (text := wrong_element(lawful.sort, said.key)):
            raise Refuted(record, Refusal("element", text), [course])
        wrong = course.step(str(said.rule), said.key, said.number, said.at_us, said.generation, said.observed)
        if wrong:
            raise Refuted(record, wrong, [course])
        return Taken(course, course.law.rules[str(said.rule)], said.key)

    # -- calls and the end ---------------------------------------------------------------------------------------------
    def _call(self, kind: str, record: Mapping[str, Any]) -> None:
        if self.abi is None:
            if not self.unsure:
                raise Refuted(record, Refusal("form", "the head says that there are no calls"), self.courses)
            return
        wrong = self.abi.call(dict(record)) if kind == "call" else self.abi.returned(dict(record))
        self.calls += kind == "call"
        if wrong:
            raise Refuted(record, Refusal("calls", wrong), self.courses)

    def _end(self, record: Mapping[str, Any]) -> None:
        course = self.courses[0]
        if record["end"] != course.number:
            last = f"the last one here is number {course.number - 1}" if course.number else "none is here"
            text = f"there were {record['end']} steps, and {last}"
            raise Refuted(record, Refusal("number", text), self.courses)
        if course.at_us is not None and record["at_us"] < course.at_us:
            raise Refuted(record, Refusal("time", "it was before the last step"), self.courses)
        if course.generation not in (None, record["generation"]):
            text = f"it says generation {record['generation']}, and by the steps it is {course.generation}"
            raise Refuted(record, Refusal("generation", text), self.courses)
        try:
            differences = [list(c.law.differences(c.books, record["state"])) for c in self.courses]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refuted(record, Refusal("state", f"its state is none: {error}"), self.courses) from None
        if all(differences):
            raise Refuted(record, Refusal("state", "; ".join(differences[0][:5])), self.courses)
        if self.abi and (wrong := self.abi.end(dict(record))):
            raise Refuted(record, Refusal("calls", wrong), self.courses)
        if self.abi is None and record["calls"] is not None and not self.unsure:
            raise Refuted(record, Refusal("calls", "the head says that there are no calls"), self.courses)
        self.ended = True


@functools.lru_cache(maxsize=4)
def _law(values: tuple[tuple[str, int], ...]) -> Law:
    """Nothing in it changes."""
    return Law(RULEBOOK, dict(values), WAITS)


def refusal_of(records: Iterable[Mapping[str, Any]], chain: bool = True, known: Abi | None = None) -> str:
    """What is wrong with a journal, or "". Raises TooMany."""
    judge = Judge(chain=chain, known=known)
    try:
        for record in records:
            judge.feed(record)
    except Refuted as refuted:
        return str(refuted)
    return ""
