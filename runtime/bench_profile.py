"""Where a token's time goes in the executor, and who computed in it.

Theory. Nothing is put into the code that is measured. Three sources are read beside it: the milestones that each job
carries anyway and its steps in the journal, with what its client saw around them; what the kernel says of each thread,
its time on a processor and how often it went to sleep (a hand-off wakes one); the calls in the device's trace, whose
times are without the binding above them. One more run watches the layers from outside (`bench_layers`); it is made
last, because it costs something.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from itertools import pairwise
from pathlib import Path

import numpy as np
from attrs import fields_dict, frozen

from runtime.bench_layers import layers_of
from runtime.bench_sides import Client, Side, Token, still, times_ns
from runtime.journal import Journal
from runtime.status import MILESTONES, JobTimings

__all__ = ["Part", "Profile", "Steps", "Thread", "between", "legs", "profiled", "steps_of", "threads_now"]

AWAKE = "awake"
COMMON = 0.8  # of the timelines have a moment that is shown
PROMPT = tuple(range(16))
MEASURED = tuple(name for name, a in fields_dict(JobTimings).items() if a.metadata.get("measures"))
TASKS = Path("/proc/self/task")


@frozen
class Part:
    """Something that happens `times` a token and takes `us` of it in all: the median, or the mean where it is counted;
    None where only the number is known. us_p99: None where there is no distribution."""

    what: str
    times: float
    us: float | None
    us_p99: float | None = None


@frozen
class Profile:
    """title: of what; us: how long that takes, the median. legs: from one milestone or step to the next; their sum is
    about that. measured: what the job says that it took in between. threads: on a processor, and how often each began
    to wait. calls: inside CalRT. layers: steps of the rulebook, and the CPU time of the layers, each without the
    others."""

    title: str
    us: float
    legs: tuple[Part, ...]
    measured: tuple[Part, ...] = ()
    threads: tuple[Part, ...] = ()
    calls: tuple[Part, ...] = ()
    layers: tuple[Part, ...] = ()


def profiled(side: Side, tokens: int, title: str) -> Profile:
    """Of so many tokens of an executor's client, after a prompt."""
    client = side.model
    assert isinstance(client, Client)
    side.forget()
    side.prefill(PROMPT)
    client.tokens = []
    side.begin()
    journal = client.executor.journal
    with still():  # what the collector takes now is nobody's
        steps, before = journal.total, threads_now()
        times = times_ns(tokens, side.decode)
        side.settle()
        steps, after = journal.total - steps, threads_now()
    kept, client.tokens = client.tokens, None
    return Profile(
        title, float(np.median(times)) / 1_000, tuple(legs(kept, steps_of(journal))), tuple(_measured(kept)),
        tuple(_threads(before, after, tokens)), tuple(_calls(side, tokens)),
        tuple(_layers(side, client, tokens, steps)),
    )  # fmt: skip


# -- milestones --------------------------------------------------------------------------------------------------------


Steps = Mapping[int, Mapping[str, int]]
"""By job: when each rule was fired for it, on the monotonic clock (us)."""


def steps_of(journal: Journal) -> Steps:
    """As far as the journal reaches back; the oldest job may be there by half."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for entry in journal.entries():
        if isinstance(entry.element, tuple):  # of a job: its number and its sequence's
            found[entry.element[0]][entry.rule] = entry.at_us
    return dict(list(found.items())[1:])


def legs(tokens: Items[Token], steps: Steps) -> Iterator[Part]:
    """From one milestone or step of a token to the next, until its client is awake; tokens that the journal has
    forgotten are left out."""
    known = [token for token in tokens if token.job_id in steps] or tokens
    return between([dict(_marks(token, steps.get(token.job_id, {}))) for token in known], AWAKE)


def between(timelines: Items[Mapping[str, float]], last: str) -> Iterator[Part]:
    """From one moment to the next, in the order of their medians, until `last`. timelines: by name when each moment was
    (us). Moments that few of them have are left out, and then timelines that lack one."""
    often = Counter(name for timeline in timelines for name in timeline)
    kept = {name for name, times in often.items() if times >= COMMON * len(timelines)}
    whole = [timeline for timeline in timelines if kept <= timeline.keys()]
    at = {name: np.array([timeline[name] for timeline in whole]) for name in kept if whole}
    names = sorted(at, key=lambda name: (float(np.median(at[name])), name))
    for first, then in pairwise(names[: names.index(last) + 1] if last in names else ()):
        spent = at[then] - at[first]
        yield Part(f"-> {then}", 1.0, float(np.median(spent)), float(np.percentile(spent, 99)))


def _marks(token: Token, steps: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    """(milestone or rule, us since its client asked)."""
    for rule, fired_us in steps.items():
        yield rule, fired_us - token.asked_ns / 1_000
    yield "asked", 0.0
    for name in MILESTONES:
        if (at_us := token.timings.at_us(name)) is not None:
            yield name, at_us - token.asked_ns / 1_000
    yield AWAKE, (token.awake_ns - token.asked_ns) / 1_000


def _measured(tokens: list[Token]) -> Iterator[Part]:
    for name in MEASURED:
        values = [getattr(token.timings, name) for token in tokens]
        if None not in values:
            us = np.array(values, np.float64) * (1 if name.endswith("_us") else 1_000)
            what = name.removesuffix("_us").removesuffix("_ms")
            yield Part(what, 1.0, float(np.median(us)), float(np.percentile(us, 99)))


# -- threads -----------------------------------------------------------------------------------------------------------


@frozen
class Thread:
    """What the kernel says of one."""

    name: str
    cpu_ns: int
    sleeps: int


def threads_now() -> dict[int, Thread]:
    """By the kernel's number. Those that Python did not make are called native."""
    names = {t.native_id: t.name for t in threading.enumerate()}
    found: dict[int, Thread] = {}
    for task in TASKS.iterdir():
        try:
            cpu_ns = int((task / "schedstat").read_text().split()[0])
            status = (task / "status").read_text()
        except OSError:  # it has ended
            continue
        sleeps = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("voluntary_ctxt_switches"))
        found[int(task.name)] = Thread(names.get(int(task.name), "native"), cpu_ns, sleeps)
    return found


def _threads(before: dict[int, Thread], after: dict[int, Thread], tokens: int) -> Iterator[Part]:
    """Those that did anything, the busiest first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for number, now in after.items():
        then = before.get(number, Thread(now.name, 0, 0))
        name = now.name.rstrip(" 0123456789")  # agents of one kind are one row
        sums[name][0] += (now.cpu_ns - then.cpu_ns) / 1_000 / tokens
        sums[name][1] += (now.sleeps - then.sleeps) / tokens
    for name, (us, sleeps) in sorted(sums.items(), key=lambda item: -item[1][0]):
        if us >= 0.5 or sleeps >= 0.01:
            yield Part(name, sleeps, us)


# -- calls and steps ---------------------------------------------------------------------------------------------------


def _calls(side: Side, tokens: int) -> Iterator[Part]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for call in side.calls():
        sums[call.call][0] += 1
        sums[call.call][1] += call.end_ns - call.begin_ns
    for name, (count, ns) in sums.items():
        yield Part(name, count / tokens, ns / 1_000 / tokens)


def _layers(side: Side, client: Client, tokens: int, steps: int) -> Iterator[Part]:
    def work() -> None:
        times_ns(tokens, side.decode)
        side.settle()

    yield Part("steps of the rulebook", steps / tokens, None)
    for name, layer in layers_of(client.executor, work).items():
        yield Part(name, layer.times / tokens, layer.cpu_ns / 1_000 / tokens)
