"""In which scopes the protocol is proved, and by which bad fact each policy is refuted.

The exit policy is proved at the worst case of every vendor fact but its own (leaving the process stops DMA, which
every policy needs, since every policy may end in Failed). Rebuild and reuse are proved under the smallest sets of
facts that make them sound. `machines.protocol.params` says what each fact means.
"""

from itertools import product

from machines.protocol.params import Policy
from machines.rulebook import Run

EXIT = {"policy": Policy.Exit.code, "process_exit_stops_dma": 1}
REBUILD = {**EXIT, "policy": Policy.Rebuild.code}
REUSE = {**EXIT, "policy": Policy.Reuse.code}
GOLDEN = {"leftover_harmless": 1, "golden_sees_broken_device": 1}
RESETS = {"reset_stops_dma": 1, "reset_is_honest": 1}
CLEARS = {**RESETS, "reset_clears_kv": 1}

SOUND = {
    "exit": EXIT,
    "rebuild-golden": {**REBUILD, **GOLDEN},
    "rebuild-reset": {**REBUILD, **RESETS},
    "reuse": {**REUSE, **CLEARS},
}
"""Each policy with a smallest set of facts under which it is sound."""

BREAKING = {
    "exit": {"process_exit_stops_dma": "I4.exit"},
    "rebuild-golden": {"leftover_harmless": "kv.truth", "golden_sees_broken_device": "life.golden"},
    "rebuild-reset": {"reset_stops_dma": "kv.truth", "reset_is_honest": "kv.truth"},
    "reuse": {"reset_stops_dma": "I4.memory", "reset_is_honest": "kv.truth", "reset_clears_kv": "kv.truth"},
}
"""The facts each of them needs, and the property that falls without it."""

ONE_JOB = {"jobs": 1, "sequences": 1, "kv": 1}
NOTHING_GOES_WRONG = (
    "client.cancel", "client.close", "client.give_up", "client.switch", "clock.admission", "clock.queue",
    "clock.request", "clock.execution", "clock.stuck*", "clock.grace*",
)  # fmt: skip

UNDISTURBED = (
    "client.cancel", "client.close", "client.give_up", "client.remove*", "client.discard", "client.switch",
    "clock.admission", "clock.queue", "clock.request", "clock.execution", "clock.stuck.remove", "clock.stuck.lifecycle",
)  # fmt: skip
"""What is left out so that three jobs fit in: the host asks for nothing but jobs, and no deadline of theirs passes."""

_two_jobs = [
    Run(
        f"{name} {sequences} seq {slots} slot {inflight} in flight",
        {**facts, "sequences": sequences, "slots": slots, "inflight": inflight, "kv": sequences},
        about="two jobs, two faults",
    )
    for name, facts in SOUND.items()
    for sequences, slots, inflight in product((1, 2), repeat=3)
]
_alone = [Run(f"{name} 1 job", {**facts, **ONE_JOB}, liveness=True) for name, facts in SOUND.items()]
_live = [
    Run(f"{name} 2 jobs live", {**facts, "sequences": 1, "kv": 1, "faults": 1}, liveness=True)
    for name, facts in SOUND.items()
]
_more = [
    Run("exit 2 jobs 2 seq live", {**EXIT, "slots": 2, "inflight": 2, "faults": 1}, liveness=True),
    Run(
        "rebuild switching by reset", {**REBUILD, **RESETS, **ONE_JOB, "switches": 1},
        about="a golden run that may not see: then no drain ends without a reset",
    ),
    Run("exit switching", {**EXIT, **ONE_JOB, "golden_sees_broken_device": 1, "switches": 1, "strikes_max": 2}),
    Run("exit short of KV", {**EXIT, "kv": 1}, about="two sequences compete for one unit"),
    Run(
        "rebuild switching",
        {**REBUILD, **GOLDEN, "sequences": 1, "kv": 1, "faults": 1, "switches": 1, "strikes_max": 2},
        about="planned model switches and rollbacks",
    ),
    Run(
        "reuse switching",
        {**REUSE, **CLEARS, "golden_sees_broken_device": 1, **ONE_JOB, "switches": 1, "strikes_max": 2}, liveness=True,
    ),
    Run(
        "exit 3 jobs in order", {**EXIT, "jobs": 3, "sequences": 3, "slots": 3, "inflight": 2, "kv": 3, "faults": 1},
        without=(*UNDISTURBED, "clock.stuck", "clock.grace*"), about="two outputs wait behind one that is judged",
    ),
    Run(
        "rebuild 3 jobs over a reset", {**REBUILD, **GOLDEN, "jobs": 3, "slots": 2, "inflight": 2, "faults": 1},
        without=UNDISTURBED, about="a job of the ended generation beside two of the new one",
    ),
    Run("exit trusting submit", {**EXIT, **ONE_JOB, "trust_submit": 1, "submit_error_starts_nothing": 1}),
    Run("exit trusting exceptions", {**EXIT, **ONE_JOB, "trust_exception": 1, "exception_stops_dma": 1}),
    Run(
        "fair weather", {**EXIT, "faults": 0, "slots": 2, "inflight": 2, "calm": 1}, without=NOTHING_GOES_WRONG,
        about="no fault, no cancel, no deadline: success is the only way out",
    ),
]  # fmt: skip
_refuted = [
    Run(f"{name} without {fact}", {**SOUND[name], **ONE_JOB, fact: 0}, expect="REFUTED", by=by)
    for name, facts in BREAKING.items()
    for fact, by in facts.items()
] + [
    Run("exit, Busy may have started", {**EXIT, **ONE_JOB, "busy_starts_nothing": 0}, "REFUTED", "I4.memory"),
    Run("exit trusting submit, worst case", {**EXIT, **ONE_JOB, "trust_submit": 1}, "REFUTED", "I4.memory"),
    Run("exit trusting exceptions, worst case", {**EXIT, **ONE_JOB, "trust_exception": 1}, "REFUTED", "I4.memory"),
    Run("rebuild, worst case", {**REBUILD, **ONE_JOB}, "REFUTED", "kv.truth"),
    Run("reuse, worst case", {**REUSE, **ONE_JOB}, "REFUTED", "I4.memory"),
]
_nightly = [
    Run(f"{name} 3 jobs", {**facts, "jobs": 3, "slots": 2, "inflight": 2, "faults": 1}, tier="nightly")
    for name, facts in SOUND.items()
]

RUNS: tuple[Run, ...] = (*_two_jobs, *_alone, *_live, *_more, *_refuted, *_nightly)

_switching = {"switches": 1, "golden_sees_broken_device": 1, "faults": 1}
MUTATION_RUNS: tuple[Run, ...] = (
    Run("mutants: exit", {**EXIT, **ONE_JOB, "faults": 1}, liveness=True),
    Run("mutants: rebuild", {**SOUND["rebuild-golden"], **ONE_JOB, **_switching}, liveness=True),
    Run("mutants: reuse", {**SOUND["reuse"], **ONE_JOB, **_switching}, liveness=True),
    Run("mutants: trust submit", {**EXIT, **ONE_JOB, "faults": 1, "trust_submit": 1, "submit_error_starts_nothing": 1}),
    Run("mutants: trust exceptions", {**EXIT, **ONE_JOB, "faults": 1, "trust_exception": 1, "exception_stops_dma": 1}),
    Run("mutants: calm", {**EXIT, "faults": 0, "slots": 2, "inflight": 2, "calm": 1}, without=NOTHING_GOES_WRONG),
    Run("mutants: two faults", {**SOUND["rebuild-golden"], **ONE_JOB, **_switching, "faults": 2}),
    Run("mutants: two sequences", {**EXIT, "faults": 1, "slots": 2}),
    Run("mutants: one sequence", {**SOUND["rebuild-reset"], "faults": 1, "sequences": 1, "kv": 1}),
)
"""The scopes of the mutation study, cheapest first; what one of them kills is not explored in the next."""
