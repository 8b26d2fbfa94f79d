"""Closing the executor (FI13): Open until `close()`, Closing while what is in flight ends, then Closed."""

from machines.expr import State
from machines.table import Row, Table


class ShutdownState(State):
    Open, Closing, Closed = range(3)


S = ShutdownState

SHUTDOWN = Table(
    "shutdown",
    ShutdownState,
    initial=S.Open,
    final={S.Closed},
    cites="FI13",
    about="closing the executor",
    rows=[
        Row(S.Open, "close", S.Closing, cites="FI13"),
        Row(S.Closing, "closed", S.Closed, cites="FI13"),
    ],
)
