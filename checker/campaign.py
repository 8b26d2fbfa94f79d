"""A campaign: a rulebook's runs, what each was declared to show, and whether together they show it.

Theory. A run is declared with what it must end in: PROVED, or REFUTED by a named property (a policy under a fact that
breaks it). The campaign is PROVED when every run ends as declared, every property is evaluated in at least one run that
is to be PROVED and holds in all of those, every `sometimes` is reached in one of them, and every row and rule fired in
them. Part of a campaign (`--run`) is judged the same way, except that coverage is not judged and what it did not
evaluate is UNDETERMINED. One ad-hoc scope (`--scope`) is a campaign of one run; what never fired in it is only listed,
since a small scope may well leave something out.

Runs are independent: they go in parallel, the biggest first, and are reported in declared order.
"""

from __future__ import annotations

import enum
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Protocol

from attrs import evolve, field, frozen

from checker import coverage, liveness, native
from checker.coverage import Coverage
from checker.engines import Search, search
from checker.exits import Exit
from checker.judge import Judged, Judgement, judge, kind_of, properties_of
from checker.model import Model, build
from checker.result import Exploration, Finding, Progress, ProgressCallback, Verdict
from machines.expr import ExprError
from machines.rulebook import LeadsTo, Property, Rulebook, Run
from machines.table import RulebookError

TIERS = ("fast", "nightly")
NAMED_RUNS = 4  # a note names no more runs than that
SUGGESTED_RUNS = 8


class SelectionError(ValueError):
    """No run was selected: one line that says what there is."""


class Selection(enum.Enum):
    """Which runs are judged together: the whole campaign, part of it, or one scope from the command line."""

    ALL = "campaign"
    PART = "part of the campaign"
    SCOPE = "one scope"


# -- what to run ----------------------------------------------------------------------------------------------------
@frozen(eq=False)
class Task:
    run: Run
    model: Model

    @property
    def bits(self) -> float:
        """Size of the unpruned state space, to start the biggest first."""
        return sum(math.log2(s.hi + 1) for s in self.model.slots)


@frozen(eq=False)
class Plan:
    book: Rulebook
    selection: Selection
    tasks: tuple[Task, ...]

    @property
    def what(self) -> str:
        if self.selection is Selection.PART:
            return f"{len(self.tasks)} of {len(self.book.runs)} runs"
        return f"{len(self.tasks)} run{'s' * (len(self.tasks) != 1)}"


def plan_campaign(book: Rulebook, tier: str = "fast", patterns: Sequence[str] = ()) -> Plan:
    """The declared runs: all of a tier (nightly: every run), or those whose names match. Raises SelectionError."""
    runs = list(book.runs) or [Run("default", liveness=_has_leads_to(book), about="the default scope")]
    if patterns:
        chosen = [r for r in runs if any(fnmatchcase(r.name, p) for p in patterns)]
        for p in patterns:
            if not any(fnmatchcase(r.name, p) for r in runs):
                raise SelectionError(f"no run is named {p!r}; {_nearest(book, p, [r.name for r in runs])}")
    else:
        chosen = [r for r in runs if tier == "nightly" or r.tier == tier]
        if not chosen:
            raise SelectionError(f"{book.name} has no run of tier {tier}")
    selection = Selection.PART if patterns and len(chosen) < len(runs) else Selection.ALL
    return Plan(book, selection, tuple(_task(book, r) for r in chosen))


def _nearest(book: Rulebook, pattern: str, names: Sequence[str]) -> str:
    if len(names) <= SUGGESTED_RUNS:
        return f"{book.name} has {', '.join(names)}"
    near = get_close_matches(pattern, names, SUGGESTED_RUNS, cutoff=0.0)
    return f"the nearest of the {len(names)} of {book.name} are {', '.join(near)}"


def plan_scope(book: Rulebook, values: Mapping[str, int], with_liveness: bool = True) -> Plan:
    """One ad-hoc run. Raises RulebookError for a value out of range or an unknown name."""
    run = Run("scope", values, liveness=with_liveness and _has_leads_to(book))
    return Plan(book, Selection.SCOPE, (_task(book, run),))


def _has_leads_to(book: Rulebook) -> bool:
    return any(isinstance(p, LeadsTo) for p in book.properties)


def _task(book: Rulebook, run: Run) -> Task:
    scope = book.scope(run.values, run.without)
    try:
        return Task(run, build(scope))
    except (RulebookError, MemoryError):
        raise
    except (Exception, SystemExit) as e:  # a function of the user's, such as a Map's
        what = e if isinstance(e, ExprError) else f"{type(e).__name__}: {' '.join(str(e).split())}"
        raise RulebookError(f"rulebook {book.name} in run {run.name}", [f"it cannot be built: {what}"]) from e


# -- running --------------------------------------------------------------------------------------------------------
@frozen(eq=False)
class RunResult:
    """One run with its verdict. findings: by property id, safety and liveness together."""

    run: Run
    model: Model
    exploration: Exploration
    judged: Mapping[str, Judged]
    findings: Mapping[str, Finding]
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        if self.findings:
            return Verdict.REFUTED
        undetermined = any(j.judgement is Judgement.UNDETERMINED for j in self.judged.values())
        return Verdict.UNDETERMINED if undetermined or not self.exploration.complete else Verdict.PROVED

    @property
    def as_declared(self) -> Verdict:
        """PROVED when the run ended as it was declared to, REFUTED when it did not, UNDETERMINED when nobody knows."""
        if self.run.expect == "PROVED":
            return self.verdict
        if self.run.by in self.findings:
            return Verdict.PROVED
        return Verdict.REFUTED if self.exploration.complete else Verdict.UNDETERMINED


class Board(Protocol):
    """Where runs report that they start, go on, and end."""

    def started(self, task: Task) -> ProgressCallback: ...

    def finished(self, result: RunResult) -> None: ...


class _Cancelled(Exception):
    """Another run failed, or the user pressed Ctrl-C: this one need not go on."""


def execute(plan: Plan, wanted: Search, board: Board, workers: int = 2) -> list[RunResult]:
    """Run all tasks; results in declared order. Raises EngineError; KeyboardInterrupt stops the other runs too."""
    cancelled = threading.Event()
    biggest_first = sorted(plan.tasks, key=lambda t: -t.bits)
    with ThreadPoolExecutor(workers, thread_name_prefix="run") as pool:
        futures = {t.run.name: pool.submit(_run, t, wanted, board, cancelled) for t in biggest_first}
        try:
            wait(futures.values(), return_when=FIRST_EXCEPTION)
            _raise_first(futures.values())
        finally:
            cancelled.set()
            pool.shutdown(wait=False, cancel_futures=True)
            while wait(futures.values(), timeout=0.1).not_done:  # we are leaving early; they remove their files
                native.end_children()
    return [futures[t.run.name].result() for t in plan.tasks]


def _raise_first(futures: Iterable[Future[RunResult]]) -> None:
    for f in futures:
        if f.done() and not f.cancelled() and (error := f.exception()) is not None:
            raise error


def _run(task: Task, wanted: Search, board: Board, cancelled: threading.Event) -> RunResult:
    report = _stoppable(board.started(task), cancelled)
    try:
        result = _search_and_judge(task, evolve(wanted, with_graph=task.run.liveness, progress=report))
    except MemoryError:
        result = _out_of_memory(task, wanted)
    board.finished(result)
    return result


def _stoppable(report: ProgressCallback, cancelled: threading.Event) -> Callable[[Progress], None]:
    def callback(progress: Progress) -> None:
        if cancelled.is_set():
            raise _Cancelled
        report(progress)

    return callback


def _search_and_judge(task: Task, wanted: Search) -> RunResult:
    found = search(task.model, wanted)
    exploration = found.exploration
    lives = liveness.check(found.graph) if found.graph is not None and exploration.complete else None
    findings = dict(exploration.findings)
    findings |= {k: v for k, v in (lives or {}).items() if isinstance(v, Finding)}
    if lives is None and task.run.liveness:
        lives = {}
    return RunResult(task.run, task.model, exploration, judge(task.model, exploration, lives), findings, found.note)


def _out_of_memory(task: Task, wanted: Search) -> RunResult:
    nothing = Exploration(
        engine=wanted.engine, states=0, transitions=0, depth=0, fired=(0,) * len(task.model.instances),
        cells=frozenset(), reached=frozenset(), findings={}, complete=False, stopped="memory exhausted", seconds=0.0,
    )  # fmt: skip
    return RunResult(task.run, task.model, nothing, judge(task.model, nothing, {}), {})


# -- judging all runs together --------------------------------------------------------------------------------------
@frozen
class Summary:
    """One property over the campaign. proved, judged: in how many of the runs that are to be PROVED (proved of those to
    which it applies); refutes: the runs that it refuted as declared."""

    prop: Property
    judgement: Judgement
    proved: int
    judged: int
    refutes: tuple[str, ...]
    note: str = ""


@frozen(eq=False)
class Campaign:
    plan: Plan
    results: Sequence[RunResult]
    seconds: float = 0.0
    summaries: tuple[Summary, ...] = field(init=False)
    coverage: Coverage = field(init=False)
    exit: Exit = field(init=False)
    reasons: tuple[str, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        put = object.__setattr__
        put(self, "summaries", tuple(_summary(self, p) for p in properties_of(self.plan.book)))
        put(self, "coverage", _coverage(self))
        put(self, "exit", _decide(self)[0])
        put(self, "reasons", _decide(self)[1])

    @property
    def to_prove(self) -> list[RunResult]:
        return [r for r in self.results if r.run.expect == "PROVED"]


def _summary(campaign: Campaign, prop: Property) -> Summary:
    seen = [(r, r.judged[prop.id].judgement) for r in campaign.to_prove]
    in_runs: dict[Judgement, list[str]] = {j: [r.run.name for r, k in seen if k is j] for j in Judgement}
    judgement, note = _over_runs(prop, in_runs, campaign.plan.selection)
    note = note or next((n for r, k in seen if k is judgement and (n := r.judged[prop.id].note)), "")
    refutes = tuple(r.run.name for r in campaign.results if r.run.expect == "REFUTED" and _refuted_by(r, prop))
    applies = len(seen) - len(in_runs[Judgement.NOT_APPLICABLE])
    return Summary(prop, judgement, len(in_runs[Judgement.PROVED]), applies, refutes, note)


def _refuted_by(result: RunResult, prop: Property) -> bool:
    return result.run.by == prop.id and prop.id in result.findings


def _over_runs(prop: Property, runs: Mapping[Judgement, list[str]], selection: Selection) -> tuple[Judgement, str]:
    """One judgement from those of the runs that are to be PROVED."""
    if runs[Judgement.REFUTED]:
        return Judgement.REFUTED, f"in {_some(runs[Judgement.REFUTED])}"
    if runs[Judgement.UNDETERMINED] and not (prop.kind == "sometimes" and runs[Judgement.PROVED]):
        return Judgement.UNDETERMINED, ""
    if runs[Judgement.PROVED]:
        return Judgement.PROVED, ""
    if runs[Judgement.NOT_REACHED]:
        where = _some(runs[Judgement.NOT_REACHED])
        judgement = Judgement.UNDETERMINED if selection is Selection.PART else Judgement.REFUTED
        return judgement, f"reached in no state of {where}"
    if runs[Judgement.VACUOUS]:
        return Judgement.UNDETERMINED, "vacuous: its trigger holds in no state of any run"
    if runs[Judgement.NOT_EVALUATED]:
        return Judgement.UNDETERMINED, "evaluated in no run"
    if not runs[Judgement.NOT_APPLICABLE]:
        return Judgement.UNDETERMINED, ""  # no run here is to be PROVED; `_decide` says so once
    if selection is Selection.ALL:
        return Judgement.UNDETERMINED, "applies to no run"
    return Judgement.NOT_APPLICABLE, ""


def _some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - NAMED_RUNS
    return ", ".join(names[:NAMED_RUNS]) + (f" and {more} more" if more > 0 else "")


def _coverage(campaign: Campaign) -> Coverage:
    runs = [(r.model, r.exploration) for r in campaign.to_prove]
    unfinished = [r.run.name for r in campaign.to_prove if not r.exploration.complete]
    why_not = f"{unfinished[0]} did not end" if unfinished else "" if runs else "no run here is to hold"
    if campaign.plan.selection is Selection.SCOPE:
        return coverage.of_scope(*runs[0], why_not or "this is one scope")
    if campaign.plan.selection is Selection.PART:
        why_not = why_not or "this is only part of the campaign"
    return coverage.of_campaign(campaign.plan.book, runs, why_not)


def _decide(campaign: Campaign) -> tuple[Exit, tuple[str, ...]]:
    """The exit code, with every reason for it. A refutation outweighs a bound, and that outweighs coverage."""
    refuted = [_why_refuted(r) for r in campaign.results if r.as_declared is Verdict.REFUTED]
    refuted += [
        f"sometimes {s.prop.id}: {s.note}"
        for s in campaign.summaries
        if s.judgement is Judgement.REFUTED and s.prop.kind == "sometimes"
    ]
    if refuted:
        return Exit.REFUTED, tuple(refuted)
    open_ = [
        f"run {r.run.name}: {r.exploration.stopped}" for r in campaign.results if r.as_declared is Verdict.UNDETERMINED
    ]
    open_ += [
        f"{kind_of(s.prop)} {s.prop.id}: {s.note}" for s in campaign.summaries if s.judgement is Judgement.UNDETERMINED
    ]
    if not campaign.to_prove:
        open_ = [f"no run here is to hold, so nothing was proved ({campaign.plan.what})"]
    if open_:
        return Exit.UNDETERMINED, tuple(open_)
    if campaign.coverage.judged and campaign.coverage.problems:
        return Exit.NOT_COVERED, tuple(campaign.coverage.problems)
    return Exit.PROVED, ()


def _why_refuted(result: RunResult) -> str:
    run = result.run
    if run.expect == "REFUTED":
        also = f"; refuted instead: {', '.join(result.findings)}" if result.findings else ""
        return f"run {run.name}: declared to be refuted by {run.by}, but {run.by} is not violated there{also}"
    return f"run {run.name}: violated: " + ", ".join(f"{f.prop} ({f.length} steps)" for f in result.findings.values())
