"""Two-phase commit (Lamport, "Transaction Commit on Two-Phase Locking", the TLA+ module TwoPhase).

Resource managers prepare and tell the transaction manager, which commits when all have prepared or aborts at any time.
Messages are never removed, as in the module, so a manager may receive a decision again: those rows lead to where they
start. Two cells are left out of the managers' table although a rule fires their event: a commit that reaches a manager
which has not prepared, and a decision against one already taken. So each is impossible, and the run proves it.

Published: 288 distinct states with 3 resource managers, 8,832 with 5. The module states safety only; the leads-to is
ours, under weak fairness of the coordinator and of each manager.

    check-states examples.two_phase_commit:RULEBOOK
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
        Row((Manager.Prepared, Manager.Committed), "commit", Manager.Committed),
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
        (tm == Transaction.Init) & every(rm.index, rm.tm_knows),
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

PROPERTIES = (
    Invariant(
        "consistent",
        "No manager has committed while another has aborted",
        over=(rm.index, rm.named("other")),
        holds=~((rm.state == Manager.Committed) & (rm.at(rm.named("other")).state == Manager.Aborted)),
    ),
    Sometimes("all_commit", "All managers may commit", reached=every(rm.index, rm.state == Manager.Committed)),
    Sometimes("all_abort", "All managers may abort", reached=every(rm.index, rm.state == Manager.Aborted)),
    LeadsTo(
        "decided",
        "Each manager commits or aborts in the end",
        over=(rm.index,),
        when=rm.state.isin(Manager.Working, Manager.Prepared),
        then=rm.state.isin(Manager.Committed, Manager.Aborted),
    ),
)

RULEBOOK = Rulebook(
    "two_phase_commit",
    actors=(COORDINATOR, PARTICIPANT),
    params=(MANAGERS,),
    sorts=(rm,),
    variables=VARIABLES,
    rules=RULES,
    properties=PROPERTIES,
    legal_end=tm != Transaction.Init,
    runs=(
        Run("three", {"managers": 3}, liveness=True, about="288 states"),
        Run("five", {"managers": 5}, liveness=True, about="8,832 states"),
    ),
    about=__doc__ or "",
)
