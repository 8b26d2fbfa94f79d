"""Which findings are told: the first of each kind, and of each cause the first, however many others came before it."""

from __future__ import annotations

from runtime.tally import KEPT, Tally


def test_the_first_of_a_kind_are_told_and_all_are_counted() -> None:
    tally = Tally()
    for i in range(KEPT + 5):
        tally.finding("differences", f"token {i}")
    assert tally.differences == KEPT + 5
    assert tally.findings == [f"differences: token {i}" for i in range(KEPT)]


def test_a_cause_is_told_however_late_it_is_told() -> None:
    """What a fault led to is often told before the fault itself: each client tells its own job's end."""
    tally = Tally()
    for i in range(KEPT + 5):
        tally.finding("unexplained", f"job {i} was dropped", "admission.drop")
    for i in range(2):
        tally.finding("unexplained", f"job {50 + i} went on from a wrong place", "past_len")
    tally.finding("differences", "another kind, and a cause of the same name", "admission.drop")
    assert tally.findings[KEPT:] == [
        "unexplained: job 50 went on from a wrong place",
        "differences: another kind, and a cause of the same name",
    ]
    assert tally.unexplained == KEPT + 7
