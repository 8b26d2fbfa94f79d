"""A journal with fields missing: each line stands for all that the rulebook allows there, and for nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from executing import executing
from mutating import Records

from checker.cli import run
from checker.conform.judge import Judge, Refuted, TooMany
from checker.exits import Exit
from runtime.calrt import Library


@pytest.fixture(scope="module")
def small(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Records:
    """A few jobs of two sequences, without a record of calls."""
    path = tmp_path_factory.mktemp("small") / "journal.jsonl"
    with executing(library) as b:
        b.tokens(1, [1, 2, 3], 2)
        b.tokens(2, [4, 5], 2)
        assert b.executor.seq_rm(1).ok
        b.executor.close()
        b.executor.journal.write(path)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without(records: Records, *fields: str, where: Any = lambda record: True) -> Records:
    """One half of the fields is null, the other not there."""
    found = []
    for i, record in enumerate(records):
        if "rule" in record and where(record):
            gone = dict.fromkeys(fields) if i % 2 else {}
            record = {k: v for k, v in record.items() if k not in fields} | gone
        found.append(record)
    return found


def judged(records: Records, limit: int = 1000) -> Judge:
    judge = Judge(limit, chain=False)
    for record in records:
        judge.feed(record)
    return judge


@pytest.mark.parametrize(
    "fields", [("number",), ("at_us",), ("observed",), ("generation",), ("number", "at_us", "observed")]
)
def test_what_the_rest_says_anyway(small: Records, fields: tuple[str, ...]) -> None:
    judge = judged(without(small, *fields))
    assert (judge.ended, judge.most_states, judge.missing) == (True, 1, 0)


@pytest.mark.parametrize(
    "rule", ["submitter.infer.ok", "completion.wait.ok", "lifecycle.golden.passed", "client.remove"]
)
def test_one_rule_is_found_again(small: Records, rule: str) -> None:
    """What was observed and what comes after leave one possibility, and the end says the same."""
    judge = judged(without(small, "rule", where=lambda r: r["rule"] == rule))
    assert judge.ended
    assert judge.missing == sum(r.get("rule") == rule for r in small)
    assert len(judge.courses) == 1


def test_an_element_is_found_again(small: Records) -> None:
    """Also of a job that arrives without a name, and is named later."""
    judge = judged(without(small, "element", where=lambda r: r["rule"].startswith("client.arrive")))
    assert judge.ended
    assert judge.most_states > 1, "it might be of any sequence"
    assert len(judge.courses) == 1
    (course,) = judge.courses
    assert not any("?" in str(key) for of in course.books.elements.values() for key in of)


def test_nothing_but_a_step(small: Records) -> None:
    """Everything is gone of three steps in the middle."""
    at = [i for i, r in enumerate(small) if r.get("rule") == "submitter.infer"][1]
    blank = [{"number": r["number"]} if at <= i < at + 3 else r for i, r in enumerate(small)]
    judge = judged(blank)
    assert judge.ended
    assert judge.missing == 3
    assert judge.most_states > 10


def test_control_what_no_step_explains_is_refused(small: Records) -> None:
    """A step between without a rule cannot make two steps of one."""
    at = next(i for i, r in enumerate(small) if r.get("rule") == "completion.wait.ok")
    blank = {k: v for k, v in small[at].items() if k not in ("rule", "observed")}
    lost = [*small[: at - 1], blank, *small[at + 1 :]]
    for i, record in enumerate(lost[1:-1]):
        record["number"] = i
    with pytest.raises(Refuted):
        judged([dict(r) for r in lost])


def test_too_many_states_are_told_and_are_not_clean(small: Records, tmp_path: Path, capsys: Any) -> None:
    blank = without(small, "rule", "element", "observed")
    with pytest.raises(TooMany):
        judged(blank, limit=20)
    path = tmp_path / "blank.jsonl"
    path.write_text("".join(f"{json.dumps(r)}\n" for r in blank), encoding="utf-8")
    assert run(["replay", str(path), "--no-chain", "--limit-states", "20", "--quiet"]) is Exit.UNDETERMINED
    assert "more than 20 states are possible (--limit-states)" in capsys.readouterr().out
