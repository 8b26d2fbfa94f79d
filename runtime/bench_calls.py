"""Do two sides make the same CalRT calls? Asked of the device's trace before a ratio of their times is printed.

Theory. A time is only worth comparing when the work is the same. So the calls of both sides are laid beside each other:
name, text argument, numbers and result must be equal. Three things may differ, and each is declared here. What one side
exists to show is left out (`BASE_ALONE`, `OURS_ALONE`). CalRT's numbers of sequences and jobs are chosen by whoever
drives it, so they are numbered anew in the order in which they appear. And the executor answers a job before it undoes
its slices, which may then run beside the next job's admission: an undo is compared at the end of its own job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from runtime.simulator import Call, Simulator

__all__ = ["BASE_ALONE", "OURS_ALONE", "NotTheSame", "calls_since", "same_calls", "same_jobs"]

# The baseline makes these and we do not, they are what is measured; and the reverse (the size is checked, FI09; the KV
# manager is asked first, §7).
BASE_ALONE = {"create_input", "create_output", "map_buf", "destroy"}
OURS_ALONE = {"tensor_size", "can_allocate"}

SEQUENCES = {"apply", "bind_sequence"}  # calls whose a is CalRT's number of a sequence
JOBS = {"infer", "wait"}  # and those whose a is that of a job

Comparable = tuple[str, str, int, int, int]


class NotTheSame(RuntimeError):
    """The two sides did not do the same, so their times must not be compared."""


def calls_since(simulator: Simulator, number: int) -> list[Call]:
    """Every call from this number on. Raises NotTheSame when the trace does not reach back so far."""
    calls = list(simulator.trace(number))
    if calls and calls[0].number != number:
        raise NotTheSame(f"the trace begins at call {calls[0].number}, and {number} is asked for: it is too short")
    return calls


def same_calls(ours: list[Call], base: list[Call]) -> None:
    """One call of the model on each side, the numbers of sequences and jobs included. A second Apply is left out.

    Raises NotTheSame."""
    mine, theirs = _once(ours), _once(base)
    if mine != theirs:
        raise NotTheSame(f"different CalRT calls: {mine} and {theirs}")


def _once(calls: list[Call]) -> list[Comparable]:
    kept: list[Comparable] = []
    for c in _shared(calls):
        again = c.call == "apply" and any(k[0] == "apply" for k in kept)
        if not again:
            kept.append((c.call, c.text, c.a, c.b, c.result))
    return kept


def _shared(calls: Iterable[Call]) -> Iterator[Call]:
    return (c for c in calls if c.call not in BASE_ALONE | OURS_ALONE)


# -- many jobs, one after the other ------------------------------------------------------------------------------------


def same_jobs(
    ours: Iterable[Call], base: Iterable[Call], *, ours_commits: bool = True, base_commits: bool = True
) -> None:
    """Job by job, each made by one client that waits for its answer. commits: that side applies the length once more
    when a job is done; where only one of them does, its second Apply is left out.

    Raises NotTheSame with the first job that differs."""
    both = ours_commits and base_commits
    mine, theirs = (_renamed(_jobs(calls, c), both) for calls, c in ((ours, ours_commits), (base, base_commits)))
    for i, (a, b) in enumerate(zip_longest(mine, theirs)):
        if a != b:
            raise NotTheSame(f"different CalRT calls in job {i}: {a} and {b}")


def _jobs(calls: Iterable[Call], commits: bool) -> list[list[Call]]:
    """Cut where a job begins: at its first Apply. Apply to 0, which removes a sequence, stands alone."""
    jobs: list[list[Call]] = []
    of_input: dict[int, list[Call]] = {}  # the latest job on each input
    is_open = False
    for c in _shared(calls):
        begins = c.call == "apply" and not is_open
        if begins or not jobs:
            jobs.append([])
        if c.call == "apply":
            is_open = begins and commits and c.b != 0
        if c.call == "bind_sequence":
            of_input[c.handle] = jobs[-1]
        of_input.get(c.handle, jobs[-1]).append(c) if c.call == "undo_slice" else jobs[-1].append(c)
    return jobs


class _Names:
    """CalRT's numbers as the how-manieth of their kind they are. A sequence that was removed is another one afterwards,
    also under the same number."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], int] = {}
        self._made = dict.fromkeys(("sequence", "job"), 0)

    def of(self, kind: str, number: int) -> int:
        if (kind, number) not in self._known:
            self._known[kind, number] = self._made[kind]
            self._made[kind] += 1
        return self._known[kind, number]

    def removed(self, number: int) -> None:
        self._known.pop(("sequence", number), None)


def _renamed(jobs: list[list[Call]], with_commit: bool) -> list[list[Comparable]]:
    names = _Names()
    return [[_comparable(c, names) for c in job if with_commit or not _is_commit(c, job)] for job in jobs]


def _is_commit(call: Call, job: list[Call]) -> bool:
    return call.call == "apply" and call is not job[0]


def _comparable(c: Call, names: _Names) -> Comparable:
    kind = "sequence" if c.call in SEQUENCES else "job" if c.call in JOBS else ""
    a = names.of(kind, c.a) if kind else c.a
    if c.call == "apply" and c.b == 0:
        names.removed(c.a)
    return c.call, c.text, a, c.b, c.result
