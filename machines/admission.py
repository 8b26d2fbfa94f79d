"""Admission mode (§8): what the fault controller lets in.

Open; Reduced after a transient error (one job at a time, until the back-off timer); Paused for a planned switch or a
lifecycle error; Rejected(generation) for a bad artifact; Stopped for a device error. A stricter mode is never
loosened by a milder event; only a passed golden run opens again.
"""

from machines.expr import State
from machines.table import Ignore, Row, Table


class AdmissionMode(State):
    Open, Reduced, Paused, Rejected, Stopped = range(5)


S = AdmissionMode

ADMISSION = Table(
    "admission",
    AdmissionMode,
    initial=S.Paused,
    final={S.Open, S.Stopped},
    cites="§8",
    about="what is let in, decided by the fault controller",
    rows=[
        Row((S.Paused, S.Rejected, S.Stopped), "open", S.Open, cites="§9.2"),
        Row(S.Open, "reduce", S.Reduced, cites="§8"),
        Ignore((S.Reduced, S.Paused, S.Rejected, S.Stopped), "reduce", why="already as strict"),
        Row(S.Reduced, "relax", S.Open, cites="§8"),
        Row((S.Open, S.Reduced), "pause", S.Paused, cites="§8"),
        Ignore((S.Paused, S.Rejected, S.Stopped), "pause", why="already as strict"),
        Row((S.Open, S.Reduced, S.Paused), "reject", S.Rejected, cites="§8"),
        Ignore((S.Rejected, S.Stopped), "reject", why="already as strict"),
        Row((S.Open, S.Reduced, S.Paused, S.Rejected), "stop", S.Stopped, cites="§8"),
        Ignore(S.Stopped, "stop", why="already stopped"),
    ],
)
