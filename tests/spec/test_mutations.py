"""For each row of §12 one line of the executor which, when it is wrong, makes that row's test fail.

So every row is known to look at what it names. The mutants are run one after the other in processes of their own:
two of them always, all of them nightly.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mutated import ROOT, Mutation, copy, run

MUTATIONS = (
    Mutation("fi01", "manifest.py", "elif n == 0:", "elif n == 0 and not nearest(name, spare):"),
    Mutation(
        "fi02", "prepare.py",
        'yield failed(f"set CSR {csr}", lane.input.set_csr(csr, value), library)',
        "yield lane.input.set_csr(csr, value) and None",
    ),
    Mutation("fi03", "lane.py", "* size > tensor.byte_size:", "* size > tensor.byte_size + size:"),
    Mutation("fi04", "cast.py", '"clock.kv_retry": fixed(config.kv_retry_ms)', '"clock.kv_retry": fixed(0)'),
    Mutation("fi05", "calls.py", 'return observed("infer", code)', 'return "ok"'),
    Mutation("fi06", "calls.py", 'return observed("infer", code)', 'return "busy" if code else "ok"'),
    Mutation("fi07", "calls.py", 'return observed("wait", code)', 'return "ok"'),
    Mutation(
        "fi08", "calls.py",
        'return "exception" if status == BufStatus.DONE_CCU_EXCEPTION else "error"', 'return "ok"',
    ),
    Mutation("fi09", "lane.py", "if size != c.logits.byte_size:", "if size > c.logits.byte_size:"),
    Mutation("fi10", "lane.py", 'return failed("logits", code, self.library)', "return None"),
    Mutation(
        "fi11", "calls.py",
        "failure = self._kv().unreserve(context.kv_id, context.request.past_len)", "failure = None",
    ),
    Mutation("fi12", "executor.py", "context.logits if status.ok else None", "context.logits"),
    Mutation("fi13", "cast.py", '"clock.grace.close": fixed(config.close_ms)', '"clock.grace.close": fixed(0)'),
    Mutation("fi14", "calls.py", "self._kv_ids[seq_id] = next(self._next_kv_id)", "self._kv_ids[seq_id] = seq_id"),
    Mutation("fi15", "buffers.py", "good = failure is None", "good = True"),
)  # fmt: skip
ALWAYS = {"fi05", "fi15"}
ROWS = sorted(set(re.findall(r"def test_(fi\d\d)_", (ROOT / "tests/spec/test_fault_injection.py").read_text("utf-8"))))


def tiered(row: str) -> list[pytest.MarkDecorator]:
    return [] if row in ALWAYS else [pytest.mark.nightly]


@pytest.mark.parametrize("mutation", [pytest.param(m, id=m.row, marks=tiered(m.row)) for m in MUTATIONS])
def test_a_wrong_line_is_seen(tmp_path: Path, mutation: Mutation) -> None:
    copy(tmp_path, mutation)
    done = run(tmp_path, mutation.row)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"^FAILED \S+::test_{mutation.row}_", done.stdout, re.MULTILINE), done.stdout
    assert "ERROR" not in done.stdout, "it must be seen by the test, not by what is around it"


@pytest.mark.parametrize("row", [pytest.param(row, marks=tiered(row)) for row in ROWS])
def test_the_copy_alone_is_right(tmp_path: Path, row: str) -> None:
    """Negative control: without the mutation the same run passes."""
    copy(tmp_path, None)
    done = run(tmp_path, row)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_row_has_its_line() -> None:
    """And each line is where it is said to be, also of those that run nightly."""
    assert [m.row for m in MUTATIONS] == ROWS
    assert len(ROWS) == 15
    for mutation in MUTATIONS:
        lines = (ROOT / "runtime" / mutation.file).read_text(encoding="utf-8").splitlines()
        assert sum(line.count(mutation.old) for line in lines) == 1, mutation.row


def test_a_text_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Negative control."""
    with pytest.raises(ValueError, match=r"fi01: lane.py has 'no such text' 0 times"):
        copy(tmp_path, Mutation("fi01", "lane.py", "no such text", ""))
