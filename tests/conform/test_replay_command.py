"""`check-states replay` as its user meets it: exit codes, what is told of a refusal, the test that it writes."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from executing import READY_S, executing
from mutating import Records, relinked

from checker.cli import run
from checker.conform.command import EPILOG, EXITS
from checker.conform.judge import refusal_of
from checker.exits import Exit
from runtime.calrt import Library

ROOT = Path(__file__).parents[2]


def written(folder: Path, records: Records) -> Path:
    path = folder / "journal.jsonl"
    path.write_text("".join(f"{json.dumps(r)}\n" for r in records), encoding="utf-8")
    return path


def first(records: Records, **what: str) -> int:
    return next(i for i, r in enumerate(records) if what.items() <= r.items())


def with_step(records: Records, which: str, **what: object) -> Records:
    at = first(records, rule=which)
    return relinked("", [*records[:at], {**records[at], **what}, *records[at + 1 :]])


# -- verdicts ----------------------------------------------------------------------------------------------------------
def test_a_clean_journal(faulty: Path, records: Records, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(faulty)]) is Exit.PROVED
    out = capsys.readouterr().out
    steps = sum("rule" in r for r in records)
    assert f"steps                   {steps:,} of" in out
    assert out.endswith("ALLOWED (exit 0)\n")
    assert run(["replay", str(faulty), "--json", "--quiet"]) is Exit.PROVED
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["steps"], found["found"]) == ("ALLOWED", steps, None)
    assert found["calls"] == sum("call" in r for r in records) == found["calls_of_rules"] + found["calls_outside"]
    assert sum(found["rules"].values()) == steps


def test_a_step_against_a_guard(
    records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    path = written(tmp_path, with_step(records, "completion.commit.ok", rule="completion.deliver", observed=""))
    at = first(records, rule="completion.commit.ok")
    assert run(["replay", str(path)]) is Exit.REFUTED
    out = capsys.readouterr().out
    job = ",".join(map(str, records[at]["element"]))
    assert f"line {at + 1}: step {records[at]['number']}, completion.deliver" in out
    assert f"job {job}" in out
    assert "state Completing" in out
    assert "job.kv == Committed   where job.kv is Submitted" in out, "the part that fails, with what it read"
    assert "job.state == Completing   where" not in out, "and none that holds"
    assert "completion.commit.ok" in out.split("the nearest permitted rules")[1].split("\n\n")[0]
    assert "REFUTED (exit 2)" in out.splitlines()
    assert run(["replay", str(path), "--json"]) is Exit.REFUTED
    found = json.loads(capsys.readouterr().out)["found"]
    assert (found["line"], found["kind"]) == (at + 1, "guard")
    parts = ("job.call == Idle   where job.call is Commit", "job.kv == Committed   where job.kv is Submitted")
    assert set(parts) <= set(found["failing"])
    near = {n["rule"]: n["failing"] for n in found["nearest"]}
    assert near["completion.commit.ok"] == []


def test_a_call_that_says_something_else(
    records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """The journal says that the device has taken the job, and CalRT says Busy."""
    at = first(records, call="get_status")
    lied = relinked("", [*records[:at], {**records[at], "result": 3}, *records[at + 1 :]])
    assert run(["replay", str(written(tmp_path, lied)), "--quiet"]) is Exit.REFUTED
    assert "calls of golden are" in capsys.readouterr().out
    at = [i for i, r in enumerate(records) if r.get("call") == "get_status" and r["result"] == 2][-1]
    lied = relinked("", [*records[:at], {**records[at], "result": 3}, *records[at + 1 :]])
    assert run(["replay", str(written(tmp_path, lied)), "--quiet"]) is Exit.REFUTED
    assert "wait get_status-" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("harm", "exit_", "says"),
    [
        (lambda text: text[: text.rindex('{"end"')], Exit.NO_END, "it has no end: steps may be missing after number"),
        (lambda text: text[:-20], Exit.NO_END, "its last line is cut short: steps may be missing"),
        (lambda text: text.replace('"call"', '"call', 1), Exit.REFUTED, "the line is no JSON object"),
        (
            lambda text: text.replace('"journal": 2', '"journal": 1', 1),
            Exit.NOT_A_JOURNAL,
            "its format is 1, and the only one",
        ),
        (lambda text: text + text.splitlines(True)[5][:-9], Exit.REFUTED, "it comes after the end"),
        (lambda text: text.splitlines(True)[0], Exit.NO_END, "it has no end: no step is in it"),
        (lambda text: text + text.splitlines(True)[-1], Exit.REFUTED, "it comes after the end"),
        (lambda text: "", Exit.NOT_A_JOURNAL, "is no journal"),
        (lambda text: "{}\n", Exit.NOT_A_JOURNAL, "is no journal"),
        (lambda text: "[1, 2]", Exit.NOT_A_JOURNAL, "is no journal"),
        (lambda text: "\x00\xff", Exit.NOT_A_JOURNAL, "is no journal"),
    ],
)
def test_harm(
    faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[str], str], exit_: Exit, says: str
) -> None:  # fmt: skip
    path = tmp_path / "harmed.jsonl"
    path.write_text(harm(faulty.read_text(encoding="utf-8")), encoding="utf-8")
    assert run(["replay", str(path), "--quiet"]) is exit_
    captured = capsys.readouterr()
    assert says in captured.out + captured.err
    if exit_ is Exit.NO_END:
        assert run(["replay", str(path), "--quiet", "--no-end"]) is Exit.PROVED


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "nowhere.jsonl"]) is Exit.NOT_A_JOURNAL
    assert capsys.readouterr().err == "check-states: cannot read nowhere.jsonl: No such file or directory\n"
    assert run(["replay"]) is Exit.USAGE


def test_a_report_that_cannot_be_written(faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(faulty), "--json", str(tmp_path / "no" / "where.json")]) is Exit.NOT_WRITTEN
    assert "cannot write" in capsys.readouterr().err


def test_the_documented_exit_codes() -> None:
    text = (ROOT / "docs" / "check-states.md").read_text(encoding="utf-8")
    for exit_, about in EXITS.items():
        assert f"- {exit_.value}: {about}" in text
        assert about in EPILOG


# -- the test that it writes -------------------------------------------------------------------------------------------
def forms_of_lies(records: Records) -> dict[str, Records]:
    infer = [i for i, r in enumerate(records) if r.get("call") == "infer" and r["result"] == 0][-1]
    step = first(records, rule="submitter.infer.ok")
    return {
        "a guard": with_step(records, "completion.commit.ok", rule="completion.deliver", observed=""),
        "a missing step": relinked("", [*records[:step], *records[step + 1 :]]),
        "a call": relinked("", [*records[:infer], {**records[infer], "a": 99}, *records[infer + 1 :]]),
        "the end": relinked("", [*records[:-1], {**records[-1], "end": 1}]),
        "the chain": [*records[:step], {**records[step], "at_us": records[step]["at_us"] + 1}, *records[step + 1 :]],
    }  # fmt: skip


def made(lied: Records, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, str]:
    """The test, and why the journal is refused."""
    test = folder / "test_it.py"
    assert run(["replay", str(written(folder, lied)), "--pytest", str(test), "--quiet"]) is Exit.REFUTED
    assert test.stat().st_size < 100_000, "a few records, not the whole run"
    return test, " ".join(line.strip() for line in capsys.readouterr().out.splitlines()[1:]).split(": ", 1)[1]


@pytest.mark.nightly
def test_the_test_fails_in_the_same_way(records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Self-contained: it is run where nothing else is, by a process of its own."""
    test, why = made(forms_of_lies(records)["a guard"], tmp_path, capsys)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(test)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert "1 failed" in ran.stdout
    assert f"E         + {why}" in ran.stdout


LIES = ("a guard", "a missing step", "a call", "the end", "the chain")


@pytest.mark.parametrize("lie", [*LIES[:1], *(pytest.param(lie, marks=pytest.mark.nightly) for lie in LIES[1:])])
def test_each_form_of_lie_is_said_again(
    records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str], lie: str
) -> None:  # fmt: skip
    test, why = made(forms_of_lies(records)[lie], tmp_path, capsys)
    made_again = runpy.run_path(str(test))
    (fails,) = (f for name, f in made_again.items() if name.startswith("test_"))
    with pytest.raises(AssertionError):
        fails()
    if "RECORDS" in made_again:
        again = refusal_of([made_again["HEAD"], *made_again["RECORDS"]], chain=False, known=made_again["KNOWN"])
        assert again == why


def test_where_nothing_is_refused_no_test_is_written(
    faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """Negative control."""
    assert run(["replay", str(faulty), "--pytest", str(tmp_path / "test_it.py"), "--quiet"]) is Exit.PROVED
    assert "is not written: nothing was refused" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# -- incidents ---------------------------------------------------------------------------------------------------------
def test_an_incident_can_be_replayed(library: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has the last calls, also where they begin in the middle; and what was altered in it is seen."""
    with executing(library, {"trace_limit": 300}, incident_directory=str(tmp_path), recoveries_max=9) as b:
        for seq_id in range(6):
            b.sim.fault("infer", "ccu_exception", nth=9)
            b.tokens(seq_id, [1, 2, 3], 8)
            assert not b.run(seq_id, [5], past=10).status.ok
            assert b.executor.wait_ready(READY_S)
    files = sorted(tmp_path.glob("incident-*.json"))
    assert len(files) >= 6
    for path in files:
        assert run(["replay", str(path), "--json"]) is Exit.PROVED
        assert json.loads(capsys.readouterr().out)["calls_of_rules"] > 20
    dossier = json.loads(files[-1].read_text(encoding="utf-8"))
    assert next(r["id"] for r in dossier["journal"] if "call" in r) > 0, "its calls begin in the middle"
    dossier["journal"][-5]["at_us"] -= 1
    files[-1].write_text(json.dumps(dossier, indent=1), encoding="utf-8")
    assert run(["replay", str(files[-1])]) is Exit.REFUTED
