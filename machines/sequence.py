"""A sequence's KV (a hole in the specification: KV belongs to a sequence across jobs, not to a job).

Empty: the device holds nothing for it. Live: it holds exactly the committed length. Busy: one job, or a removal, owns
it. Unknown: what the device holds is not known (§7); no job until a new generation. Lost: it belonged to an older
generation; it cannot be continued, only begun again with a prefill.
"""

from machines.expr import State
from machines.table import Ignore, Reject, Row, Table


class SequenceState(State):
    Empty, Live, Busy, Unknown, Lost = range(5)


S = SequenceState

SEQUENCE = Table(
    "sequence",
    SequenceState,
    initial=S.Empty,
    final={S.Empty, S.Live, S.Lost},
    cites="§7",
    about="the KV of one sequence",
    rows=[
        Row((S.Empty, S.Lost), "prefill", S.Busy, cites="§6.2"),
        Row(S.Live, "extend", S.Busy, cites="§6.2"),
        Row(S.Busy, "commit", S.Live, cites="§5.1-6"),
        Row(S.Busy, "undo_prefill", S.Empty, cites="§7"),
        Row(S.Busy, "undo_extend", S.Live, cites="§7"),
        Row(S.Busy, "unknown", S.Unknown, cites="§6.5"),
        Row((S.Live, S.Busy, S.Unknown), "lose", S.Lost, cites="§9.2"),
        Ignore((S.Empty, S.Lost), "lose", why="it holds no KV of the ending generation"),
        Row(S.Live, "remove", S.Busy, cites="§3"),
        Row(S.Busy, "removed", S.Empty, cites="§3"),
        Row(S.Lost, "discard", S.Empty, cites="§3"),
        Ignore(S.Empty, "discard", why="there is nothing to remove"),
        Reject(S.Busy, "discard", "Busy", why="a job or a removal owns the sequence"),
        Reject(S.Unknown, "discard", "KvUnknown", why="only a new generation ends the doubt about its KV"),
    ],
)
