"""The executor on the simulated device: what its clients get, and what the device saw."""

from __future__ import annotations

import threading

import pytest
from executing import executing

from runtime.calrt import Library
from runtime.executor import Refused
from runtime.generations import ExecutorError
from runtime.status import StatusKind, now_us

PROMPT = list("Grüße".encode())


def test_tokens_are_the_oracles(library: Library) -> None:
    with executing(library) as b:
        assert b.tokens(1, PROMPT, 20) == b.oracle.tokens(PROMPT, 20)
    assert b.sim.violations() == ()
    assert b.sim.truth("buffers_alive") == 0


def test_clients_share_the_device(library: Library) -> None:
    prompts = [list(f"client {i}".encode()) for i in range(6)]
    with executing(library) as b:
        said: dict[int, list[int]] = {}
        threads = [threading.Thread(target=lambda i=i: said.update({i: b.tokens(i, prompts[i], 12)})) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert said == {i: b.oracle.tokens(prompts[i], 12) for i in range(6)}
    assert b.sim.violations() == ()


def test_run_is_enqueue_and_its_result(library: Library) -> None:
    with executing(library) as b:
        result = b.executor.run(b.request(1, PROMPT))
        assert result.status.ok
        assert result.logits is not None
        assert [int(result.logits.argmax())] == b.oracle.tokens(PROMPT, 1)
        with pytest.raises(Refused):
            b.executor.run(b.request(-1, PROMPT))
        late = b.executor.run(b.request(1, [7], len(PROMPT), deadline_us=0))
        assert late.status.kind is StatusKind.DEADLINE_EXCEEDED


def test_cancel_before_submit_never_reaches_the_device(library: Library) -> None:
    """FI11."""
    with executing(library, {"prefill_us": 200_000}) as b:
        first = b.enqueue(1, PROMPT)
        second = b.enqueue(2, PROMPT)
        assert second.cancel()
        result = second.wait_until(now_us() + 1_000_000)
        assert result is not None
        assert result.status.kind is StatusKind.CANCELLED
        assert not second.cancel(), "it has its answer"
        answer = first.wait_until(None)
        assert answer is not None
        assert answer.status.ok
        assert b.tokens(2, PROMPT, 2) == b.oracle.tokens(PROMPT, 2)
    assert b.calls().count("infer") == 5 + 1 + 2, "golden, the first, and the two of the end"


def test_cancel_after_submit_waits_and_drops_the_result(library: Library) -> None:
    """FI12, F03: the device's KV did advance, so the sequence goes on from there."""
    with executing(library, {"prefill_us": 100_000}) as b:
        handle = b.enqueue(1, PROMPT)
        while "submitter.infer.ok" not in b.rules():
            threading.Event().wait(0.005)
        assert handle.cancel()
        result = handle.wait_until(None)
        assert result is not None
        assert (result.status.kind, result.logits) == (StatusKind.CANCELLED, None)
        following = b.run(1, b.oracle.tokens(PROMPT, 1), past=len(PROMPT))
        assert following.status.ok
        assert following.logits is not None
        assert int(following.logits.argmax()) == b.oracle.tokens(PROMPT, 2)[1]
    assert b.sim.violations() == ()


@pytest.mark.parametrize("action", ["ccu_exception", "nan", "short_tensor", "hang"])
def test_a_fault_costs_its_job_and_a_generation(library: Library, action: str) -> None:
    """FI07 to FI10, FI14: the job fails with its cause, the device is reset, and jobs are right again."""
    with executing(library, execution_ms=200) as b:
        b.sim.fault("infer", action)
        result = b.run(1, PROMPT)
        assert not result.status.ok
        assert result.logits is None
        assert b.executor.wait_ready(10)
        assert b.executor.calls.generation_id == 2
        assert b.tokens(2, PROMPT, 4) == b.oracle.tokens(PROMPT, 4)
        assert b.tokens(1, PROMPT, 4) == b.oracle.tokens(PROMPT, 4), "a lost sequence begins anew"
        assert b.executor.close()
        assert b.sim.truth("buffers_alive") > 0, "what is in quarantine stays"
    assert b.sim.violations() == ()


def test_a_busy_device_costs_the_job_alone(library: Library) -> None:
    """FI05."""
    with executing(library) as b:
        b.sim.fault("infer", "return", 17, 0)
        result = b.run(1, PROMPT)
        assert (result.status.kind, result.status.code_name) == (StatusKind.UNAVAILABLE, "DeviceBusy")
        assert b.executor.calls.generation_id == 1
        assert b.tokens(1, PROMPT, 3) == b.oracle.tokens(PROMPT, 3)


def test_a_request_that_cannot_be_is_refused_at_once(library: Library) -> None:
    with executing(library) as b:
        calls = len(b.calls())
        for values, past in (([], 0), ([1] * 300, 0), ([1], -1)):
            with pytest.raises(Refused) as refused:
                b.enqueue(1, values, past)
            assert refused.value.status.kind is StatusKind.INVALID_ARGUMENT
        assert len(b.calls()) == calls, "the device was not touched"


@pytest.mark.parametrize(("policy", "missing"), [("exit", "process_exit_stops_dma"), ("rebuild", "reset_stops_dma")])
def test_a_policy_that_is_not_proved_is_refused(library: Library, policy: str, missing: str) -> None:
    """§14: an unknown fact counts as the worst case."""
    words = f"policy {policy} is not proved sound: .*{missing}"
    with pytest.raises(ExecutorError, match=words), executing(library, policy=policy, facts={}):
        pass


def test_closing_answers_everybody(library: Library) -> None:
    """FI13."""
    with executing(library, {"prefill_us": 100_000}) as b:
        handles = [b.enqueue(i, PROMPT) for i in range(2)]
        assert b.executor.close()
        kinds = [result.status.kind if (result := h.wait_until(0)) else None for h in handles]
        assert kinds == [StatusKind.OK, StatusKind.UNAVAILABLE]
        with pytest.raises(Refused):
            b.enqueue(5, PROMPT)
        assert b.executor.close(), "again the same"
    assert b.sim.truth("buffers_alive") == 0


def test_a_broken_device_is_seen_in_the_tokens(library: Library) -> None:
    """Negative control: the oracle is not what the device says about itself."""
    with executing(library) as b:
        b.sim.fault("infer", "partial_kv")
        first = b.run(1, PROMPT)
        assert first.status.ok, "nothing tells that the KV is incomplete"
        second = b.run(1, [7], past=len(PROMPT))
        assert not second.status.ok


def test_an_actor_that_dies_keeps_nobody_waiting(library: Library, caplog: pytest.LogCaptureFixture) -> None:
    """F47: a bug of ours; the handle is resolved and readiness is false."""
    with executing(library) as b:

        def bug(job: object) -> str:
            raise ZeroDivisionError

        b.executor._table["infer"] = bug  # type: ignore[index]
        result = b.run(1, PROMPT)
        assert (result.status.kind, result.status.stage) == (StatusKind.INTERNAL, "submitter died")
        assert not b.executor.ready()
        with pytest.raises(Refused, match="submitter died"):
            b.enqueue(2, PROMPT)
    assert "ZeroDivisionError" in caplog.text


def test_closing_a_failed_device_says_so(library: Library) -> None:
    with executing(library, recoveries_max=0) as b:
        b.sim.fault("infer", "ccu_exception")
        assert not b.run(1, PROMPT).status.ok
        assert not b.executor.close(), "no reset was allowed: it Failed"
