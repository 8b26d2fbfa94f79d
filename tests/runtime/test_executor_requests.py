"""What a client may hand over as a request, and what it may do with it afterwards: the executor keeps its own copy.

Theory. A request is data of somebody else's. Where the executor keeps it as it came, the client's next `append` changes
a job that is on the device, and a type that nobody thought of ends an actor, and with it everybody's service.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from executing import Bench, executing

from runtime.calrt import Library
from runtime.executor import Refused
from runtime.job import InferenceResult
from runtime.status import StatusKind, now_us

PROMPT = list("Grüße".encode())
HOLDERS: dict[str, Callable[[list[int]], Any]] = {
    "list": list, "tuple": tuple, "array": lambda v: array("i", v), "memoryview": lambda v: memoryview(array("i", v)),
    "range": lambda v: range(1, 4), "int64": np.array, "big-endian": lambda v: np.array(v, ">i4"),
    "every other one": lambda v: np.repeat(np.array(v, np.int32), 2)[::2],
}  # fmt: skip


def served(b: Bench, **changed: Any) -> InferenceResult:
    result = b.executor.enqueue(evolve(b.request(1, PROMPT), **changed)).wait_until(now_us() + 10_000_000)
    assert result is not None
    return result


@pytest.fixture(scope="module")
def bench(library: Library) -> Any:
    with executing(library) as b:
        yield b


@pytest.mark.parametrize("holder", HOLDERS)
def test_values_may_be_held_by_anything_that_numpy_reads(bench: Bench, holder: str) -> None:
    values = HOLDERS[holder](PROMPT)
    result = served(bench, values=values)
    assert result.logits is not None, str(result.status)
    assert int(result.logits.argmax()) == bench.oracle.tokens([int(v) for v in values], 1)[0]
    assert bench.executor.seq_rm(1).ok
    assert bench.tokens(2, PROMPT, 2) == bench.oracle.tokens(PROMPT, 2), "the executor serves on"
    assert bench.executor.seq_rm(2).ok


def test_what_a_client_does_with_its_values_afterwards_changes_nothing(library: Library) -> None:
    """A server appends each token to the list that it handed over, while the job is running."""
    with executing(library, {"prefill_us": 100_000}) as b:
        values = list(PROMPT)
        handle = b.executor.enqueue(evolve(b.request(1, PROMPT), values=values))
        values += [1] * 20
        result = handle.wait_until(now_us() + 10_000_000)
        assert result is not None
        assert result.logits is not None, str(result.status)
        first = int(result.logits.argmax())
        following = b.run(1, [first], past=len(PROMPT))
        assert following.logits is not None, str(following.status)
        assert [first, int(following.logits.argmax())] == b.oracle.tokens(PROMPT, 2)
    assert b.sim.violations() == ()


NUMBERS: dict[str, dict[str, Any]] = {
    "sequence in an array": {"seq_id": np.array(3)}, "sequence of 8 bits": {"seq_id": np.int8(3)},
    "past length of 8 bits": {"past_len": np.uint8(0)}, "request of 8 bits": {"request_id": np.int8(1)},
    "deadline of 64 bits": {"deadline_us": np.uint64(2**63 - 1)},
}  # fmt: skip


@pytest.mark.parametrize("what", NUMBERS)
def test_numbers_may_be_of_any_integer_type(bench: Bench, what: str) -> None:
    assert served(bench, **NUMBERS[what]).status.ok
    assert bench.executor.seq_rm(1).ok
    assert bench.executor.seq_rm(3).ok


def test_a_small_deadline_of_8_bits_has_passed(bench: Bench) -> None:
    """Its difference to the clock does not fit its own type."""
    assert served(bench, seq_id=4, deadline_us=np.uint8(3)).status.kind is StatusKind.DEADLINE_EXCEEDED


WRONG: dict[str, dict[str, Any]] = {
    "no task": {"task": None}, "a task's number": {"task": 0}, "a list of tasks": {"task": []},
    "no request": {"request_id": None}, "a request's name": {"request_id": "seven"},
    "a sequence in a list": {"seq_id": [1]}, "a set of values": {"values": {1, 2}}, "text": {"values": "text"},
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_none_of_it_is_refused(bench: Bench, what: str) -> None:
    with pytest.raises(Refused) as refused:
        served(bench, **WRONG[what])
    assert refused.value.status.kind is StatusKind.INVALID_ARGUMENT
    assert bench.executor.health().ready
