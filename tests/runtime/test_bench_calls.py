"""Which calls count as the same, and which the benchmark refuses to compare; on calls made by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve

from runtime.bench_calls import NotTheSame, calls_since, same_jobs
from runtime.simulator import Call

INPUT, OUTPUT, KV = 5, 6, 2  # handles


def call(name: str, a: int = 0, b: int = 0, text: str = "", result: int = 0, handle: int = INPUT) -> Call:
    return Call(0, 1, 0, 0, handle, 0, a, b, result, name, text, 0, 0)


def apply(sequence: int, length: int) -> Call:
    return call("apply", sequence, length, result=1, handle=KV)


def undone(handle: int = INPUT) -> Call:
    return call("undo_slice", text="ids", handle=handle)


def executors(sequence: int, job: int, length: int, handle: int = INPUT) -> list[Call]:
    """One job as the executor makes it, up to its answer: what it undoes comes when it comes."""
    return [
        call("can_allocate", 1, result=1, handle=KV), apply(sequence, length),
        call("bind_sequence", sequence, handle=handle), call("slice_tensor", 0, 1, "ids", handle=handle),
        call("infer", job, -1, "decode", handle=handle), call("wait", job, handle=OUTPUT),
        call("get_status", result=2, handle=OUTPUT), call("tensor_size", 1024, text="logits", handle=OUTPUT),
        apply(sequence, length),
    ]  # fmt: skip


def baselines(sequence: int, job: int, length: int) -> list[Call]:
    """The same job as the baseline makes it."""
    return [
        apply(sequence, length), call("create_input"), call("create_output", handle=OUTPUT), call("map_buf"),
        call("bind_sequence", sequence), call("slice_tensor", 0, 1, "ids"), call("infer", job, -1, "decode"),
        call("wait", job, handle=OUTPUT), call("get_status", result=2, handle=OUTPUT), apply(sequence, length),
        undone(), call("destroy"), call("destroy", handle=OUTPUT),
    ]  # fmt: skip


BASE = baselines(0, 1, 17) + baselines(0, 2, 18)


def test_an_undo_may_run_beside_the_next_jobs_admission_and_numbers_are_the_drivers_own() -> None:
    other = INPUT + 10
    second = executors(7, 42, 18, other)
    same_jobs([*executors(7, 41, 17), *second[:2], undone(), *second[2:], undone(other)], BASE)


def test_a_removed_sequence_is_a_new_one_under_the_same_number() -> None:
    ours = [*executors(7, 41, 17), undone(), apply(7, 0), *executors(8, 42, 17), undone()]
    base = [*baselines(0, 1, 17), apply(0, 0), *baselines(0, 2, 17)]
    same_jobs(ours, base)
    with pytest.raises(NotTheSame, match="job 1"):  # on the same one it is something else
        same_jobs([c for c in ours if c.b or c.call != "apply"], [*baselines(0, 1, 17), *baselines(0, 2, 17)])


def test_who_does_not_commit_is_compared_without_it() -> None:
    ours = [*executors(7, 41, 17), undone(), *executors(7, 42, 18), undone()]
    same_jobs(ours, _straight(), base_commits=False)
    with pytest.raises(NotTheSame):  # and as one who does, it is not the same
        same_jobs(ours, _straight())


def _straight() -> list[Call]:
    jobs = [baselines(0, 1, 17), baselines(0, 2, 18)]
    return [c for job in jobs for i, c in enumerate(job) if not (c.call == "apply" and i)]


Change = Callable[[list[Call]], list[Call]]


def at(name: str, nth: int = 0, **changes: int | str) -> Change:
    """Another argument or result of one call."""

    def change(calls: list[Call]) -> list[Call]:
        index = [i for i, c in enumerate(calls) if c.call == name][nth]
        return [evolve(c, **changes) if i == index else c for i, c in enumerate(calls)]

    return change


def without(name: str) -> Change:
    def change(calls: list[Call]) -> list[Call]:
        index = next(i for i, c in enumerate(calls) if c.call == name)
        return calls[:index] + calls[index + 1 :]

    return change


@pytest.mark.parametrize(
    "change",
    [
        at("apply", 0, b=18), at("apply", 1, b=18), at("apply", 2, a=8), at("apply", 0, result=0),
        at("bind_sequence", 1, a=9), at("slice_tensor", b=2), at("slice_tensor", text="positions"),
        at("infer", 1, a=41), at("infer", result=17), at("infer", text="prefill"), at("get_status", result=3),
        without("wait"), without("undo_slice"), without("apply"), lambda calls: calls[:-1],
        lambda calls: [*calls, call("reset")], lambda calls: [calls[0], calls[2], calls[1], *calls[3:]],
    ],
)  # fmt: skip
def test_what_differs_is_not_compared(change: Change) -> None:
    """Negative controls: every argument, every result, the order, and how many there are."""
    ours = [*executors(7, 41, 17), undone(), *executors(7, 42, 18), undone()]
    same_jobs(ours, BASE)
    with pytest.raises(NotTheSame, match="different CalRT calls in job"):
        same_jobs(change(ours), BASE)


class Trace:
    """A simulator that kept the calls from `first` on."""

    def __init__(self, first: int) -> None:
        self.first = first

    def trace(self, start: int) -> tuple[Call, ...]:
        return tuple(evolve(call("wait"), number=n) for n in range(max(start, self.first), 10))


def test_a_trace_that_does_not_reach_back_is_not_compared() -> None:
    assert [c.number for c in calls_since(Trace(3), 7)] == [7, 8, 9]  # type: ignore[arg-type]
    with pytest.raises(NotTheSame, match="begins at call 3"):
        calls_since(Trace(3), 2)  # type: ignore[arg-type]
