"""`calexec run --journal`: the whole run goes to a file while it runs, whatever ring and disk do."""

from __future__ import annotations

import functools
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from executing import READY_S, Bench, executing, unused
from mutating import Records, verdict

from checker.conform.judge import Judge, refusal_of
from checker.conform.words import DONE, EXCEPTION
from runtime import executor as executor_module
from runtime import recording as module
from runtime.calllog import CallLog
from runtime.calrt import Library
from runtime.calrt_types import BufStatus
from runtime.cli import run
from runtime.exits import Exit
from runtime.journal import Journal
from runtime.recording import Recording
from runtime.status import now_us

PROMPT = [1, 2, 3]


def read(path: Path) -> Records:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@contextmanager
def recorded(b: Bench, path: Path, calls: bool = False) -> Iterator[Recording]:
    recording = Recording(path, b.sim if calls else None)
    recording.follow(b.executor)
    try:
        yield recording
    finally:
        recording.close()


def test_more_steps_than_the_ring_holds(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "Journal", functools.partial(Journal, 200))
    monkeypatch.setattr(module, "EVERY_S", 0.002)
    path = tmp_path / "journal.jsonl"
    with executing(library) as b:
        with recorded(b, path) as recording:
            for _ in range(12):
                b.tokens(1, PROMPT, 3)
                assert b.executor.seq_rm(1).ok
        records = read(path)
        assert recording.lost == ""
    steps = [r for r in records if "rule" in r]
    if not [r for r in records if "gap" in r]:  # a machine that stood still for 200 steps has one, and says so
        assert len(steps) == records[-1]["end"] > 400
        assert verdict(Judge(), records) == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_writer_that_is_too_slow_says_what_is_missing(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What there is is judged, and it is not called clean."""
    monkeypatch.setattr(executor_module, "Journal", functools.partial(Journal, 60))
    monkeypatch.setattr(module, "EVERY_S", 3600)
    path = tmp_path / "journal.jsonl"
    with executing(library) as b, recorded(b, path):
        for _ in range(6):
            b.tokens(1, PROMPT, 3)
            assert b.executor.seq_rm(1).ok
    records = read(path)
    (gap,) = (r for r in records if "gap" in r)
    steps = [r["number"] for r in records if "rule" in r]
    assert gap["gap"] + len(steps) == records[-1]["end"]
    assert (gap["begins"], gap["gap"]) == (steps[0], steps[0])
    judge = Judge()
    assert verdict(judge, records) != ""
    assert judge.ended
    assert judge.unsure == [f"{gap['gap']} steps before step {gap['begins']} were not written"]


class Full:
    """A file on a disk that has room for so many lines."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, text: str) -> int:
        self._room -= 1
        if self._room < 0:
            raise OSError(28, os.strerror(28))
        return int(self._file.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_full_disk_ends_the_recording_and_not_the_run(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with executing(library) as b:
        recording = Recording(path, b.sim)
        recording._file = Full(recording._file, 20)  # type: ignore[assignment]
        recording.follow(b.executor)
        assert b.tokens(1, PROMPT, 4) == b.oracle.tokens(PROMPT, 4)
        recording.close()
        assert recording.lost == "No space left on device"
    assert "end" not in read(path)[-1]
    assert len(read(path)) == 20


def test_the_command_says_that_the_file_is_not_whole(
    library: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["run", "--model", "tiny", "--device", str(unused(library).index), "--limit", "1", "--tokens", "2"]
    assert run([*args, "--journal", str(tmp_path / "no" / "where")]) is Exit.NOT_WRITTEN
    assert "cannot write" in capsys.readouterr().err

    def full(recording: Recording, records: Any) -> None:
        recording.lost = "No space left on device"

    monkeypatch.setattr(Recording, "_write", full)
    assert run([*args, "--journal", str(tmp_path / "journal.jsonl"), "--json"]) is Exit.NOT_WRITTEN
    captured = capsys.readouterr()
    assert json.loads(captured.out)["requests"] == {"completed": 1}, "the run itself went on, and is told"
    assert captured.err.count("\n") == 1
    assert "No space left on device" in captured.err


def test_a_call_that_has_not_returned_has_a_return_later(library: Library) -> None:
    with executing(library, execution_ms=60_000) as b:
        log = CallLog(b.sim, b.sim.calls_total())
        b.sim.set(clock=1)
        handle = b.enqueue(1, PROMPT)
        seen: Records = []
        while not any(r.get("call") == "wait" for r in seen):
            seen += log.drain()
        wait = seen[-1]
        assert (wait["call"], wait["end_ns"], wait["end_us"]) == ("wait", -1, -1)
        while b.sim.step():
            pass
        b.sim.set(clock=0)
        assert handle.wait_until(now_us() + int(READY_S * 1e6)) is not None
        later = list(log.drain())
        assert (later[0]["returned"], later[0]["result"]) == (wait["id"], 0)
        assert later[0]["end_ns"] >= wait["begin_ns"]
        ids = [r["id"] for r in (*seen, *later) if "id" in r]
        assert ids == list(range(ids[0], ids[0] + len(ids)))


def test_calls_of_a_ring_that_was_overwritten_are_told_as_lost(library: Library) -> None:
    with executing(library, {"trace_limit": 40}) as b:
        log = CallLog(b.sim, b.sim.calls_total())
        b.tokens(1, PROMPT, 8)
        records = list(log.drain())
        assert records[0]["lost"] == records[0]["next"] - log.start > 0
        assert [r["id"] for r in records[1:]] == list(range(records[0]["next"], log.next))


def test_the_statuses_of_the_judge_are_those_of_calrt() -> None:
    assert (BufStatus.DONE, BufStatus.DONE_CCU_EXCEPTION) == (DONE, EXCEPTION)


def test_a_recording_with_calls_is_clean(library: Library, tmp_path: Path) -> None:
    """Where the executor was there before, whose calls they are is learnt first."""
    path = tmp_path / "journal.jsonl"
    with executing(library) as b:
        with recorded(b, path, calls=True):
            b.tokens(1, PROMPT, 4)
        assert refusal_of(read(path)) == ""
