"""The file of finished prompts: what is in it was finished, whatever happened to the process that wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.calbin import sample
from runtime.clients import Order
from runtime.exits import Exit, Failure
from runtime.finished import Finished
from runtime.manifest import load_manifest
from runtime.prompts import read_prompts
from runtime.tally import Ends

MANIFEST = load_manifest(sample("tiny").with_suffix(".json"))
PROMPTS = read_prompts()[:5]
ORDER = Order(4, 0.1, 7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "done.jsonl"


def read(path: Path, order: Order = ORDER, prompts: Any = PROMPTS) -> tuple[int, dict[int, tuple[str, list[int]]]]:
    with Finished.at(path, MANIFEST, prompts, order) as finished:
        return finished.start, dict(finished.ends)


def written(path: Path) -> None:
    with Finished.at(path, MANIFEST, PROMPTS, ORDER) as finished:
        finished.write(PROMPTS[0], Ends.COMPLETED, [1, 2, 3, 4])
        finished.write(PROMPTS[3], Ends.CANCELLED, [9])
        for end in (Ends.DEVICE_FAILED, Ends.GIVEN_UP, Ends.INTERRUPTED):
            finished.write(PROMPTS[1], end, [5])


WRITTEN = {1: (Ends.COMPLETED, [1, 2, 3, 4]), 4: (Ends.CANCELLED, [9])}


def test_what_was_finished_is_known_to_the_next_start(path: Path) -> None:
    written(path)
    assert read(path) == (2, WRITTEN)
    assert read(path) == (3, WRITTEN)


def test_without_a_file_nothing_is_known_or_written() -> None:
    with Finished.at(None, MANIFEST, PROMPTS, ORDER) as finished:
        finished.write(PROMPTS[0], Ends.COMPLETED, [1])
        assert (finished.start, finished.ends) == (0, {})


def test_each_line_is_there_before_the_next_step(path: Path) -> None:
    with Finished.at(path, MANIFEST, PROMPTS, ORDER) as finished:
        finished.write(PROMPTS[2], Ends.COMPLETED, [8, 8, 8, 8])
        assert json.loads(path.read_text().splitlines()[-1]) == {"line": 3, "end": "completed", "tokens": [8, 8, 8, 8]}


def test_wherever_a_process_died_the_whole_lines_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place at which the file could have been cut."""
    monkeypatch.setattr("os.fsync", lambda file: None)  # a thousand of them take long
    written(path)
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        start, found = read(path)
        whole = sum(end <= cut for end in ends)
        assert start == (2 if whole >= 2 else 1)
        assert found == dict(list(WRITTEN.items())[: max(0, whole - 2)])
        assert all(json.loads(line) for line in path.read_text().splitlines()), "and what was torn is gone"


@pytest.mark.parametrize(
    ("order", "prompts", "what"),
    [
        (Order(5, 0.1, 7), PROMPTS, "tokens differs"),
        (Order(4, 0.2, 7), PROMPTS, "cancel differs"),
        (Order(4, 0.1, 8), PROMPTS, "seed differs"),
        (ORDER, PROMPTS[:4], "prompts_sha256 differs"),
    ],
)
def test_a_file_of_another_run_is_refused(path: Path, order: Order, prompts: Any, what: str) -> None:
    written(path)
    before = path.read_bytes()
    with pytest.raises(Failure, match=what) as failure:
        read(path, order, prompts)
    assert failure.value.exit is Exit.USAGE
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "line", ["x", "[]", "{}", '{"line": 99, "end": "completed", "tokens": []}', '{"line": 1, "end": "x", "tokens": []}']
)
def test_a_line_that_is_none_is_refused(path: Path, line: str) -> None:
    written(path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(Failure, match=rf"{path}:5: (not a line of|neither a start nor)"):
        read(path)


def test_a_file_that_is_too_large_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(path)
    monkeypatch.setattr("runtime.finished.FILE_BYTES_MAX", path.stat().st_size - 1)
    with pytest.raises(Failure, match=f"has {path.stat().st_size} bytes, and at most {path.stat().st_size - 1}"):
        read(path)


def test_two_runs_at_once_are_refused(path: Path) -> None:
    with Finished.at(path, MANIFEST, PROMPTS, ORDER), pytest.raises(Failure, match="in use by another run"):
        read(path)


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="cannot write") as failure:
        read(tmp_path)
    assert failure.value.exit is Exit.NOT_WRITTEN
