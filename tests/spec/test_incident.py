"""The dossier of an incident: written when the device is lost, complete, bounded, and never in anybody's way."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
from executing import READY_S, Bench, executing
from moments import MANIFEST, books, end, standing, until, waiting

from checker.conform.judge import refusal_of
from runtime import incident as module
from runtime import observer as observer_module
from runtime.calrt import Library
from runtime.config import Config
from runtime.incident import Incident, Incidents
from runtime.recorder import Recorder

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("incident-*.json")) if folder.exists() else []


def lost(b: Bench) -> None:
    """A device fault that costs a generation."""
    b.sim.fault("infer", "ccu_exception")
    assert not b.run(1, PROMPT).status.ok


def content(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


# -- what is in it -----------------------------------------------------------------------------------------------------
def test_a_recovery_leaves_a_dossier(library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    with executing(library, incident_directory=str(folder)) as b:
        b.tokens(2, OTHER, 2)
        assert files(folder) == [], "nothing has happened"
        lost(b)
        assert b.executor.wait_ready(READY_S)
        until(lambda: files(folder))
        config = b.executor.config
    (path,) = files(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    found = content(path)
    assert (found["what"], found["rule"], found["cause"], found["generation"]) == (
        "Recovering", "lifecycle.recover", "completion.wait.exception", 2,
    )  # fmt: skip
    assert found["versions"]["calbin_sha256"] == MANIFEST.calbin_sha256
    assert found["versions"]["calrt"] == MANIFEST.calrt_version
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(found["config"]) == set(attrs.fields_dict(Config))
    assert found["config"]["execution_ms"] == config.execution_ms
    assert found["counters"]["calexec_jobs_accepted_total"] == 3
    assert found["counters"]['calexec_recoveries_total{cause="completion.wait.exception"}'] == 1
    assert {a["name"].rstrip(" 1234") for a in found["health"]["actors"]} >= {"clock", "submitter", "completion"}
    assert found["health"]["ready"] in (True, False)
    assert refusal_of(found["journal"]) == ""
    assert "lifecycle.recover" in [step.get("rule") for step in found["journal"]]
    made = [call["id"] for call in found["journal"] if "call" in call]
    assert found["abi"] == {"first": made[0], "last": made[-1]}
    assert {"infer", "wait"} <= {call.get("call") for call in found["journal"]}


def test_the_jobs_are_in_it_and_not_what_users_said(library: Library, tmp_path: Path) -> None:
    """One is on the device when it is given up."""
    with executing(library, incident_directory=str(tmp_path), execution_ms=200, grace_ms=100) as b:
        b.sim.fault("infer", "hang")
        secret = [101, 102, 103, 104, 105, 106, 107]
        handle = b.enqueue(5, secret)
        assert not end(handle).status.ok
        until(lambda: files(tmp_path))
    found = content(files(tmp_path)[0])
    (job,) = (j for j in found["jobs"] if j["job"] == handle.job_id)
    assert (job["sequence"], job["tokens"], job["task"], job["past_len"]) == (5, len(secret), "PrefillIds", 0)
    assert job["told"] == str(end(handle).status)
    assert job["timings"]["submitted_us"] > 0
    (record,) = (e for e in found["variables"]["job"] if e["element"] == [handle.job_id, 5])
    assert (record["state"], record["old"]) == ("Quarantined", 1)
    assert found["variables"]["device"] == "Recovering"
    assert "101, 102" not in json.dumps(found), "S12"


def test_a_calrt_without_a_record_of_its_calls(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a real device's."""
    with executing(library, incident_directory=str(tmp_path)) as b:
        monkeypatch.setattr("runtime.simulator.CALRT_NAME", "of_a_vendor.so")
        lost(b)
        until(lambda: files(tmp_path))
    found = content(files(tmp_path)[0])
    assert found["abi"] == "not known"
    assert found["journal"][0]["calls"] is None
    assert refusal_of(found["journal"]) == ""


def test_a_failed_device_and_a_dead_actor_leave_one_too(library: Library, tmp_path: Path) -> None:
    with executing(library, incident_directory=str(tmp_path / "a"), recoveries_max=0) as b:
        lost(b)
        until(lambda: files(tmp_path / "a"))
        assert content(files(tmp_path / "a")[0])["what"] == "Failed"
        assert content(files(tmp_path / "a")[0])["rule"] == "lifecycle.give_up"

    def bug(job: object) -> str:
        raise ZeroDivisionError

    with executing(library, incident_directory=str(tmp_path / "b"), close_ms=200) as b:
        b.executor._table["infer"] = bug  # type: ignore[index]
        assert not b.run(1, PROMPT).status.ok
        until(lambda: files(tmp_path / "b"))
        found = content(files(tmp_path / "b")[0])
        assert (found["what"], found["cause"]) == ("actor died", "submitter: ZeroDivisionError")


def test_without_a_directory_there_is_none(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control, and no thread is there for it."""
    monkeypatch.chdir(tmp_path)
    with executing(library) as b:
        lost(b)
        assert b.executor.wait_ready(READY_S)
        assert not [t for t in threading.enumerate() if t.name == "calexec recorder"]
    assert list(tmp_path.rglob("*")) == []


def test_a_hard_stop_leaves_one(library: Library, tmp_path: Path) -> None:
    """A call does not return, and closing does not wait for it."""
    with executing(library, incident_directory=str(tmp_path), execution_ms=60_000) as b, standing(b):
        handle = b.enqueue(1, PROMPT)
        until(lambda: waiting(b))
        b.executor.abandon()
        until(lambda: "abandoned" in [content(path)["what"] for path in files(tmp_path)])
        (found,) = (c for c in map(content, files(tmp_path)) if c["what"] == "abandoned")
        assert [j["job"] for j in found["jobs"]] == [handle.job_id]
        assert [a["doing"] for a in found["health"]["actors"] if a["job"] == handle.job_id] == ["wait"]


# -- never too many ----------------------------------------------------------------------------------------------------
def test_the_oldest_go_first(library: Library, tmp_path: Path) -> None:
    strangers = [tmp_path / "notes.txt", tmp_path / "incident.json"]
    for path in strangers:
        path.write_text("not ours", encoding="utf-8")
    with executing(library, incident_directory=str(tmp_path), incidents_max=2, recoveries_max=9) as b:
        for seq_id in range(4):
            b.sim.fault("infer", "ccu_exception")
            assert not b.run(seq_id, PROMPT).status.ok
            assert b.executor.wait_ready(READY_S)
            until(lambda n=seq_id: files(tmp_path) and content(files(tmp_path)[-1])["generation"] == n + 2)
    assert [content(path)["generation"] for path in files(tmp_path)] == [4, 5]
    assert all(path.read_text(encoding="utf-8") == "not ours" for path in strangers)


def test_what_a_crash_left_half_written_goes(tmp_path: Path) -> None:
    old, new = tmp_path / ".incident-old.json.x", tmp_path / ".incident-new.json.x"
    for path in (old, new):
        path.write_bytes(b"half")
    hours_ago = time.time() - 2 * module.ORPHANED_S
    os.utime(old, (hours_ago, hours_ago))
    Incidents(tmp_path, 5).write(Incident("Failed", "r", "c", 1), {})
    assert (old.exists(), new.exists()) == (False, True), "another process may be writing the new one"


# -- in nobody's way ---------------------------------------------------------------------------------------------------
def no_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder.write_text("a file", encoding="utf-8")
    return "FileExistsError"


def disk_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def full(path: Path, content: bytes, durable: bool = True) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_private", full)
    return "No space left on device"


@pytest.mark.parametrize("harm", [no_directory, disk_full])
def test_what_cannot_be_written_is_told_and_harms_nobody(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, harm: Any
) -> None:
    folder = tmp_path / "incidents"
    says = harm(folder, monkeypatch)
    with executing(library, incident_directory=str(folder)) as b:
        lost(b)
        assert b.executor.wait_ready(READY_S)
        assert b.tokens(2, OTHER, 2) == b.oracle.tokens(OTHER, 2)
        until(lambda: 'calexec_not_written_total{kind="incident"} 1.0' in b.executor.metrics.text())
        assert b.executor.close()
    assert says in caplog.text


def test_a_disk_that_hangs_keeps_nobody(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device recovers and serves; closing gives up on the file."""
    monkeypatch.setattr(observer_module, "CLOSE_S", 0.2)
    go = threading.Event()
    monkeypatch.setattr(module, "write_private", lambda *a, **k: go.wait(READY_S))
    with executing(library, incident_directory=str(tmp_path)) as b:
        lost(b)
        assert b.executor.wait_ready(READY_S)
        assert b.tokens(2, OTHER, 2) == b.oracle.tokens(OTHER, 2)
        assert b.executor.health().ready
        began_s = time.monotonic()
        b.executor.close()
        assert time.monotonic() - began_s < 5
        assert 'calexec_not_written_total{kind="files"} 1.0' in b.executor.metrics.text()
        go.set()


def test_it_is_written_by_a_thread_of_its_own(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither inside the monitor nor by an actor."""
    seen: list[tuple[str, bool]] = []
    dossier = observer_module.dossier

    def watched(incident: Incident, then: Any, calls: Any, engine: Any, *more: Any) -> dict[str, Any]:
        seen.append((threading.current_thread().name, engine._owner == threading.get_ident()))
        return dossier(incident, then, calls, engine, *more)

    monkeypatch.setattr(observer_module, "dossier", watched)
    with executing(library, incident_directory=str(tmp_path)) as b:
        lost(b)
        until(lambda: files(tmp_path))
    assert set(seen) == {("calexec recorder", False)}  # a slow machine may bring more than one


def test_who_hands_over_too_much_is_told() -> None:
    """Bounded: what does not fit is dropped, and nobody waits for room."""
    go, done, failures = threading.Event(), [], []
    recorder = Recorder("r", lambda kind, why: failures.append((kind, why)), tasks_max=3)
    recorder.hand_over("slow", lambda: go.wait(READY_S))
    until(lambda: recorder._tasks.empty())
    for i in range(5):
        recorder.hand_over("more", lambda i=i: done.append(i))
    assert failures == [("more", "dropped: 3 others wait to be written")] * 2
    go.set()
    assert recorder.close(READY_S)
    assert done == [0, 1, 2]
    assert not recorder._thread.is_alive()
    recorder.hand_over("late", lambda: done.append(9))
    assert done == [0, 1, 2], "after closing nothing is begun"


@pytest.mark.parametrize("others", [0, 3])
def test_who_gives_up_leaves_no_thread(others: int) -> None:
    """It ends with the task that it is in, and begins no other."""
    go, done = threading.Event(), []
    recorder = Recorder("r", lambda kind, why: None, tasks_max=3)
    recorder.hand_over("slow", lambda: go.wait(READY_S))
    until(lambda: recorder._tasks.empty())
    for i in range(others):
        recorder.hand_over("more", lambda i=i: done.append(i))
    assert not recorder.close(0.05)
    go.set()
    recorder._thread.join(READY_S)
    assert (recorder._thread.is_alive(), done) == (False, [])


def test_a_task_that_fails_is_told_and_the_next_is_tried() -> None:
    done, failures = [], []
    recorder = Recorder("r", lambda kind, why: failures.append((kind, why)))
    recorder.hand_over("bad", lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    recorder.hand_over("good", lambda: done.append(1))
    assert recorder.close(READY_S)
    assert done == [1]
    assert failures == [("bad", "ZeroDivisionError: integer division or modulo by zero")]


def test_a_dossier_while_a_job_stands_on_the_device(library: Library, tmp_path: Path) -> None:
    """Who asks for one by hand has it in the same form: here beside a Wait() that has not returned."""
    with executing(library, execution_ms=60_000) as b, standing(b):
        b.enqueue(1, PROMPT)
        until(lambda: waiting(b))
        o = b.executor.observer
        then = module.moment(o.engine, o.jobs())
        made = module.dossier(
            Incident("asked", "", "", 1), then, o.calls, o.engine, o.metrics, o.health
        )  # fmt: skip
        (job,) = json.loads(json.dumps(made, default=str))["jobs"]
        assert job["told"] is None
        assert job["age_us"] >= 0
        assert made["variables"]["permits"] == books(b)["permits"] == 1
