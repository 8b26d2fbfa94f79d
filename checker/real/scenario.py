"""What one run is about: how the executor is set up, what its clients want, and which moves the adversary has.

Theory. A scenario is plain data, drawn anew for each run, and most runs have only some of the moves (swarm testing: a
run in which everything may happen is nearly always ended by the same few things). Its repr is code, so a run that
failed is one line to be run again, with the choices that were made in it.
"""

from __future__ import annotations

from random import Random

from attrs import fields, frozen

from checker.real.faults import FAULTS
from machines.protocol.params import FACTS
from machines.protocol.runs import SOUND

__all__ = ["FATAL", "INTERVALS", "MILD", "MOVES", "POLICIES", "Plan", "Scenario", "drawn"]

POLICIES = tuple(SOUND)
INTERVALS = (
    "admission_ms", "queue_ms", "execution_ms", "request_ms_max", "grace_ms", "close_ms", "stuck_ms", "reset_ms",
    "configure_ms", "golden_ms", "backoff_ms", "kv_retry_ms",
)  # fmt: skip
MOVES = ("cancel", "remove", "switch", "close", "give_up", "early_wait", "time")
"""What the adversary may do besides faults. early_wait: a Wait returns while its job runs, a fault as well. time: the
next deadline passes though somebody could still go on."""


_NO_MODEL = ("configure.artifact", "golden.artifact")
FATAL = tuple(f.name for f in FAULTS if f.what == "compatibility" or f.name in _NO_MODEL)
"""Faults that end everything: runs that have them are short."""
MILD = tuple(f.name for f in FAULTS if f.name not in FATAL)


@frozen
class Plan:
    """A client. tokens: of its jobs, one after the other on one sequence, which it begins again after a failure.
    deadline_ms: of each job, from its arrival; 0: none. stubborn: after a failure it goes on with what it knows, which
    may not be what there is."""

    tokens: tuple[int, ...] = (3, 1, 1, 2, 1, 1)
    deadline_ms: int = 0
    stubborn: bool = False


@frozen(repr=False)
class Scenario:
    """policy: a key of `machines.protocol.runs.SOUND`, with its facts; what it does not need is the worst case.
    faults, cancels: how many. kinds: names of FAULTS. moves: of MOVES. unlike_ms: intervals that are not 50 ms.
    ends_after: steps before the adversary may close or give up, which ends nearly everything. fine: what follows a step
    is a move of its own."""

    policy: str = "rebuild-reset"
    slots: int = 1
    inflight: int = 1
    clients: tuple[Plan, ...] = (Plan(), Plan())
    faults: int = 3
    cancels: int = 2
    kinds: tuple[str, ...] = MILD
    moves: tuple[str, ...] = MOVES
    unlike_ms: tuple[tuple[str, int], ...] = ()
    strikes: int = 1
    recoveries: int = 3
    ends_after: int = 100
    fine: bool = False

    def __repr__(self) -> str:
        """As code, with what is not as usual."""
        unusual = [f.name for f in fields(Scenario) if getattr(self, f.name) != f.default]
        return f"Scenario({', '.join(f'{name}={getattr(self, name)!r}' for name in unusual)})"

    @property
    def facts(self) -> dict[str, bool]:
        """Of the simulator and of the configuration alike."""
        return {f.name: bool(SOUND[self.policy].get(f.name, f.default)) for f in FACTS}

    @property
    def switches(self) -> bool:
        """Where no drain may end without a golden run that sees, planned switches are refused by the configuration."""
        return self.policy != "exit" or self.facts["golden_sees_broken_device"]

    def settings(self) -> dict[str, object]:
        """Keys of the executor's configuration."""
        return {
            **dict.fromkeys(INTERVALS, 50), **dict(self.unlike_ms), "slots": self.slots, "inflight": self.inflight,
            "policy": self.policy.split("-")[0], "facts": self.facts, "switches": self.switches,
            "jobs_max": 8, "sequences_max": 2, "strikes_max": self.strikes,
            "recoveries_max": self.recoveries, "log_level": "error",
        }  # fmt: skip


def drawn(seed: int) -> Scenario:
    """A scenario of this seed."""
    random = Random(seed)
    slots = random.choice((1, 2, 2))
    some = random.sample(MILD, random.randint(3, 16)) + random.sample(FATAL, random.choice((0, 0, 0, 0, 0, 1)))
    return Scenario(
        policy=random.choice((*POLICIES, *POLICIES[1:])), slots=slots, inflight=random.choice((1, slots)),
        clients=tuple(_plan(random) for _ in range(random.randint(1, 3))),
        faults=random.choice((0, 2, 3, 4, 5)), cancels=random.choice((0, 1, 2)), kinds=tuple(some),
        moves=tuple(m for m in MOVES if random.random() < 0.35),
        unlike_ms=tuple((name, random.choice((10, 90, 1000))) for name in INTERVALS if random.random() < 0.3),
        ends_after=random.choice((20, 80, 200)), fine=random.random() < 0.5,
    )  # fmt: skip


def _plan(random: Random) -> Plan:
    tokens = (random.randint(1, 5), *(random.choice((1, 1, 1, 2)) for _ in range(random.randint(4, 12))))
    return Plan(tokens, random.choice((0, 0, 0, 40, 200)), random.random() < 0.2)
