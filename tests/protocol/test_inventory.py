"""The rule inventory is a floor: every actor, every effect, its begin and each class of its outcome has a rule.

The lists are written down here from the specification (the paragraph is named), not read from the rulebook.
"""

from __future__ import annotations

import pytest

from machines.protocol import RULEBOOK
from machines.rulebook import Rulebook

FLOOR = [
    # actor, effect, what it begins or takes
    *[("admission", "reserve", c) for c in ("begin", "ok", "refused", "failed")],  # §7
    *[("admission", "prepare", c) for c in ("begin", "ok", "request", "artifact", "device")],  # §6.3, §8
    *[("admission", "prepare", c) for c in ("transient", "lifecycle", "compatibility")],  # §8
    *[("submitter", "infer", c) for c in ("begin", "ok", "busy", "transient", "request", "lifecycle")],  # §6.4, §8
    *[("submitter", "infer", c) for c in ("artifact", "compatibility", "device")],  # §8
    *[("completion", "wait", c) for c in ("begin", "ok", "timeout", "exception", "error")],  # §6.5, FI07, FI08
    *[("completion", "wait", c) for c in ("artifact", "compatibility")],  # §8
    *[("completion", "convert", c) for c in ("begin", "valid", "invalid")],  # §6.5, FI09, FI10
    *[("completion", "commit", c) for c in ("begin", "ok", "failed")],  # §7
    *[("unwind", "undo", c) for c in ("ok", "failed")],  # FI15
    *[("unwind", "unreserve", c) for c in ("begin", "ok", "failed")],  # §7
    *[(a, "undo", "begin") for a in ("admission", "submitter", "completion")],  # §6.2, §6.5
    ("admission", "unreserve", "begin"),  # §6.2
    ("client", "remove", "begin"),  # §3
    *[("admission", "remove", c) for c in ("ok", "failed")],  # §3
    *[("lifecycle", "reset", c) for c in ("begin", "ok", "compatibility", "failed")],  # §9.2, §8
    *[("lifecycle", "configure", c) for c in ("begin", "ok", "artifact", "compatibility", "failed")],  # §9.2, §8
    *[("lifecycle", "golden", c) for c in ("begin", "passed", "artifact", "compatibility", "failed")],  # §9.2, §8
]

RETURNS_OF_A_GENERATION_THAT_HAS_ENDED = [
    *[("completion", "wait", c) for c in ("ok", "timeout", "exception", "error", "artifact", "compatibility")],  # FI14
    *[("completion", "convert", c) for c in ("valid", "invalid")],
    *[("lifecycle", "reset", c) for c in ("ok", "compatibility", "failed")],
    *[("lifecycle", "configure", c) for c in ("ok", "artifact", "compatibility", "failed")],
    *[("lifecycle", "golden", c) for c in ("passed", "artifact", "compatibility", "failed")],
]
LATE = ("stale", "late", "failed_device")

SITUATIONS = {
    # what may happen without a call, and the rule that says so
    "arrival": "client.arrive.prefill",
    "arrival of a continuation": "client.arrive.extend",
    "cancel": "client.cancel",
    "removal of a sequence": "client.remove",
    "planned switch": "client.switch",
    "shutdown": "client.close",
    "admission deadline": "clock.admission",
    "queue deadline": "clock.queue",
    "execution deadline": "clock.execution",
    "the request's own deadline": "clock.request",
    "grace period over": "clock.grace.recover",
    "grace period over with a call stuck": "clock.grace.give_up",
    "planned drain overdue": "clock.grace.overdue",
    "closing overdue": "clock.grace.close",
    "a call is stuck": "clock.stuck",
    "a lifecycle call is stuck": "clock.stuck.lifecycle",
    "back-off after a transient error": "clock.backoff",
    "back-off after a refused Apply": "clock.kv_retry",
    "refused at the door": "admission.refuse",
    "stopped after admission": "admission.drop",
    "generation ended after admission": "admission.gone",
    "stopped in the queue": "submitter.drop",
    "generation ended in the queue": "submitter.gone",
    "generation ended on the device": "completion.abandon",
    "done while the output before it is not judged": "completion.wait.ok.behind",
    "done behind a job that showed the device to be broken": "completion.wait.ok.suspect",
    "the output before it turned out invalid": "completion.suspect",
    "generation ended before its output was judged": "completion.abandon.unread",
    "delivery": "completion.deliver",
    "result dropped": "completion.discard",
    "threshold of transient errors": "submitter.infer.busy.drain",
    "answer given while infer() was under way": "submitter.infer.ok.stopped",
    "quarantine budget used up": "lifecycle.exhausted",
    "drained, reset": "lifecycle.recover",
    "drained, no reset allowed": "lifecycle.give_up",
    "drained for a switch": "lifecycle.reconfigure",
    "model rollback": "lifecycle.rollback",
    "model rollback impossible": "lifecycle.no_fallback",
    "next rung after a failed reset": "lifecycle.reset.failed",
    "next rung after a failed configuration": "lifecycle.configure.failed",
    "next rung after a failed golden run": "lifecycle.golden.failed",
    "bad artifact seen by the golden run": "lifecycle.golden.artifact",
    "reservation neither granted nor refused": "admission.reserve.failed",
    "an actor of ours died": "client.give_up",
    "ladder used up": "lifecycle.golden.failed.last",
    "closing while restarting": "lifecycle.abort",
    "closed": "lifecycle.closed",
    "answers when Failed": "lifecycle.answer",
    "quarantined job of an ended generation": "lifecycle.reap",
    "quarantined memory reused": "lifecycle.reap.reuse",
    "slot of a finished job reused": "lifecycle.rebuild",
    "device accepts": "device.accept",
    "device finishes": "device.done",
    "device output invalid": "device.invalid",
    "device exception": "device.exception",
    "device hangs": "device.hang",
    "device finishes late": "device.late",
    "leftover job writes": "device.leftover",
}


def missing(book: Rulebook, floor: list[tuple[str, str, str]]) -> list[str]:
    """The entries of a floor that no rule covers."""
    begins = {(r.actor.name, r.begins.name, "begin") for r in book.rules if r.begins}
    takes = {(r.actor.name, r.outcome[0].name, c) for r in book.rules if r.outcome for c in r.outcome[1]}
    return [f"{a} {e} {c}" for a, e, c in floor if (a, e, c) not in begins | takes]


def test_every_actor_effect_and_class_has_a_rule() -> None:
    assert not missing(RULEBOOK, FLOOR)


def test_every_effect_and_class_of_the_rulebook_is_on_the_floor() -> None:
    """Nothing was added to the rulebook that the floor does not know."""
    known = {(e, c) for _, e, c in FLOOR}
    assert {(e.name, c) for e in RULEBOOK.effects for c in e.classes} <= known


def test_late_returns_have_rules_of_their_own() -> None:
    late = RULEBOOK.replace(drop=[]).rules
    takes = {
        (r.actor.name, r.outcome[0].name, c)
        for r in late
        if r.outcome and r.id.rsplit(".", 1)[-1] in LATE
        for c in r.outcome[1]
    }
    assert set(RETURNS_OF_A_GENERATION_THAT_HAS_ENDED) <= takes


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_situation_has_its_rule(situation: str) -> None:
    assert RULEBOOK.rule(SITUATIONS[situation]).id == SITUATIONS[situation]


def test_a_missing_rule_is_noticed() -> None:
    """Negative control: a floor entry that nothing covers is named."""
    asked = [*FLOOR, ("submitter", "wait", "begin")]
    assert missing(RULEBOOK, asked) == ["submitter wait begin"]


def test_every_rule_and_row_cites_the_specification() -> None:
    assert not [r.id for r in RULEBOOK.rules if not r.cites]
    assert not [e.id for t in RULEBOOK.tables for e in t.gotos() if not e.cites]
