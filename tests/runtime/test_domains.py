"""docs/lock-domains.md: what each rule needs of §5.2's five locks, against the compiled rules and the specification."""

from __future__ import annotations

import pytest
from attrs import evolve

from machines.protocol import RULEBOOK
from machines.protocol.variables import free, permits, strikes
from runtime.compiled import CompiledRule, Program
from runtime.domains import DOCUMENT, page, reads, writes

PROGRAM = Program(RULEBOOK, {})
ORDER = ["lifecycle", "admission", "pool", "submit"]  # §5.2, last paragraph; completion stands in its table alone


def row(rule: str, text: str) -> list[str]:
    """Cells of the rule's row, from its call on."""
    (line,) = [x for x in text.splitlines() if x.startswith(f"| `{rule}` |")]
    return [cell.strip() for cell in line.split("|")[3:-1]]


def test_the_page_is_generated() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == page(), "run `python -m runtime.domains`"


def test_the_columns_are_in_the_specified_order() -> None:
    head = next(x for x in page().splitlines() if x.startswith("| rule |"))
    assert [cell.strip() for cell in head.split("|")[4:-1]] == [*ORDER, "completion"]


WAITED = "ok, timeout, exception, error, artifact, compatibility"


@pytest.mark.parametrize(
    ("rule", "cells"),
    [  # by hand, from the rules' own text
        ("clock.kv_retry", ["", "", "**w**", "", "", ""]),
        ("client.cancel", ["", "", "", "", "", "**w**"]),
        ("submitter.infer", ["begins infer", "**w**", "r", "**w**", "**w**", "**w**"]),
        ("completion.wait.stale", [f"takes wait: {WAITED}", "**w**", "", "", "", "**w**"]),
        ("lifecycle.exhausted", ["", "**w**", "**w**", "r", "r", ""]),
    ],
)
def test_rows(rule: str, cells: list[str]) -> None:
    assert row(rule, page()) == cells


def locks(rule: CompiledRule, keys: frozenset[tuple[str, str]]) -> set[str]:
    """Domains of what the compiled functions touch. An element of another rule's sort may be of any."""
    sorts = {"shared": [None], "own": [rule.sort], "any": list(PROGRAM.records)}
    return {
        v.lock
        for whose, name in keys
        for v in RULEBOOK.variables
        if v.name == name and not v.world and (v.sort.name if v.sort else None) in sorts[whose]
    }


@pytest.mark.shows("§5.2.lifecycle", "§5.2.admission", "§5.2.pool", "§5.2.submit", "§5.2.completion")
@pytest.mark.parametrize("rule", PROGRAM.rules.values(), ids=str)
def test_the_compiled_rules_touch_no_other_domain(rule: CompiledRule) -> None:
    assert locks(rule, rule.writes) == writes(rule.rule)
    assert locks(rule, rule.reads) <= reads(rule.rule)


def test_one_more_update_is_one_more_domain() -> None:
    """Negative control."""
    rule = RULEBOOK.rule("clock.kv_retry")
    more = RULEBOOK.replace(evolve(rule, then={**dict(rule.then), permits: free}))
    assert row(rule.id, page(more)) == ["", "", "**w**", "r", "**w**", ""]
    assert row(rule.id, page(RULEBOOK.replace(evolve(rule, then={strikes: 0})))) == row(rule.id, page())
