"""What `check-states replay` says: a short table where all is allowed; else the step, the states, and what was near."""

from __future__ import annotations

import io
import json
import textwrap
from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.table import Table

from checker.conform.judge import told
from checker.conform.nearest import nearest, permitted, variables
from checker.conform.replaying import Found, Outcome
from checker.exits import Exit
from machines.history import Course

__all__ = ["as_json", "text"]

WORDS = {
    Exit.PROVED: "ALLOWED", Exit.REFUTED: "REFUTED", Exit.UNDETERMINED: "UNDETERMINED", Exit.NO_END: "NO END",
    Exit.NOT_A_JOURNAL: "NO JOURNAL",
}  # fmt: skip
STATES_SHOWN, RULES_SHOWN, COLUMN = 3, 10, 8
WIDTH, RULE = 100, 36  # columns: of a line, of the name of a rule


def text(outcome: Outcome, seconds: float) -> str:
    """For a person."""
    lines = list(_counted(outcome, seconds))
    if outcome.found:
        lines += ["", *_found(outcome.found)]
    lines.append("")
    lines.append(f"{WORDS[outcome.exit]} (exit {outcome.exit.value})")
    lines += [f"  {why}" for why in outcome.why]
    return "\n".join(part for line in lines for part in _fitted(line))


def _fitted(line: str, width: int = WIDTH) -> list[str]:
    """As many lines as it needs; those after the first are further in."""
    if len(line) <= width:
        return [line]
    within = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, width, subsequent_indent=within, replace_whitespace=False, break_on_hyphens=False)


def _counted(outcome: Outcome, seconds: float) -> list[str]:
    judge = outcome.judge
    rows = [
        ("records", f"{outcome.lines:,}, {outcome.lines / max(seconds, 1e-9):,.0f}/s"),
        ("steps", f"{judge.steps:,} of {len(judge.rules)} rules"),
        ("jobs", f"{judge.jobs:,}"),
        ("generation", str(judge.courses[0].generation) if judge.courses else "not known"),
        ("calls of the ABI", _calls(outcome)),
        ("chain", "as it was written" if judge.chain else "not judged"),
    ]
    if judge.missing or judge.most_states > 1:
        rows.append(("fields missing", f"in {judge.missing:,} steps; at most {judge.most_states:,} possible states"))
    return [f"{name:<24}{value}" for name, value in rows]


def _calls(outcome: Outcome) -> str:
    judge = outcome.judge
    if judge.abi is None:
        return f"{judge.calls:,}, not judged to the end" if judge.calls else "none were recorded"
    abi = judge.abi
    return f"{judge.calls:,}: {abi.matched:,} are those of a rule, {abi.outside:,} belong to none and need not"


def _found(found: Found) -> list[str]:
    lines = [f"line {found.line}: {told(found.record) if found.record else 'no record'}"]
    lines.append(f"  {found.refusal.kind}: {found.refusal}")
    if found.record is None or not _explained(found):
        return lines
    for number, course in enumerate(found.states[:STATES_SHOWN], 1):
        which = f" ({number} of {len(found.states)})" if len(found.states) > 1 else ""
        lines += ["", f"the last possible state{which}", *_table(course, found)]
    if "rule" in found.record:
        lines += ["", *_nearest(found.states[0], found)]
    return lines


def _explained(found: Found) -> bool:
    """Whether the state before it says why: not so of a line that is no record of its form."""
    return found.record is not None and bool(found.states) and found.refusal.kind != "form"


def _table(course: Course, found: Found) -> list[str]:
    record = found.record or {}
    table = Table(box=None, pad_edge=False)
    shown = variables(course, record)
    columns = []
    for who, of in shown.items():
        said = [f"{name} {value}" for name, value in of.items()]
        for i in range(0, len(said), COLUMN):
            table.add_column(who if i == 0 else "")
            columns.append(said[i : i + COLUMN])
    for i in range(max(map(len, columns))):
        table.add_row(*(column[i] if i < len(column) else "" for column in columns))
    console = Console(file=io.StringIO(), width=WIDTH - 2)
    console.print(table)
    return [f"  {line.rstrip()}" for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def _nearest(course: Course, found: Found) -> list[str]:
    record = found.record or {}
    lines = []
    if failing := nearest(course, record):
        lines += [
            f"{record['rule']} was not possible: of its guard this does not hold",
            *(f"  {p}" for p in failing),
            "",
        ]
    lines.append("the nearest permitted rules")
    for near in permitted(course, record)[:RULES_SHOWN]:
        said = [line for part in near.failing or ("enabled",) for line in _fitted(str(part), WIDTH - RULE - 2)]
        lines += [f"  {name:<{RULE}}{line}" for name, line in zip_longest([near.rule], said, fillvalue="")]
    return lines


def as_json(outcome: Outcome, seconds: float) -> str:
    """For a program."""
    judge = outcome.judge
    abi = judge.abi
    report: dict[str, Any] = {
        "verdict": WORDS[outcome.exit], "exit": outcome.exit.value, "why": list(outcome.why),
        "records": outcome.lines, "seconds": round(seconds, 3), "steps": judge.steps, "jobs": judge.jobs,
        "generation": judge.courses[0].generation if judge.courses else None, "rules": dict(judge.rules.most_common()),
        "calls": judge.calls, "calls_of_rules": abi.matched if abi else None,
        "calls_outside": abi.outside if abi else None, "chain": judge.chain, "steps_without_rule": judge.missing,
        "possible_states_max": judge.most_states, "found": None,
    }  # fmt: skip
    if found := outcome.found:
        course = found.states[0] if _explained(found) else None
        step = found.record if found.record and "rule" in found.record else None
        report["found"] = {
            "line": found.line, "record": found.record, "kind": found.refusal.kind, "text": str(found.refusal),
            "states": [variables(c, found.record or {}) for c in found.states[:STATES_SHOWN] if course],
            "failing": [str(p) for p in (nearest(course, step) or ())] if course and step else [],
            "nearest": [
                {"rule": n.rule, "failing": [str(p) for p in n.failing]}
                for n in (permitted(course, step)[:RULES_SHOWN] if course and step else ())
            ],
        }  # fmt: skip
    return json.dumps(report, indent=2, default=str) + "\n"
