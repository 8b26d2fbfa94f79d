"""JobState (§4.2): one inference job from `enqueue` to its end.

The way of a job is a line: Created -> Admitted -> Preparing -> Queued -> Submitted -> Completing -> Succeeded. Before
the device has it, a job that must stop simply Fails and gives back what it took. From `infer()` on it cannot: a
cancel only marks it (CancelRequested) and `Wait()` is still made; a fault parks it in Quarantined, together with its
memory, until a reset has been confirmed (§5.1-7, §9.1). Whether the client has its answer is not said here: that is
the answer's table.
"""

from machines.expr import State
from machines.table import Ignore, Row, Table


class JobState(State):
    Absent, Created, Admitted, Preparing, Queued, Submitted, Completing = range(7)
    Succeeded, Failed, CancelRequested, Quarantined = range(7, 11)


S = JobState

JOB = Table(
    "job",
    JobState,
    initial=S.Absent,
    final={S.Succeeded, S.Failed},
    pseudo={S.Absent},
    cites="§4.2",
    about="one inference job",
    rows=[
        Row(S.Absent, "arrive", S.Created, cites="§6.2"),
        Row(S.Created, "admit", S.Admitted, cites="§6.2"),
        Row(S.Admitted, "lease", S.Preparing, cites="§6.2"),
        Row(S.Preparing, "prepared", S.Queued, cites="§6.3"),
        Row(S.Queued, "submit", S.Submitted, cites="§6.4"),
        Row(S.Queued, "submit_stopped", S.CancelRequested, cites="§5.1-7"),
        Row((S.Submitted, S.CancelRequested), "complete", S.Completing, cites="§6.5"),
        Row(S.Completing, "succeed", S.Succeeded, cites="§6.5"),
        Row((S.Created, S.Admitted, S.Preparing, S.Queued, S.Completing), "fail", S.Failed, cites="§6.2"),
        Row(
            (S.Queued, S.Submitted, S.CancelRequested, S.Completing),
            "quarantine",
            S.Quarantined,
            cites="§9.1",
        ),
        Row(S.Quarantined, "reap", S.Failed, cites="§5.1-8"),
        Row(S.Submitted, "cancel", S.CancelRequested, cites="§5.1-7"),
        Ignore(
            (S.Created, S.Admitted, S.Preparing, S.Queued, S.Completing),
            "cancel",
            why="the answer is claimed; the job's next step reads that",
        ),
        Row((S.Succeeded, S.Failed), "forget", S.Absent, cites="§5.1-3"),
    ],
)
