"""Buffer slot (§4.2, §5.1): the memory that one job shares with the device.

A slot is InFlight from the begin of `infer()`, not from its return: the device may already be running. It comes back
to Free only through Returning, where slices are undone and checked (FI15), or as a rebuilt slot of a new generation.
"""

from machines.expr import State
from machines.table import Ignore, Row, Table


class SlotState(State):
    Free, Leased, InFlight, Returning, Quarantined = range(5)


S = SlotState

SLOT = Table(
    "slot",
    SlotState,
    initial=S.Free,
    final={S.Free, S.Quarantined},
    cites="§5.1-3",
    about="the buffer slot that a job holds; Free: it holds none",
    rows=[
        Row(S.Free, "lease", S.Leased, cites="§6.2"),
        Row(S.Leased, "submit", S.InFlight, cites="§6.4"),
        Row(S.Leased, "give_back", S.Returning, cites="§6.2"),
        Row(S.InFlight, "refused", S.Returning, cites="FI05"),
        Row(S.InFlight, "done", S.Returning, cites="§6.5"),
        Row(S.Returning, "release", S.Free, cites="§6.5"),
        Row((S.Leased, S.InFlight, S.Returning), "quarantine", S.Quarantined, cites="§5.1-8"),
        Row(S.Quarantined, "rebuild", S.Free, cites="§5.1-8"),
        Row(S.Quarantined, "forget", S.Free, cites="§5.1-8"),
        Ignore(S.Free, "forget", why="the job holds no slot"),
    ],
)
