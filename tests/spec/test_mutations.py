"""Each row of §12 looks at what it names: with one line of the executor wrong, its test fails (mutations.py).

The mutants are run one after the other, each in a process of its own that loads the native library as it is; one for
each row always, those that are seen only by waiting nightly.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from attrs import evolve

from tests.spec.mutated import ROOT, copy, run
from tests.spec.mutations import MUTATIONS, Mutation
from tests.spec.requirements import FAULTS

ROWS = [row.id for row in FAULTS]
ALWAYS = "FI05"  # one control shows that the copy works; that the rows pass is what test_fault_injection.py says


def marks(nightly: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.nightly] if nightly else []


EACH = [pytest.param(m, id=f"{m.row}{'-nightly' if m.nightly else ''}", marks=marks(m.nightly)) for m in MUTATIONS]


@pytest.mark.parametrize("mutation", EACH)
def test_a_wrong_line_is_seen(tmp_path: Path, mutation: Mutation) -> None:
    copy(tmp_path, mutation)
    done = run(tmp_path, mutation.row)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"^FAILED \S+::test_{mutation.row.lower()}_", done.stdout, re.MULTILINE), done.stdout
    assert "ERROR" not in done.stdout, "it must be seen by the test, not by what is around it"


@pytest.mark.parametrize("row", [pytest.param(row, marks=marks(row != ALWAYS)) for row in ROWS])
def test_the_copy_alone_is_right(tmp_path: Path, row: str) -> None:
    """Negative control: without the mutation the same run passes."""
    copy(tmp_path, None)
    done = run(tmp_path, row)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^[1-9]\d* passed", done.stdout, re.MULTILINE), done.stdout


def test_every_row_has_its_line_in_the_fast_tier() -> None:
    """And each line is where it is said to be, also of those that run nightly."""
    assert {m.row for m in MUTATIONS if not m.nightly} == {m.row for m in MUTATIONS} == set(ROWS)
    assert len(ROWS) == 15
    for mutation in MUTATIONS:
        lines = (ROOT / "runtime" / mutation.file).read_text(encoding="utf-8").splitlines()
        assert sum(line.count(mutation.old) for line in lines) == 1, mutation.row
        assert mutation.wrong, mutation.row


def test_a_text_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Negative control."""
    with pytest.raises(ValueError, match=r"FI03: lane.py has 'no such text' 0 times"):
        copy(tmp_path, evolve(next(m for m in MUTATIONS if m.row == "FI03"), old="no such text"))
