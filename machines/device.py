"""The device's life (§9.2).

Added to the drawing: start-up begins in Configuring; a planned model switch and the rollback of a rejected artifact
go from Draining straight to Configuring when the drain stayed clean; Configuring and Warming have ways out when the
configuration or the golden run fails (the next reset rung, or Failed); a rejected artifact is configured away. Failed
has no way out: leaving the process is the host's or the supervisor's decision.
"""

from machines.expr import State
from machines.table import Ignore, Row, Table


class DeviceState(State):
    Configuring, Warming, Ready, Draining, Recovering, Failed = range(6)


S = DeviceState

DEVICE = Table(
    "device",
    DeviceState,
    initial=S.Configuring,
    final={S.Ready, S.Failed},
    cites="§9.2",
    about="the life of the device under one executor",
    rows=[
        Row(S.Ready, "drain", S.Draining, cites="§9.2"),
        Ignore(S.Draining, "drain", why="it is draining already"),
        Ignore(S.Failed, "drain", why="there is nothing left to drain for"),
        Row(S.Draining, "recover", S.Recovering, cites="§9.2"),
        Row(S.Draining, "reconfigure", S.Configuring, cites="§9.2"),
        Row(S.Recovering, "reset", S.Configuring, cites="§9.2"),
        Row((S.Configuring, S.Warming), "rollback", S.Configuring, cites="§8"),
        Row(S.Configuring, "configured", S.Warming, cites="§9.2"),
        Row(S.Warming, "golden", S.Ready, cites="§9.2"),
        Row((S.Configuring, S.Warming), "retry", S.Recovering, cites="§9.2"),
        Row((S.Ready, S.Draining, S.Recovering, S.Configuring, S.Warming), "fail", S.Failed, cites="§9.2"),
        Ignore(S.Failed, "fail", why="Failed is final"),
    ],
)
