"""F21: `infer()` returned an error, and the device had started all the same.

Whether an error means that nothing was started is a vendor's fact (§14). Each setting of the facts is tried on the
device with an error of each class of §8; what the executor does with slot and sequence must hold at the worst.
"""

from __future__ import annotations

from typing import Any

import pytest
from executing import ALL_GOOD, READY_S, Bench, executing
from moments import books, lanes, pool_of, says, until

from machines.errors import CODES, observed
from machines.protocol.effects import INFER
from machines.protocol.params import BUSY_STARTS_NOTHING, SUBMIT_ERROR_STARTS_NOTHING
from runtime.calrt import Library
from runtime.config import ConfigError
from runtime.generations import ExecutorError

PROMPT, OTHER = list("Grüße".encode()), list(b"another prompt")
STARTS = -1  # what a planned `return` does: as the facts say
TRUSTING = {"trust_submit": True, "facts": {**ALL_GOOD, SUBMIT_ERROR_STARTS_NOTHING.name: True}}


def one_of(kind: str) -> int:
    """A code of that class."""
    return next(c.number for c in CODES if c.number > 0 and observed("infer", c.number) == kind)


KINDS = [kind for kind in INFER.classes if kind != "ok"]
LASTING = [kind for kind in KINDS if kind not in ("compatibility", "artifact")]  # else: a human repairs, or rolls back


def treated(b: Bench, kind: str, doubted: bool) -> list[str]:
    """What was wrong after an error of that class. doubted: the device may have started, so what the job had is not
    used again in its generation, and its sequence not at all."""
    b.sim.fault("infer", "return", one_of(kind), STARTS)
    pool, kept = pool_of(b), lanes(b)  # their memory outlives the job, whatever becomes of the slots
    result = b.run(1, PROMPT)
    (refused,) = [c for c in b.sim.trace() if c.call == "infer" and c.result == one_of(kind)]
    kv_id = [c for c in b.sim.trace() if c.call == "bind_sequence" and c.number < refused.number][-1].a
    wrong = ["it was answered with OK"] if result.status.ok or result.logits is not None else []
    if result.status.code != one_of(kind):
        wrong.append(f"the code is {result.status.code}")
    if b.executor.wait_ready(READY_S) != (kind in LASTING):
        return [*wrong, "Ready, or not, against §8"]
    if kind not in LASTING:
        return wrong
    until(lambda: books(b)["calls"] == 0 and books(b)["waits"] == 0)
    if bool(pool.quarantined()) != doubted:
        wrong.append(f"{len(pool.quarantined())} slots are in quarantine")
    following = b.run(2, OTHER)
    if not following.status.ok or not says(b, following, OTHER):
        wrong.append(f"the next client's job ended as {following.status}")
    until(lambda: kept and not b.sim.truth("jobs_running"))
    later = [c for c in b.sim.trace() if c.number > refused.number]
    used = {h for c in later if c.call in ("infer", "slice_tensor", "set_csr") for h in (c.handle, c.other)}
    if doubted and used & {refused.handle, refused.other}:
        wrong.append("its slot was lent again")
    if doubted and [c for c in later if c.call in ("apply", "bind_sequence") and c.a == kv_id and c.b]:
        wrong.append("its sequence was used again")
    return wrong


def found(library: Library, kind: str, doubted: bool, **more: Any) -> list[str]:
    """treated(), and what the device says about it."""
    settings = {name: more.pop(name) for name in list(more) if name.endswith(("starts_nothing", "_us"))}
    with executing(library, settings, **more) as b:
        wrong = treated(b, kind, doubted)
    return [*wrong, *(f"{v.kind}: {v.text}" for v in b.sim.violations())]


@pytest.mark.parametrize("starts_nothing", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "busy"])
def test_f21_an_error_is_doubted_by_default(library: Library, kind: str, starts_nothing: int) -> None:
    assert found(library, kind, doubted=True, submit_error_starts_nothing=starts_nothing) == []


def test_f21_busy_has_started_nothing(library: Library) -> None:
    """The specification says so (FI05): neither doubt nor reset."""
    assert found(library, "busy", doubted=False) == []


@pytest.mark.parametrize("kind", [k for k in LASTING if k != "busy"])
def test_f21_an_error_is_trusted_where_the_fact_is_declared(library: Library, kind: str) -> None:
    assert found(library, kind, doubted=False, submit_error_starts_nothing=1, **TRUSTING) == []


def test_f21_trust_needs_the_fact(library: Library) -> None:
    with pytest.raises(ConfigError, match=SUBMIT_ERROR_STARTS_NOTHING.name), executing(library, trust_submit=True):
        pass
    facts = {**ALL_GOOD, BUSY_STARTS_NOTHING.name: False}
    with pytest.raises(ExecutorError, match=BUSY_STARTS_NOTHING.name), executing(library, facts=facts):
        pass


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("device", {"submit_error_starts_nothing": 0, "prefill_us": 500_000, **TRUSTING}),
        ("busy", {"busy_starts_nothing": 0, "prefill_us": 500_000}),
    ],
)
def test_control_f21_a_device_that_starts_against_the_declared_fact(
    library: Library, kind: str, facts: dict[str, Any]
) -> None:
    """Its memory was given back: it is seen."""
    assert found(library, kind, doubted=False, **facts) != []
