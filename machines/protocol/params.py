"""What is fixed for a whole run: how large it is, what the vendor's device does, what we do about it.

Vendor facts (§14) are things nobody may infer. True is always the good value; False, the default, is the worst case.
The specification wins where it takes a position: a Busy submit started nothing (FI05), so `busy_starts_nothing` is
True.
"""

from machines.expr import Param, State


class Policy(State):
    """How the executor recovers. Exit: it never resets, Failed ends the process. Rebuild: reset, and quarantined memory
    and sequence ids are never used again. Reuse: reset, and after a passed golden run they are."""

    Exit, Rebuild, Reuse = range(3)


JOBS = Param("jobs", 2, 1, 3, about="jobs at once; a finished job's record is used again, so any number may follow")
SEQUENCES = Param("sequences", 2, 1, 3, about="sequences; job i belongs to sequence i modulo this")
SLOTS = Param("slots", 1, 1, 3, about="buffer slots of a generation's pool")
KV = Param("kv", 2, 1, 3, about="KV units; a sequence with KV holds one")
INFLIGHT = Param("inflight", 1, 1, 2, about="submit permits (max_inflight, §6.4)")
FAULTS = Param("faults", 2, 0, 4, about="how many times the device or a call may misbehave")
RECOVERIES = Param("recoveries_max", 1, 0, 3, about="recovery budget: resets in the life of a process; then Failed")
RUNGS = Param("rungs", 2, 1, 3, about="rungs of the reset ladder")
STRIKES = Param("strikes_max", 1, 0, 2, about="transient errors tolerated before a drain")
ABANDONED = Param("abandoned", 1, 0, 3, about="Wait() calls that may be left behind by a reset; more: Failed")
BYPASS = Param("bypass", 1, 0, 3, about="how often the head of the admission line may be overtaken")

POLICY = Param("policy", Policy.Exit, 0, 2, kind="policy", choices=Policy, about="recovery policy")
TRUST_SUBMIT = Param("trust_submit", 0, kind="policy", about="treat every failed infer() as not started")
TRUST_EXCEPTION = Param("trust_exception", 0, kind="policy", about="reuse a slot after Wait() reported an exception")
SWITCHES = Param("switches", 0, kind="policy", about="planned model switches happen")
CALM = Param("calm", 0, kind="policy", about="nothing goes wrong in this run, so nothing may fail")

EXIT_STOPS_DMA = Param("process_exit_stops_dma", 0, kind="fact", about="leaving the process stops the device's DMA")
SUBMIT_ERROR_STARTS_NOTHING = Param(
    "submit_error_starts_nothing", 0, kind="fact", about="an infer() that returned an error has started nothing"
)
BUSY_STARTS_NOTHING = Param(
    "busy_starts_nothing", 1, kind="fact", about="an infer() that returned Busy has started nothing (FI05)"
)
EXCEPTION_STOPS_DMA = Param(
    "exception_stops_dma", 0, kind="fact", about="after a CCU exception the job's DMA has stopped"
)
RESET_STOPS_DMA = Param("reset_stops_dma", 0, kind="fact", about="a successful reset stops the DMA of running jobs")
RESET_CLEARS_KV = Param("reset_clears_kv", 0, kind="fact", about="a successful reset empties the device's KV")
RESET_IS_HONEST = Param("reset_is_honest", 0, kind="fact", about="a reset that returns success has reset the device")
LEFTOVER_HARMLESS = Param(
    "leftover_harmless", 0, kind="fact", about="a job left running over a reset cannot write the new generation's KV"
)
GOLDEN_SEES = Param("golden_sees_broken_device", 0, kind="fact", about="the golden run fails on a broken device")
NO_LATE_COMPLETION = Param(
    "no_late_completion", 0, kind="fact", about="Wait() on a job that a reset killed never returns success"
)

SIZES = (JOBS, SEQUENCES, SLOTS, KV, INFLIGHT, FAULTS, RECOVERIES, RUNGS, STRIKES, ABANDONED, BYPASS)
POLICIES = (POLICY, TRUST_SUBMIT, TRUST_EXCEPTION, SWITCHES, CALM)
FACTS = (
    EXIT_STOPS_DMA, SUBMIT_ERROR_STARTS_NOTHING, BUSY_STARTS_NOTHING, EXCEPTION_STOPS_DMA, RESET_STOPS_DMA,
    RESET_CLEARS_KV, RESET_IS_HONEST, LEFTOVER_HARMLESS, GOLDEN_SEES, NO_LATE_COMPLETION,
)  # fmt: skip
PARAMS = (*SIZES, *POLICIES, *FACTS)

EXITS = POLICY.is_(Policy.Exit)
REUSES = POLICY.is_(Policy.Reuse)
