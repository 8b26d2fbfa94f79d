"""Scenarios and schedules for Hypothesis; whatever shrinks, shrinks to a calmer run of fewer pre-emptions."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from checker.real import FATAL, MILD, MOVES, POLICIES, Plan, Scenario
from checker.real.scenario import INTERVALS

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
PROFILES = {
    "dev": settings(max_examples=25, deadline=None, suppress_health_check=QUIET),
    "ci": settings(max_examples=60, deadline=None, suppress_health_check=QUIET, derandomize=True, database=None),
    "nightly": settings(max_examples=25_000, deadline=None, suppress_health_check=QUIET, print_blob=True),
}
PROFILE = PROFILES[os.environ.get("CALEXEC_PROFILE", "ci")]
RECOVERING = tuple(p for p in POLICIES if p != "exit")
DRAINS = ("infer.hang", "infer.nan", "infer.device", "wait.device", "commit.refused")
SCHEDULE = 150


def some(names: tuple[str, ...], most: int) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(names), max_size=most, unique=True).map(tuple)


PLANS = st.builds(
    Plan,
    st.tuples(st.integers(1, 5), st.lists(st.integers(1, 2), min_size=4, max_size=10)).map(lambda t: (t[0], *t[1])),
    st.sampled_from((0, 0, 0, 40, 200)),
    st.sampled_from((False, False, False, True)),
)
INTERVALS_MS = st.dictionaries(st.sampled_from(INTERVALS), st.sampled_from((10, 90, 1000)), max_size=4)


@st.composite
def scenarios(draw: st.DrawFn, policies: tuple[str, ...] = POLICIES, faults: int = 0) -> Scenario:
    """faults: at least so many; then some of them drain the device."""
    slots = draw(st.integers(1, 2))
    kinds = draw(some(MILD, 3 if faults else 12)) + draw(some(FATAL, 1) if not faults else st.just(()))
    return Scenario(
        policy=draw(st.sampled_from(policies)), slots=slots, inflight=draw(st.integers(1, slots)),
        clients=tuple(draw(st.lists(PLANS, min_size=1, max_size=3))),
        faults=draw(st.integers(faults, faults + 3)), cancels=draw(st.integers(0, 2)),
        kinds=tuple(dict.fromkeys((*kinds, *(DRAINS if faults else ())))), moves=draw(some(MOVES, 4)),
        unlike_ms=tuple(draw(INTERVALS_MS).items()), fine=draw(st.booleans()),
        ends_after=draw(st.sampled_from((20, 80, 200))) + 1000 * bool(faults),
    )  # fmt: skip


SCHEDULES = st.lists(st.integers(0, 255), min_size=SCHEDULE, max_size=SCHEDULE).map(bytes)
"""Of this length: shorter ones would be drawn far too often, and zeros at the end are as if they were not there."""
