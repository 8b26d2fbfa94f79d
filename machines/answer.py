"""The answer to one job: claimed once, by whoever comes first.

Success, cancel, a deadline, an error, a reset and a shutdown compete for one claim. A job whose answer is no longer
Pending has nothing to deliver: that *is* the `cancel_requested` flag of §4.2, and there is no other.
"""

from machines.expr import State
from machines.table import Ignore, Row, Table


class AnswerState(State):
    Pending, Ok, Cancelled, DeadlineExceeded, Error = range(5)


S = AnswerState
CLAIMED = (S.Ok, S.Cancelled, S.DeadlineExceeded, S.Error)

ANSWER = Table(
    "answer",
    AnswerState,
    initial=S.Pending,
    final=CLAIMED,
    cites="§4.2",
    about="what the client of one job has been told",
    rows=[
        Row(S.Pending, "deliver", S.Ok, cites="§6.5"),
        Row(S.Pending, "cancel", S.Cancelled, cites="§5.1-7"),
        Row(S.Pending, "expire", S.DeadlineExceeded, cites="§9.1"),
        Ignore(
            (S.Cancelled, S.DeadlineExceeded, S.Error), "expire", why="the first claim wins; the deadline still acts"
        ),
        Row(S.Pending, "fail", S.Error, cites="§8"),
        Ignore((S.Cancelled, S.DeadlineExceeded, S.Error), "fail", why="the first claim wins"),
        Row(CLAIMED, "forget", S.Pending, cites="§4.2"),
    ],
)
