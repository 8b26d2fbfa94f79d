"""Who takes steps. The executor's actors are weakly fair, for themselves and for each job; the environment never is."""

from machines.rulebook import Actor

CLIENT = Actor("client", "the host: arrives, cancels, removes, switches, closes, as it likes", environment=True)
ADMISSION = Actor("admission", "takes a client's job to the submit queue")
SUBMITTER = Actor("submitter", "the only thread that calls infer()")
COMPLETION = Actor("completion", "the wait agents: Wait, convert, commit, deliver")
UNWIND = Actor("unwind", "whichever of these gives a job's slot and KV back")
LIFECYCLE = Actor("lifecycle", "drain, reset, configure, golden, reap")
CLOCK = Actor("clock", "observes that a deadline, a grace period or a back-off has passed")
RECORDS = Actor(
    "records", "frees the record of a finished job that the device no longer touches", environment=True, observes=True
)
DEVICE = Actor("device", "the adversary: runs, finishes, fails, hangs, finishes late, writes late", environment=True)

ACTORS = (CLIENT, ADMISSION, SUBMITTER, COMPLETION, UNWIND, LIFECYCLE, CLOCK, RECORDS, DEVICE)
