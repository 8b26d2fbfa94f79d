"""The journal: what is written can be judged by the rulebook, from the beginning or from what is kept."""

from __future__ import annotations

import functools
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from executing import READY_S, Bench, executing

from checker.conform.judge import Judge, refusal_of
from machines.evidence import linked
from machines.protocol import RULEBOOK
from runtime import executor as executor_module
from runtime.calrt import Library
from runtime.journal import Journal

Lines = list[dict[str, Any]]
PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")


def read(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def written(b: Bench, folder: Path) -> Lines:
    b.executor.journal.write(folder / "journal.jsonl")
    return read(folder / "journal.jsonl")


def eventful(b: Bench) -> None:
    """Successes, a cancel, a fault with a recovery, a removal, a sequence that begins again."""
    b.tokens(1, PROMPT, 6)
    b.enqueue(2, OTHER).cancel()
    b.sim.fault("infer", "ccu_exception")
    assert not b.run(3, PROMPT).status.ok
    assert b.executor.wait_ready(READY_S)
    for seq_id in (1, 3):
        assert b.executor.seq_rm(seq_id).ok
    assert b.tokens(1, OTHER, 6) == b.oracle.tokens(OTHER, 6)


def judged(lines: Lines) -> Judge:
    judge = Judge()
    for line in lines:
        judge.feed(line)
    assert judge.ended
    assert judge.steps == len(lines) - 2
    return judge


def of_the_judge(judge: Judge) -> dict[str, int]:
    (course,) = judge.courses
    return {n: v for n, v in course.law.state(course.books).items() if isinstance(v, int)}


def shared_variables(b: Bench) -> dict[str, int]:
    names = [v.name for v in RULEBOOK.variables if v.sort is None and not v.world]
    return {name: int(value) for name, value in b.executor.engine.read(
        lambda s: {name: getattr(s, name) for name in names}).items()}  # fmt: skip


def test_what_is_written_is_judged_as_allowed(library: Library, tmp_path: Path) -> None:
    """All steps are the rulebook's, and lead to the state that the executor is in."""
    with executing(library) as b:
        eventful(b)
        b.executor.close()
        lines = written(b, tmp_path)
        judge = judged(lines)
        steps = lines[1:-1]
        assert (lines[0]["begins"], lines[0]["state"]) == (0, None)
        assert of_the_judge(judge) == shared_variables(b)
        assert [step["rule"] for step in steps] == b.rules()
        assert judge.courses[0].number == lines[-1]["end"] == b.executor.journal.total > 150
        at_us = [step["at_us"] for step in steps]
        assert at_us == sorted(at_us)
        assert [steps[i]["generation"] for i in (0, -1)] == [1, b.executor.calls.generation_id] == [1, 2]


def test_a_ring_that_was_overwritten_is_judged_from_a_known_state(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = 120
    monkeypatch.setattr(executor_module, "Journal", functools.partial(Journal, ring))
    with executing(library) as b:
        for _ in range(4):  # at different places of the ring
            b.tokens(1, PROMPT, 13)
            b.executor.seq_rm(1)
            lines = written(b, tmp_path)
            assert lines[0]["begins"] > 0
            assert ring // 3 <= len(lines) - 2 <= ring
            assert judged(lines).courses[0].number == b.executor.journal.total > ring
        eventful(b)
        b.executor.close()
        assert of_the_judge(judged(written(b, tmp_path))) == shared_variables(b)


def test_without_the_monitor_there_are_the_steps_and_no_end(library: Library, tmp_path: Path) -> None:
    """Whoever holds it may hold it for ever."""
    with executing(library) as b:
        b.tokens(1, PROMPT, 2)
        with b.executor.engine:
            lines = written(b, tmp_path)
        assert refusal_of(lines) == ""
        assert "rule" in lines[-1], "the last one is a step"
        assert "end" in written(b, tmp_path)[-1], "control"


def test_each_line_is_bound_to_those_before_it(library: Library, tmp_path: Path) -> None:
    """A microsecond more is nothing that a rule could see."""
    with executing(library) as b:
        b.tokens(1, PROMPT, 2)
        lines = written(b, tmp_path)
    before = ""
    for line in lines:
        assert line["chain"] == linked(before, line)
        before = line["chain"]
    last = lines[-2]
    last["at_us"] += 1
    assert "its chain is" in refusal_of(lines)
    assert refusal_of(lines, chain=False) == "", "control: nothing else sees it"


def one(lines: Lines, rule: str) -> int:
    return next(i for i, line in enumerate(lines) if line.get("rule") == rule)


def without(rule: str) -> Callable[[Lines], None]:
    """A step that was not written down. The numbers do not tell."""

    def forged(lines: Lines) -> None:
        del lines[one(lines, rule)]
        for number, line in enumerate(lines[1:-1]):
            line["number"] = number

    return forged


def changed(which: str, **what: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[one(lines, which)].update(what)


@pytest.mark.parametrize(
    ("forged", "found"),
    [
        (without("submitter.infer.ok"), "its guard does not hold"),
        (without("lifecycle.reset"), "its guard does not hold"),
        (changed("submitter.infer.ok", observed="busy"), "it observed 'busy', and the rule takes ok"),
        (changed("completion.deliver", element=[2, 1]), r"completion.deliver of \[2, 1\]: its guard does not hold"),
        (lambda lines: lines.pop(40), "that of the next step is 39: 1 steps are missing"),
        (changed("admission.reserve.ok", rule="completion.deliver", observed=""), "its guard does not hold"),
        (lambda lines: lines[-1]["state"].update(strikes=1), "strikes is 1; by the steps that were taken it should"),
        (lambda lines: lines[-1].update(end=7), "there were 7 steps, and the last one here is number"),
    ],
)
def test_control_a_journal_that_lies_is_refuted(
    library: Library, tmp_path: Path, forged: Callable[[Lines], None], found: str
) -> None:
    with executing(library) as b:
        eventful(b)
        lines = written(b, tmp_path)
    assert refusal_of(lines, chain=False) == ""
    forged(lines)
    assert re.search(found, refusal_of(lines, chain=False))


def test_the_file_is_its_owners_and_whole_or_not_there(library: Library, tmp_path: Path) -> None:
    with executing(library) as b:
        path = tmp_path / "journal.jsonl"
        b.executor.journal.write(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        before = path.read_bytes()
        with pytest.raises(OSError, match="No such file"):
            b.executor.journal.write(tmp_path / "not_there" / "journal.jsonl")
        path.chmod(0o644)
        b.run(1, PROMPT)
        b.executor.journal.write(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_bytes().startswith(before[: before.index(b'{"end"')]), "it goes on where it was"
        assert [p.name for p in tmp_path.iterdir()] == ["journal.jsonl"], "nothing is left beside it"


def test_an_entry_holds_numbers_alone(library: Library) -> None:
    """The ring would keep the memory of every job that it names."""
    with executing(library) as b:
        b.tokens(1, PROMPT, 3)
        elements = [e.element for e in b.executor.journal.entries()]
        assert {type(e) for e in elements} == {type(None), tuple}
        assert {type(n) for e in elements if e is not None for n in e} == {int}


def test_backwards_as_far_as_it_is_kept() -> None:
    journal = Journal(4, new_generation={"new"})
    for rule in "a", "b", "new", "c", "d", "new", "e":
        journal.add(0, rule, None, "")
    assert [(e.number, e.rule, e.generation) for e in journal.backwards()] == [
        (6, "e", 3), (5, "new", 3), (4, "d", 2), (3, "c", 2),
    ]  # fmt: skip
    assert [e.number for e in journal.entries()] == [3, 4, 5, 6]
