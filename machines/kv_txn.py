"""KvTxnState (§7): one reservation of KV for one job.

A reservation may be rolled back only while the device cannot have run. Once `infer()` may have started it, the only
ways are Committed, after the device completed and the output was validated (§5.1-6), and Unknown.
"""

from machines.expr import State
from machines.table import Ignore, Row, Table


class KvTxnState(State):
    Absent, Reserved, Submitted, Committed, RolledBack, Unknown = range(6)


S = KvTxnState

KV_TXN = Table(
    "kv_txn",
    KvTxnState,
    initial=S.Absent,
    final={S.Committed, S.RolledBack, S.Unknown},
    pseudo={S.Absent},
    cites="§7",
    about="one job's KV reservation",
    rows=[
        Row(S.Absent, "reserve", S.Reserved, cites="§7"),
        Row(S.Reserved, "submit", S.Submitted, cites="§7"),
        Row(S.Submitted, "commit", S.Committed, cites="§5.1-6"),
        Row(S.Reserved, "rollback", S.RolledBack, cites="§7"),
        Row((S.Reserved, S.Submitted), "unknown", S.Unknown, cites="§7"),
        Row((S.Committed, S.RolledBack, S.Unknown), "forget", S.Absent, cites="§7"),
        Ignore(S.Absent, "forget", why="the job ended before it had reserved anything"),
    ],
)
