"""What a job that failed must say for itself: the fault that befell it, or nothing explains it.

Theory. Faults are injected, so what can come of each of them is known before: the code that CalRT returns, or the check
of ours that notices it. A failed job must name one of these, of a fault that was injected since its device last became
Ready. One failure is not its own: when a fault drains the device, every other job is dropped or refused by a rule, and
its status names the rule. That needs a fault too, but any will do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from attrs import frozen

from machines.errors import code_named
from machines.protocol import RULEBOOK
from runtime.status import Status, StatusKind

__all__ = ["UNKNOWN", "Fault", "cause_of", "unexplained"]

RULES = frozenset(rule.id for rule in RULEBOOK.rules)

# Of each action of the simulator (docs/simulator.md): codes that a call then returns; stages of our own checks, and
# rules of the clock, that then notice it. "return" returns what it was told to.
CODES = {
    action: (code_named(name).number,)
    for action, name in (
        ("throw", "ShimException"), ("nan", "ShimNotFinite"), ("inf", "ShimNotFinite"), ("timeout", "Timeout"),
    )
}  # fmt: skip
NOTICED = {
    "hang": ("clock.execution",),
    "late": ("clock.execution",),
    "ccu_exception": ("GetStatus",),
    "partial_kv": ("GetStatus",),
    "double": ("GetStatus",),
    "short_tensor": ("logits",),
}
APPLY_SAYS_NO = ("commit n tokens of sequence n", "go back to n tokens of sequence n")
OF_A_JOB = frozenset({"clock.execution"})  # a rule that notices the job's own fault, and drops no other


@frozen
class Fault:
    """One that was injected: at a call (as in the ABI trace), what, with which argument."""

    call: str
    action: str
    a: int = 0

    def __str__(self) -> str:
        return f"{self.call}: {self.action}" + (f" {self.a}" if self.action == "return" else "")

    def explains(self, status: Status) -> bool:
        """Whether this may be what befell the status' own job."""
        if self == UNKNOWN:
            return True
        if status.code:
            return status.code in CODES.get(self.action, (self.a,) if self.action == "return" else ())
        refuses = self.action in ("refuse", "return") and self.call in ("apply", "can_allocate")
        return cause_of(status) in (APPLY_SAYS_NO if refuses else NOTICED.get(self.action, ()))


UNKNOWN = Fault("", "any")  # injected by somebody else than us: it may have done anything


def cause_of(status: Status) -> str:
    """What a status says of its cause, without numbers of jobs and sequences; "" where it says nothing."""
    return status.code_name or re.sub(r"\d+", "n", status.stage or status.text)


def unexplained(status: Status, faults: Iterable[Fault]) -> str | None:
    """What is lacking in the status of a job that nobody cancelled and that failed after these faults; or None."""
    cause, faults = cause_of(status), tuple(faults)
    if not cause:
        return "no cause"
    if status.kind is StatusKind.CANCELLED:
        return "nobody cancelled it"
    if not faults:
        return "no fault was injected"
    swept_along = not status.code and status.stage in RULES - OF_A_JOB
    if swept_along or any(fault.explains(status) for fault in faults):
        return None
    return f"none of the faults explains it ({', '.join(map(str, dict.fromkeys(faults)))})"
