"""Many seeds with one command: a process for each, one table, and the worst of their ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import click
import pytest

from runtime import run_table, storm_command
from runtime.cli import run
from runtime.exits import Exit
from runtime.seeds import SEEDS_MAX, WORST_FIRST, Children, Column, Outcome, ends_of, outcome, seeds_of, tell

SMALL = ["run", "--model", "tiny", "--limit", "2", "--tokens", "4"]


def parsed(text: str | None) -> tuple[int, ...]:
    command = click.Command("c")
    return seeds_of(click.Context(command), click.Option(["--seeds"]), text)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [(None, ()), ("7", (7,)), ("7,1-3", (7, 1, 2, 3)), ("2,1-3,2", (2, 1, 3)), ("4294967295", (4294967295,))],
)
def test_numbers_and_ranges(text: str | None, seeds: tuple[int, ...]) -> None:
    assert parsed(text) == seeds


@pytest.mark.parametrize("text", ["x", "1-", "-1", "3-1", "1,,2", "4294967296", f"0-{SEEDS_MAX}", "1.5"])
def test_what_is_no_seed(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"expected something like 7,1-20|seeds are 0 to"):
        parsed(text)


def test_each_seed_is_a_process_with_a_row(capfd: pytest.CaptureFixture[str]) -> None:
    args = [*SMALL, "--faults", "0.05", "--seeds", "7,1", "--processes", "2", "--json"]
    assert run(args) is Exit.OK
    found = json.loads(capfd.readouterr().out)
    assert found["exit"] == "OK"
    assert list(found["seeds"]) == ["7", "1"]
    assert all(r["requests"] == {"completed": 2} and r["exit"] == "OK" for r in found["seeds"].values())


def test_one_red_seed_makes_the_command_red(capfd: pytest.CaptureFixture[str]) -> None:
    """Negative control: nobody reaches so many generations."""
    args = [*SMALL, "--seeds", "2", "--generations-min", "100"]
    assert run(args) is Exit.UNEXPLAINED
    out = capfd.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert lines[1][:2] == ["2", "UNEXPLAINED"]
    assert "seed 2: generations: 1, and at least 100 were asked for" in out
    assert lines[-1] == ["0", "of", "1", "seeds", "ended", "with", "0"]


@pytest.mark.parametrize(
    ("code", "out", "err", "wanted", "said"),
    [
        (0, "{}", "", Exit.OK, "ended with 0 and printed nothing"),
        (0, '{"a": 1}', "", Exit.OK, ""),
        (0, "", "", Exit.BUG, "ended with 0 and printed nothing"),
        (12, '{"a": 1}', "x", Exit.FAILED, ""),
        (-11, "", "one\ntwo\n", Exit.BUG, "two"),
        (6, "", "calexec: no such model\n", Exit.USAGE, "calexec: no such model"),
    ],
)
def test_what_the_end_of_a_child_means(code: int, out: str, err: str, wanted: Exit, said: str) -> None:
    done = outcome(3, code, out, err)
    assert (done.seed, done.exit, done.said) == (3, wanted, said)


def test_the_worst_end_is_never_a_good_one() -> None:
    assert set(WORST_FIRST) == set(Exit)
    assert WORST_FIRST[-1] is Exit.OK
    assert min([Exit.OK, Exit.FAILED, Exit.DIFFERENT], key=WORST_FIRST.index) is Exit.DIFFERENT


def test_ctrl_c_ends_the_children_in_order() -> None:
    """The parent is told; nobody is left."""
    code = """
import os, signal, sys, threading
from runtime import seeds
from runtime.cli import run
class Child(seeds.subprocess.Popen):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        print(self.pid, flush=True)
seeds.subprocess.Popen = Child
threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
sys.exit(int(run(sys.argv[1:])))
"""
    args = ["run", "--model", "tiny", "--latency-decode-us", "500000", "--seeds", "1-3"]
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == Exit.INTERRUPTED, done.stderr
    pids = [line for line in done.stdout.splitlines() if line.isdigit()]
    assert len(pids) == 1
    assert done.stdout.count("was not begun") == 2, "the table is there all the same"
    assert done.stdout.endswith("0 of 3 seeds ended with 0\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids[0]), 0)


def test_a_child_that_is_stopped_before_it_can_say_so_is_no_bug() -> None:
    """Ctrl-C while the interpreter of a child is still importing."""
    children = Children()
    with ThreadPoolExecutor() as pool:
        coming = pool.submit(children.run, ["storm", "--events", "1"], 1)
        latest = time.monotonic() + 20
        while not children._running:
            assert time.monotonic() < latest
            time.sleep(0.001)
        children.stop()
        assert coming.result().exit is Exit.INTERRUPTED


@pytest.mark.parametrize(
    ("exits", "share", "says"),
    [
        ([Exit.OK] * 3, 0.05, "3 of 3 seeds ended with 0"),
        ([Exit.OK, Exit.FAILED], 0.0, "1 of 2 seeds ended with 0"),
        ([Exit.OK] * 2 + [Exit.FAILED], 0.05, 
         "2 of 3 seeds ended with 0, 1 rightly with 12: of 3 none may (one in 20)"),
        ([Exit.OK] * 19 + [Exit.FAILED], 0.05, 
         "19 of 20 seeds ended with 0, 1 rightly with 12: of 20 1 may (one in 20)"),
        ([Exit.OK] * 38 + [Exit.FAILED] * 3, 0.05,
         "38 of 41 seeds ended with 0, 3 rightly with 12: of 41 2 may (one in 20)"),
    ],
)  # fmt: skip
def test_the_last_line_says_who_may_fail(exits: list[Exit], share: float, says: str) -> None:
    assert ends_of(exits, share) == says


def report(**more: object) -> dict[str, object]:
    """Of a child; as large as it may come."""
    counts = dict.fromkeys(("leases_left", "wrong_steps", "violations", "unexplained", "unanswered", "differences"), 0)
    return {
        "events": {"begin": 1_000}, "jobs": {"OK": 12_345, "Failed": 1_234}, "faults": 1_234, "resets": 1_234,
        "steps": 123_456, "device_failed": True, "seconds": 1_234.0, "ledger": [], "findings": [], "prompts": 100,
        "requests": {"completed": 90, "cancelled": 10}, "tokens_in_last_generation": 1_234,
        "quarantined_bytes": 1 << 33, **counts, **more,
    }  # fmt: skip


@pytest.mark.parametrize("columns", [run_table.COLUMNS, storm_command.COLUMNS], ids=["run", "storm"])
def test_a_table_fits_into_100_columns(
    capsys: pytest.CaptureFixture[str], columns: tuple[Column, ...]
) -> None:  # fmt: skip
    red = report(violations=1_234, unanswered=12, ledger=["x"])
    outcomes = [Outcome(4_294_967_295, Exit.UNEXPLAINED, red), Outcome(1, Exit.OK, report())]
    tell([*outcomes, Outcome(2, Exit.BUG, None, "ended with -11")], columns)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    said = " ".join(out.split())
    assert "seed 2: ended with -11" in said
    for text in ("1,234 violations", "12 unanswered", "ledger differs", "nothing"):
        assert all(word in said for word in text.split()), text
