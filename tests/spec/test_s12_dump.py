"""S12: what jobs said and were told goes into files only where somebody asked for it, in bounds, and costs no job."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executing import PATIENT, READY_S, Bench, executing
from moments import end, says, until

from runtime import dump as module
from runtime import observer as observer_module
from runtime.calrt import Library
from runtime.config import Config, ConfigError

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")


def files(folder: Path) -> dict[str, Path]:
    """By the end of their names: "job1-input"."""
    return {p.stem.split("-", 2)[-1]: p for p in folder.glob("*.npz")} if folder.exists() else {}


def there(folder: Path, *names: str) -> None:
    until(lambda: set(files(folder)) >= set(names))


def opened(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as content:
        found = dict(content)
    return found | {name: json.loads(str(found[name])) for name in ("request", "status") if name in found}


def not_written(b: Bench) -> str:
    return next(
        (line for line in b.executor.metrics.text().splitlines() if line.startswith('calexec_not_written_total{')), ""
    )  # fmt: skip


# -- off, and on -------------------------------------------------------------------------------------------------------
@pytest.mark.shows("S12")
def test_it_is_off_by_default(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory alone does not switch it on."""
    monkeypatch.chdir(tmp_path)
    for more in ({}, {"dump_directory": str(tmp_path / "dumps")}):
        with executing(library, **PATIENT, **more) as b:
            b.tokens(1, PROMPT, 2)
    assert list(tmp_path.rglob("*")) == []
    with pytest.raises(ConfigError, match="dump_directory is missing"):
        Config(manifest="m", dump=True)


@pytest.mark.shows("S12")
def test_inputs_and_outputs_of_each_job(library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    with executing(library, dump=True, dump_directory=str(folder)) as b:
        said = b.tokens(7, PROMPT, 2)
        assert said == b.oracle.tokens(PROMPT, 2)
        there(folder, "job1-input", "job1-output", "job2-input", "job2-output")
        found = files(folder)
        assert set(found) == {"job1-input", "job1-output", "job2-input", "job2-output"}, "golden runs are nobody's jobs"
        assert opened(found["job1-input"])["values"].tolist() == PROMPT
        assert opened(found["job2-input"])["values"].tolist() == said[:1]
        assert opened(found["job2-input"])["request"] == {
            "request": 2, "sequence": 7, "task": "Decode", "past_len": len(PROMPT), "job": 2,
        }  # fmt: skip
        row = b.oracle.row([*PROMPT, said[0]]).astype(np.uint32) << 16
        assert (opened(found["job2-output"])["logits"].view(np.uint32) == row).all()
        assert opened(found["job2-output"])["status"]["kind"] == "OK"
    assert {stat.S_IMODE(p.stat().st_mode) for p in found.values()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_job_that_failed_has_no_logits(library: Library, tmp_path: Path) -> None:
    with executing(library, dump=True, dump_directory=str(tmp_path)) as b:
        b.sim.fault("infer", "nan")
        status = b.run(1, PROMPT).status
        there(tmp_path, "job1-output")
        found = opened(files(tmp_path)["job1-output"])
    assert set(found) == {"status"}
    assert (found["status"]["kind"], found["status"]["code"]) == (status.kind.name, status.code)


def test_what_the_host_does_with_its_arrays_is_not_dumped(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own memory, from the moment that enqueue() or wait_until() returned; even if the disk is slow."""
    go, write = threading.Event(), module.write_private

    def slow(path: Path, content: bytes, durable: bool = True) -> None:
        go.wait(READY_S)
        write(path, content, durable)

    monkeypatch.setattr(module, "write_private", slow)
    with executing(library, dump=True, dump_directory=str(tmp_path)) as b:
        request = b.request(1, PROMPT)
        handle = b.executor.enqueue(request)
        request.values[:] = 0
        result = end(handle)
        assert says(b, result, PROMPT)
        assert result.logits is not None
        wanted = result.logits.copy()
        result.logits[:] = 0
        go.set()
        there(tmp_path, "job1-input", "job1-output")
        assert opened(files(tmp_path)["job1-input"])["values"].tolist() == PROMPT
        assert (opened(files(tmp_path)["job1-output"])["logits"] == wanted).all()


# -- bounds ------------------------------------------------------------------------------------------------------------
@pytest.mark.shows("S12")
@pytest.mark.parametrize("before", [0, 3000])
def test_all_files_together_have_a_limit(library: Library, tmp_path: Path, before: int) -> None:
    """What another process, or this one before, has left there counts."""
    limit = 8000
    if before:
        (tmp_path / "of_last_week.npz").write_bytes(bytes(before))
    with executing(library, dump=True, dump_directory=str(tmp_path), dump_bytes_max=limit) as b:
        assert b.tokens(1, PROMPT, 20) == b.oracle.tokens(PROMPT, 20), "no job is concerned"
        assert b.executor.close()
        size = sum(p.stat().st_size for p in tmp_path.iterdir())
        largest = max(p.stat().st_size for p in tmp_path.iterdir() if p.name != "of_last_week.npz")
        assert limit - largest < size <= limit, "as many as fit"
        assert float(not_written(b).rpartition(" ")[2]) == 40 - len([*tmp_path.iterdir()]) + bool(before)


def test_control_without_a_limit_they_are_all_there(library: Library, tmp_path: Path) -> None:
    with executing(library, dump=True, dump_directory=str(tmp_path)) as b:
        b.tokens(1, PROMPT, 20)
        assert b.executor.close()
        assert len([*tmp_path.iterdir()]) == 40
        assert not_written(b) == ""


# -- in nobody's way ---------------------------------------------------------------------------------------------------
def test_a_disk_that_is_full_costs_no_job(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, content: bytes, durable: bool = True) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_private", full)
    with executing(library, dump=True, dump_directory=str(tmp_path)) as b:
        assert b.tokens(1, PROMPT, 3) == b.oracle.tokens(PROMPT, 3)
        assert b.executor.close()
        assert not_written(b) == 'calexec_not_written_total{kind="dump"} 6.0'
    assert "dump: OSError: [Errno 28] No space left on device" in caplog.text


def test_a_disk_that_hangs_blocks_no_job(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More jobs than the queue has room for: what does not fit is dropped, and told."""
    monkeypatch.setattr(observer_module, "CLOSE_S", 0.2)
    go = threading.Event()
    monkeypatch.setattr(module, "write_private", lambda *a, **k: go.wait(READY_S))
    with executing(library, dump=True, dump_directory=str(tmp_path)) as b:
        count = 50
        assert b.tokens(1, PROMPT, count) == b.oracle.tokens(PROMPT, count)
        waiting = b.executor.observer._recorder._tasks.qsize()
        dropped = float(not_written(b).rpartition(" ")[2])
        assert waiting <= b.executor.observer._recorder._tasks.maxsize
        assert 2 * count - waiting - dropped in (0, 1), "one is being written"
        assert dropped > 0
        b.executor.close()
        go.set()


def test_two_processes_do_not_share_names(library: Library, tmp_path: Path) -> None:
    for _ in range(2):
        with executing(library, dump=True, dump_directory=str(tmp_path)) as b:
            b.run(1, PROMPT)
            assert b.executor.close()
    assert len([*tmp_path.glob("*-job1-input.npz")]) == 2
