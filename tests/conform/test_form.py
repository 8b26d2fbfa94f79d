"""Journals that somebody wrote by hand, or spoilt: each ends in a documented exit code, and never in a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutating import Records, relinked

from checker.cli import run
from checker.conform.command import EXITS
from checker.exits import Exit

MANY = 60  # records of a journal that is spoilt


@pytest.fixture(scope="session")
def beginnings(records: Records) -> tuple[Records, Records]:
    """The calls of the first configuration; and the first steps, without a record of calls."""
    steps = [{**records[0], "calls": None}, *(r for r in records if "rule" in r)][:MANY]
    return relinked("", records[:MANY]), relinked("", steps)


def replayed(folder: Path, lines: list[bytes], *options: str) -> Exit:
    path = folder / "spoilt.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return run(["replay", str(path), "--limit-states", "20", *options])


def encoded(records: Records) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


def head_with(records: Records, **parameters: Any) -> Records:
    head = {**records[0], "parameters": {**records[0]["parameters"], **parameters}}
    return relinked("", [head, *records[1:]])


# -- the head ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"policy": 9}, "its parameter policy is 9; allowed are 0 (Exit), 1 (Rebuild), 2 (Reuse)"),
        ({"policy": True}, "its parameter policy is True; allowed are 0 (Exit)"),
        ({"jobs": 10**9}, "its parameter jobs is 1000000000; allowed are 1 to"),
        ({"sequences": 10**400}, "its parameter sequences is 1000"),
        ({"jobs": -1}, "its parameter jobs is -1; allowed are 1 to"),
        ({"slots": "x"}, "its parameter slots is 'x'; allowed are 1 to"),
        ({"no_late_completion": 2}, "its parameter no_late_completion is 2; allowed are 0 and 1"),
        ({"jobs_max": 4}, "jobs_max is no parameter of the rulebook"),
    ],
)
def test_a_parameter_that_is_none(
    records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str], parameters: dict[str, Any], says: str
) -> None:
    assert replayed(tmp_path, encoded(head_with(records, **parameters))) is Exit.REFUTED
    assert f"line 1: the head: {says}" in " ".join(capsys.readouterr().out.split())


def test_sizes_that_no_checker_explores_are_allowed(
    records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Negative control: an executor may be as large as the form says, and its books take no more room for that."""
    large = head_with(records, jobs=500_000, recoveries_max=500_000)
    assert replayed(tmp_path, encoded(large)) is Exit.PROVED
    assert "ALLOWED" in capsys.readouterr().out


@pytest.mark.parametrize("version", [1, 99, True, 10**30])
def test_another_format(records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str], version: Any) -> None:
    """Also where its other fields are other ones, and its digests are made in another way."""
    other = [{"journal": version, "something": 1}, *records[1:]]
    assert replayed(tmp_path, encoded(other)) is Exit.NOT_A_JOURNAL
    said = " ".join(capsys.readouterr().out.split())
    assert f"its format is {version}, and the only one that is read here is 2" in said
    assert "chain is" not in said


# -- elements ----------------------------------------------------------------------------------------------------------
BAD_ELEMENTS: tuple[Any, ...] = (
    {"a": 1},
    [[1], [2]],
    [[1, 0]],
    [1, 2, 3],
    "x",
    [1, "0"],
    [True, 0],
    [1, 10**30],
    7,
    [],
)


@pytest.mark.parametrize("element", BAD_ELEMENTS, ids=str)
def test_a_step_about_no_element(
    records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str], element: Any
) -> None:
    at = next(i for i, r in enumerate(records) if r.get("rule") == "submitter.infer.ok")
    lines = encoded(relinked("", [*records[:at], {**records[at], "element": element}, *records[at + 1 :]]))
    assert replayed(tmp_path, lines) is Exit.REFUTED
    said = " ".join(capsys.readouterr().out.split())
    assert f"line {at + 1}: step {records[at]['number']}, submitter.infer.ok of" in said
    assert "allowed " in said
    assert "a list of two numbers (a job's and its sequence's)" in said


def test_an_end_about_no_elements(records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for job in (5, [7], [{"x": 1}], [{"element": {"a": 1}}], [{"element": 3}]):
        end = {**records[-1], "state": {**records[-1]["state"], "job": job}}
        assert replayed(tmp_path, encoded(relinked("", [*records[:-1], end]))) is Exit.REFUTED
        assert f"line {len(records)}: the end: job in its state" in " ".join(capsys.readouterr().out.split())


# -- anything ----------------------------------------------------------------------------------------------------------
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 3) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def spoilt(draw: st.DrawFn, beginnings: tuple[Records, Records]) -> list[bytes]:
    """One line that is not as it was: a field, the whole record, or its bytes; with the chain made anew or not."""
    records = draw(st.sampled_from(beginnings))
    at = draw(st.integers(0, len(records) - 1))
    line = dict(records[at])
    what = draw(st.sampled_from(["set", "set", "set", "state", "remove", "add", "whole", "bytes"]))
    name = draw(st.sampled_from(sorted(line)))
    if what == "state" and (inner := line.get("state") or line.get("parameters")):
        name = "state" if line.get("state") else "parameters"
        line[name] = {**inner, draw(st.sampled_from(sorted(inner))): draw(ANY)}
    elif what == "remove":
        del line[name]
    elif what == "add":
        line[draw(st.sampled_from(["journal", "number", "call", "gap", "end", "lost", "x"]))] = draw(ANY)
    elif what == "set":
        line[name] = draw(ANY)
    lines = [*records[:at], line, *records[at + 1 :]]
    made = encoded(relinked("", lines) if draw(st.booleans()) else lines)
    if what == "whole":
        made[at] = json.dumps(draw(ANY)).encode()
    elif what == "bytes":
        cut = draw(st.integers(0, len(made[at])))
        made[at] = made[at][:cut] + draw(st.binary(max_size=4)) + made[at][draw(st.integers(cut, len(made[at]))) :]
    return made


@given(data=st.data(), no_chain=st.booleans())
@settings(
    max_examples=30, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
def test_whatever_is_in_a_line(
    beginnings: tuple[Records, Records],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    data: st.DataObject,
    no_chain: bool,
) -> None:
    exit_ = replayed(tmp_path, data.draw(spoilt(beginnings)), *["--no-chain"] * no_chain)
    captured = capsys.readouterr()
    assert exit_ in EXITS, captured.err
    assert "Traceback" not in captured.err
    assert exit_ is not Exit.PROVED, "it has no end"
    assert max(map(len, captured.out.splitlines()), default=0) <= 100


@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"number": ' + b"[" * 400 + b"]" * 400 + b"}"])
def test_what_is_too_deep_is_no_record(
    beginnings: tuple[Records, Records], tmp_path: Path, capsys: pytest.CaptureFixture[str], deep: bytes
) -> None:
    assert replayed(tmp_path, [*encoded(beginnings[1]), deep, b"{}"]) is Exit.REFUTED
    assert f"line {MANY + 1}: the line is no JSON object" in capsys.readouterr().out


def test_control_a_reader_that_trusts_its_fields(
    beginnings: tuple[Records, Records], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checker.conform.judge.wrong_fields", lambda kind, record: "")
    last = {**beginnings[1][-1], "element": {"a": 1}}
    with pytest.raises(TypeError):
        replayed(tmp_path, encoded([*beginnings[1][:-1], last]), "--no-chain")
