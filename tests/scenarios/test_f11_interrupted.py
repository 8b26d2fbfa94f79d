"""F11: a client's thread is interrupted (Ctrl-C), or meets a bug of ours, wherever that is in enqueue() or cancel().

The job has no handle then, or its answer is settled and somebody else waits for it: nothing is left running for nobody,
and nobody waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from executing import executing
from moments import end, until

from runtime.calrt import Library
from runtime.executor import DeviceExecutor
from runtime.job import JobHandle
from runtime.observer import Observer
from runtime.records import Records
from runtime.status import StatusKind

PROMPT = list(b"interrupted")
PLACES = [(Records, "add"), (DeviceExecutor, "_comes_in"), (Observer, "accepted")]


def interrupted_after(honest: Callable[..., Any], error: type[BaseException]) -> Callable[..., Any]:
    """Once."""
    left = [error]

    def method(*arguments: Any) -> Any:
        result = honest(*arguments)
        if left:
            raise left.pop()
        return result

    return method


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_f11_an_interrupted_enqueue_leaves_nothing(
    library: Library, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    with executing(library, {"prefill_us": 200_000}) as b:
        known = len(b.executor.records.jobs)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, interrupted_after(getattr(owner, name), KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                b.enqueue(1, PROMPT)
        until(lambda: len(b.executor.records.jobs) == known)
        assert not any(rule.startswith(("completion.deliver", "lifecycle.")) for rule in b.rules()[5:])
        assert b.run(2, PROMPT).status.ok
        assert b.executor.close()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_f11_an_interrupted_run_cancels_its_job(library: Library, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """While it waits, or with the result in its hands."""

    honest = JobHandle.wait_until

    def interrupted(handle: JobHandle, deadline_us: int | None) -> None:
        if moment == "after":
            assert honest(handle, deadline_us)
        raise KeyboardInterrupt

    with executing(library, {"prefill_us": 200_000}) as b:
        asked = b.request(1, PROMPT)
        with monkeypatch.context() as patch:
            patch.setattr(JobHandle, "wait_until", interrupted)
            with pytest.raises(KeyboardInterrupt):
                b.executor.run(asked)
        until(lambda: not b.executor.records.jobs)
        assert ("client.cancel" in b.rules()) == (moment == "before")
        assert b.executor.run(b.request(2, PROMPT)).status.ok
        assert b.executor.close()


def test_control_f11_a_job_that_is_not_taken_back(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceExecutor, "_take_back", lambda self, job: None)
    monkeypatch.setattr("moments.READY_S", 0.3)
    monkeypatch.setattr("runtime.executor.LATEST_S", 0.2)
    with executing(library, close_ms=100) as b, monkeypatch.context() as patch:
        patch.setattr(Records, "add", interrupted_after(Records.add, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            b.enqueue(1, PROMPT)
        with pytest.raises(AssertionError):
            until(lambda: not b.executor.records.jobs)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize(
    ("owner", "name"), [(Observer, "answered"), (Records, "try_to_forget")], ids=["answered", "forget"]
)
def test_f11_who_waits_for_a_settled_answer_is_told(
    library: Library, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: type[BaseException]
) -> None:
    """The one who cancels is interrupted between settling the answer and telling it."""
    with executing(library, {"prefill_us": 200_000}) as b:
        handle = b.enqueue(1, PROMPT)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, interrupted_after(getattr(owner, name), error))
            with pytest.raises(error):
                handle.cancel()
        assert end(handle).status.kind is StatusKind.CANCELLED
        until(lambda: not b.executor.records.jobs)
