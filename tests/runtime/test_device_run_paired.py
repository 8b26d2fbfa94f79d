"""The benchmark's statistics, on made-up times. No clock is asserted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from runtime.paired import compare, measure


def made_up(ratio: float, noise: float, blocks: int, seed: int) -> tuple[list[float], list[float]]:
    """Pairs with a true ratio, that drift together by a factor of 10 and have noise of their own."""
    rng = np.random.default_rng(seed)
    drift = 50 * 10 ** rng.random(blocks)
    return (
        list(drift * ratio * np.exp(rng.normal(0, noise, blocks))),
        list(drift * np.exp(rng.normal(0, noise, blocks))),
    )


@pytest.mark.parametrize(("ratio", "verdict"), [(0.8, "faster"), (1.25, "slower")])
def test_a_difference_is_found_under_drift(ratio: float, verdict: str) -> None:
    found = compare("x", "a", "b", *made_up(ratio, 0.05, 41, seed=1))
    assert found.verdict == verdict
    assert found.low < ratio < found.high
    assert abs(found.ratio / ratio - 1) < 0.05


def test_no_difference_is_undecided_as_often_as_the_interval_promises() -> None:
    """200 comparisons of equals: about 5 % err; the number is fixed by the seeds."""
    found = [compare("x", "a", "b", *made_up(1.0, 0.1, 31, seed)).verdict for seed in range(200)]
    assert 0.88 * 200 <= found.count("undecided") < 200


def test_the_sides_are_not_mixed_up() -> None:
    found = compare("what", "ours", "base", [2.0, 2.0, 4.0], [10.0, 10.0, 20.0])
    assert (found.ours_us, found.base_us, found.ratio, found.low, found.high) == (2.0, 10.0, 0.2, 0.2, 0.2)
    assert compare("what", "ours", "base", [10.0] * 3, [2.0] * 3).verdict == "slower"


def test_an_interval_that_touches_one_decides_nothing() -> None:
    assert compare("x", "a", "b", [1.0] * 5, [1.0] * 5).verdict == "undecided"


@pytest.mark.parametrize(
    ("ours", "base", "message"),
    [([1.0], [1.0], "2 pairs"), ([1.0] * 3, [1.0] * 2, "2 pairs"), ([1.0, 0.0], [1.0, 1.0], "took no time")],
)
def test_times_that_cannot_be_compared_are_refused(ours: list[float], base: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare("x", "a", "b", ours, base)


def test_blocks_alternate_and_the_first_pair_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that the sides move: 3 ms a run of ours, 5 ms of the base."""
    now_ns, order = 0, []

    def side(name: str, ms: int) -> None:
        nonlocal now_ns
        order.append(name)
        now_ns += ms * 1_000_000

    monkeypatch.setattr("time.perf_counter_ns", lambda: now_ns)
    pairs = list(measure(lambda: side("a", 3), lambda: side("b", 5), blocks=3, runs=2))
    assert pairs == [(3_000.0, 5_000.0)] * 3
    assert [name for name, _ in itertools.groupby(order)] == ["b", "a", "b", "a", "b"]
    assert "".join(order) == "bbaa" + "aabb" + "bbaa" + "aabb"
