"""Two-phase commit (Lamport, "Transaction Commit on Two-Phase Locking", the TLA+ module TwoPhase).

Resource managers prepare and tell the transaction manager, which commits when all have prepared or aborts at any time.
Messages are never removed, as in the module. Published: 288 distinct states with 3 resource managers, 8,832 with 5.

    check-states examples.two_phase_commit:RULEBOOK --scope managers=5
"""

from __future__ import annotations

from machines.expr import Domain, Param, Sort, State, every
from machines.rulebook import Actor, Invariant, LeadsTo, Rule, Rulebook, Run, Sometimes, variable
from machines.table import Row, Table


class Manager(State):
    Working, Prepared, Committed, Aborted = range(4)


class Transaction(State):
    Init, Committed, Aborted = range(3)


MANAGER = Table(
    "manager",
    Manager,
    initial=Manager.Working,
    final={Manager.Committed, Manager.Aborted},
    rows=[
        Row(Manager.Working, "prepare", Manager.Prepared),
        Row(Manager.Working, "choose_abort", Manager.Aborted),
        Row((Manager.Working, Manager.Prepared, Manager.Committed), "commit", Manager.Committed),
        Row((Manager.Working, Manager.Prepared, Manager.Aborted), "abort", Manager.Aborted),
    ],
)

TRANSACTION = Table(
    "transaction",
    Transaction,
    initial=Transaction.Init,
    final={Transaction.Committed, Transaction.Aborted},
    rows=[
        Row(Transaction.Init, "commit", Transaction.Committed),
        Row(Transaction.Init, "abort", Transaction.Aborted),
    ],
)

MANAGERS = Param("managers", default=3, lo=1, hi=8, about="how many resource managers")
rm = Sort("rm", MANAGERS.expr)
VARIABLES = (
    variable("tm", TRANSACTION),
    variable("commit_sent", Domain.boolean()),
    variable("abort_sent", Domain.boolean()),
    variable("state", MANAGER, sort=rm),
    variable("prepared_sent", Domain.boolean(), sort=rm),
    variable("tm_knows", Domain.boolean(), sort=rm, about="the transaction manager has received Prepared"),
)
tm, commit_sent, abort_sent = (v.ref for v in VARIABLES[:3])

COORDINATOR = Actor("coordinator")
PARTICIPANT = Actor("participant")

RULES = (
    Rule(
        "coordinator.receive_prepared",
        COORDINATOR,
        (tm == Transaction.Init) & rm.prepared_sent,
        over=(rm.index,),
        then={rm.tm_knows: True},
    ),
    Rule(
        "coordinator.commit",
        COORDINATOR,
        (tm == Transaction.Init) & every(rm, rm.tm_knows),
        fires={tm: "commit"},
        then={commit_sent: True},
    ),
    Rule(
        "coordinator.abort",
        COORDINATOR,
        tm == Transaction.Init,
        fires={tm: "abort"},
        then={abort_sent: True},
    ),
    Rule(
        "participant.prepare",
        PARTICIPANT,
        rm.state == Manager.Working,
        over=(rm.index,),
        fires={rm.state: "prepare"},
        then={rm.prepared_sent: True},
    ),
    Rule(
        "participant.choose_abort",
        PARTICIPANT,
        rm.state == Manager.Working,
        over=(rm.index,),
        fires={rm.state: "choose_abort"},
    ),
    Rule("participant.commit", PARTICIPANT, commit_sent, over=(rm.index,), fires={rm.state: "commit"}),
    Rule("participant.abort", PARTICIPANT, abort_sent, over=(rm.index,), fires={rm.state: "abort"}),
)
