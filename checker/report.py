"""A campaign as text for people, as JSON for programs, and as JUnit XML for CI. All three read the same record."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import click

from checker.campaign import Campaign, RunResult, Selection, Summary
from checker.judge import Judgement, kind_of
from checker.result import Finding, Verdict
from machines.expr import Param
from machines.rulebook import Rulebook, Run

JSON_FORMAT = 1  # raised when the meaning of a key changes
SHOWN = ("rules", "rows", "all")
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0 cannot write these
COLOURS = {"PROVED": "green", "REFUTED": "red", "UNDETERMINED": "yellow"}


# -- text -----------------------------------------------------------------------------------------------------------
def text(campaign: Campaign, show: str = "") -> str:
    """The final report: runs, counterexamples, properties, coverage, verdict."""
    parts = [_heading(campaign), _runs(campaign)]
    parts += _shortest_counterexamples(campaign)
    parts.append(_properties(campaign))
    if show in ("rules", "all"):
        parts.append(_rule_counts(campaign))
    if show in ("rows", "all"):
        parts.append(_row_uses(campaign))
    parts.append("\n".join((*_coverage(campaign), *_notes(campaign), *_verdict(campaign))))
    return "\n\n".join(parts)


def _heading(campaign: Campaign) -> str:
    book = campaign.plan.book
    rows = sum(len(t.entries) for t in book.tables)
    parts = ((len(book.tables), "table"), (rows, "row"), (len(book.rules), "rule"))
    size = ", ".join(_plural(n, noun) for n, noun in parts) + f", {len(book.properties)} properties"
    return f"{click.style(book.name, bold=True)}: {size}; {campaign.plan.what}"


def _runs(campaign: Campaign) -> str:
    head = ("run", "verdict", "states", "transitions", "depth", "seconds", "engine", "scope")
    rows = [_run_row(campaign.plan.book, r) for r in campaign.results]
    return _columns(head, rows, right={2, 3, 4, 5}, last_width=_terminal_width())


def _run_row(book: Rulebook, r: RunResult) -> tuple[str, ...]:
    e = r.exploration
    return (
        r.run.name,
        _run_verdict(r),
        f"{e.states:,}",
        f"{e.transitions:,}",
        str(e.depth),
        f"{e.seconds:.2f}",
        e.engine,
        scope_text(book, r.run),
    )


def _run_verdict(r: RunResult) -> str:
    if r.as_declared is Verdict.REFUTED and r.run.expect == "REFUTED":
        return f"{_verdict_word(r.verdict.name)}, declared REFUTED by {r.run.by}"
    if r.run.expect == "REFUTED" and r.as_declared is Verdict.PROVED:
        return f"REFUTED by {r.run.by}, as declared"
    return _verdict_word(r.verdict.name)


def scope_text(book: Rulebook, run: Run) -> str:
    """The values of a run that differ from the defaults (a fact that holds: its name alone), and what it leaves out."""
    shown = [_value_text(p, run.values[p.name]) for p in book.params if run.values.get(p.name, p.default) != p.default]
    return " ".join([*shown, *(f"without {p}" for p in run.without)])


def _value_text(param: Param, value: int) -> str:
    is_fact = (param.lo, param.hi) == (0, 1) and param.choices is None and value == 1
    return param.name if is_fact else f"{param.name}={param.show(value)}"


def _shortest_counterexamples(campaign: Campaign) -> list[str]:
    """One trace for each property that is refuted, the shortest over all runs, with the names of the other runs. What
    was declared and what was not are told apart."""
    groups: dict[tuple[str, bool], list[tuple[RunResult, Finding]]] = {}
    for r in campaign.results:
        for f in _findings(r):
            groups.setdefault((f.prop, _is_declared(r, f)), []).append((r, f))
    blocks = []
    for group in groups.values():
        shortest, *others = sorted(group, key=lambda pair: pair[1].length)
        block = _counterexample(*shortest)
        if others:
            block += "\n  also in: " + ", ".join(f"{r.run.name} ({_plural(f.length, 'step')})" for r, f in others)
        blocks.append(block)
    return blocks


def _findings(r: RunResult) -> list[Finding]:
    """The declared refutation alone, when it came; otherwise everything that was found, the shortest first."""
    declared = [f for f in r.findings.values() if _is_declared(r, f)]
    return declared or sorted(r.findings.values(), key=lambda f: f.length)


def _is_declared(r: RunResult, f: Finding) -> bool:
    return r.run.expect == "REFUTED" and r.run.by == f.prop


def _counterexample(r: RunResult, f: Finding) -> str:
    how = "as declared, " if _is_declared(r, f) else ""
    detail = "" if f.detail == f.prop else f": {f.detail}"
    title = f"{r.run.name}: {f.prop} is REFUTED, {how}{_plural(f.length, 'step')}{detail}"
    return "\n".join([click.style(title, bold=True), *f.steps(r.model)])


def _properties(campaign: Campaign) -> str:
    head = ("property", "§", "kind", "verdict", "runs", "sentence")
    width = _terminal_width()
    rows = [_property_row(s) for s in campaign.summaries]
    return _columns(head, rows, right=set(), last_width=width)


def _property_row(s: Summary) -> tuple[str, ...]:
    note = f" [{s.note}]" if s.note and s.judgement is not Judgement.PROVED else ""
    refutes = f" [refuted in {', '.join(s.refutes)}, as declared]" if s.refutes else ""
    verdict = _verdict_word(str(s.judgement))
    return (
        s.prop.id,
        s.prop.cites or "-",
        kind_of(s.prop),
        verdict,
        f"{s.proved}/{s.judged}",
        s.prop.says + note + refutes,
    )


def _rule_counts(campaign: Campaign) -> str:
    """How often each instance fired, run by run."""
    rows = []
    for r in campaign.results:
        for i, n in zip(r.model.instances, r.exploration.fired, strict=True):
            rows.append((r.run.name, i.name, i.rule.actor.name, f"{n:,}"))
    return _columns(("run", "rule instance", "actor", "fired"), rows, right={3})


def _row_uses(campaign: Campaign) -> str:
    """Which runs used each row."""
    rows = []
    for row in (e for t in campaign.plan.book.tables for e in t.entries.values()):
        used = sum(row.id in r.exploration.cells for r in campaign.to_prove)
        rows.append((row.id, row.kind, row.target.name, f"{used}/{len(campaign.to_prove)}"))
    return _columns(("row", "kind", "target", "runs"), rows, right=set())


def _coverage(campaign: Campaign) -> list[str]:
    c = campaign.coverage
    over = "over the runs that are to hold" if campaign.plan.selection is not Selection.SCOPE else "in this scope"
    judged = "" if c.judged else f"; not judged: {c.why}"
    listed = (
        c.problems if campaign.plan.selection is Selection.SCOPE and campaign.results[0].exploration.complete else []
    )
    return [f"coverage: {c.rules}, {c.rows} fired {over}{judged}", *(f"  {line}" for line in listed)]


def _notes(campaign: Campaign) -> list[str]:
    return list(dict.fromkeys(f"note: {r.note}" for r in campaign.results if r.note))


def verdict(campaign: Campaign) -> str:
    """The last lines: which engine had to stand in, the verdict, and every reason when it is not PROVED."""
    return "\n".join((*_notes(campaign), *_verdict(campaign)))


def _verdict(campaign: Campaign) -> list[str]:
    exit_ = campaign.exit
    if not campaign.reasons:
        refuted = sum(r.run.expect == "REFUTED" for r in campaign.results)
        states = sum(r.exploration.states for r in campaign.to_prove)
        runs = _plural(len(campaign.to_prove), "run")
        more = f"; {_plural(refuted, 'run')} REFUTED as declared" if refuted else ""
        done = f"{_held(campaign)} properties hold over {states:,} states of {runs}{more} ({campaign.seconds:.1f} s)"
        return [f"{_verdict_word('PROVED')}: {done}"]
    word = _verdict_word(exit_.name) if exit_.name in COLOURS else f"NOT PROVED: {exit_.about}"
    return [f"{word} (exit {exit_.value})", *(f"  {line}" for line in campaign.reasons)]


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"


def _held(campaign: Campaign) -> int:
    return sum(s.judgement is Judgement.PROVED for s in campaign.summaries)


def _verdict_word(word: str) -> str:
    return click.style(word, fg=COLOURS[word], bold=True) if word in COLOURS else word


def _terminal_width() -> int:
    return shutil.get_terminal_size((0, 0)).columns


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]], right: set[int], last_width: int = 0) -> str:
    """Aligned columns; styled cells are measured without their style. last_width: where the last column is wrapped
    (0: not at all)."""
    wide = [max(len(click.unstyle(r[k])) for r in (head, *rows)) for k in range(len(head))]
    lines = []
    for n, row in enumerate((head, *rows)):
        cells = [_pad(cell, wide[k], k in right) for k, cell in enumerate(row)]
        line = "  ".join(cells[:-1]) + "  "
        indent = len(click.unstyle(line))
        room = last_width - indent
        last = _wrap(row[-1], room) if room >= 20 else [row[-1]]
        line += ("\n" + " " * indent).join(last)
        lines.append(click.style(line.rstrip(), underline=True) if n == 0 else line.rstrip())
    return "\n".join(lines)


def _pad(cell: str, width: int, right: bool) -> str:
    space = " " * (width - len(click.unstyle(cell)))
    return space + cell if right else cell + space


def _wrap(sentence: str, width: int) -> list[str]:
    return click.wrap_text(sentence, width).splitlines() or [""]


# -- the list of what there is ----------------------------------------------------------------------------------------
def listing(book: Rulebook) -> str:
    """Runs, parameters and properties, without running anything."""
    runs = [
        (r.name, r.tier, r.expect + (f" by {r.by}" if r.by else ""), "yes" if r.liveness else "no",
         r.about, scope_text(book, r))
        for r in book.runs
    ]  # fmt: skip
    params = [
        (p.name, p.kind, p.show(p.default), ", ".join(p.show(v) for v in range(p.lo, p.hi + 1))
         if p.choices else f"{p.lo}..{p.hi}", p.about)
        for p in book.params
    ]  # fmt: skip
    props = [(p.id, p.cites or "-", p.kind, p.says) for p in book.properties]
    width = _terminal_width()
    return "\n\n".join(
        [
            f"{click.style(book.name, bold=True)}: {book.about}",
            _columns(("run", "tier", "expect", "liveness", "about", "scope"), runs, set(), width),
            _columns(("parameter", "kind", "default", "allowed", "about"), params, set(), width),
            _columns(("property", "§", "kind", "sentence"), props, set(), width),
        ]
    )


# -- JSON -------------------------------------------------------------------------------------------------------------
def as_json(campaign: Campaign) -> dict[str, Any]:
    """Everything the text says, for programs."""
    c = campaign.coverage
    return {
        "format": JSON_FORMAT,
        "rulebook": campaign.plan.book.name,
        "selection": campaign.plan.selection.value,
        "verdict": campaign.exit.name,
        "exit_code": campaign.exit.value,
        "reasons": list(campaign.reasons),
        "seconds": round(campaign.seconds, 3),
        "runs": [_run_json(r) for r in campaign.results],
        "properties": [_property_json(s) for s in campaign.summaries],
        "coverage": {
            "judged": c.judged,
            "why_not_judged": c.why,
            "rules": {"all": len(c.rules.all), "never_fired": c.rules.missing, "stale": c.rules.stale},
            "rows": {"all": len(c.rows.all), "never_fired": c.rows.missing, "stale": c.rows.stale},
        },
    }


def _run_json(r: RunResult) -> dict[str, Any]:
    e = r.exploration
    params = {p.name: p for p in r.model.rulebook.params}
    fired: dict[str, int] = {}
    for i, n in zip(r.model.instances, e.fired, strict=True):
        fired[i.rule.id] = fired.get(i.rule.id, 0) + n
    return {
        "name": r.run.name,
        "scope": {k: params[k].show(v) for k, v in r.model.scope.values.items()},
        "without": list(r.run.without),
        "liveness": r.run.liveness,
        "expect": r.run.expect,
        "by": r.run.by,
        "verdict": r.verdict.name,
        "as_declared": r.as_declared is Verdict.PROVED,
        "engine": e.engine,
        "note": r.note,
        "states": e.states,
        "transitions": e.transitions,
        "depth": e.depth,
        "seconds": round(e.seconds, 3),
        "compile_seconds": round(e.compile_seconds, 3),
        "memory_mb": round(e.memory_mb, 1),
        "stopped": e.stopped,
        "fired": fired,
        "properties": {k: str(j.judgement) for k, j in r.judged.items()},
        "findings": [_finding_json(r, f) for f in r.findings.values()],
    }


def _finding_json(r: RunResult, f: Finding) -> dict[str, Any]:
    changes = [r.model.show(b.state, a.state) for a, b in zip(f.trace, f.trace[1:], strict=False)]
    steps = [{"fired": name, "changed": change} for name, change in zip(f.rules, changes, strict=True)]
    return {"property": f.prop, "detail": f.detail, "length": f.length, "loop": f.loop, "steps": steps}


def _property_json(s: Summary) -> dict[str, Any]:
    return {
        "id": s.prop.id,
        "cites": s.prop.cites,
        "kind": kind_of(s.prop),
        "sentence": s.prop.says,
        "verdict": str(s.judgement),
        "proved_in": s.proved,
        "applies_in": s.judged,
        "refutes": list(s.refutes),
        "note": s.note,
    }


# -- JUnit XML --------------------------------------------------------------------------------------------------------
def as_junit(campaign: Campaign) -> str:
    """Runs, properties and coverage as test cases: REFUTED is a failure, UNDETERMINED an error."""
    root = ElementTree.Element("testsuites", name=f"check-states {campaign.plan.book.name}")
    runs = ElementTree.SubElement(root, "testsuite", name="runs")
    for r in campaign.results:
        text_ = "\n".join(click.unstyle(block) for block in (_counterexample(r, f) for f in _findings(r)))
        _case(runs, r.run.name, r.as_declared.name, click.unstyle(_run_verdict(r)), text_, r.exploration.seconds)
    props = ElementTree.SubElement(root, "testsuite", name="properties")
    for s in campaign.summaries:
        _case(props, s.prop.id, str(s.judgement), s.note or s.prop.says, s.prop.says)
    covered = ElementTree.SubElement(root, "testsuite", name="coverage")
    c = campaign.coverage
    state = "not applicable" if not c.judged else "PROVED" if c.ok else "REFUTED"
    _case(covered, "rows and rules", state, c.why or f"{len(c.problems)} problems", "\n".join(c.problems))
    for suite in root:
        suite.set("tests", str(len(suite)))
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
    ElementTree.indent(root)
    for element in root.iter():
        element.text = _xml_text(element.text or "")
        element.attrib = {k: _xml_text(v) for k, v in element.attrib.items()}
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _xml_text(text_: str) -> str:
    return NOT_XML.sub("\ufffd", text_)


def _case(suite: ElementTree.Element, name: str, judgement: str, message: str, body: str, seconds: float = 0.0) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=suite.get("name", ""), name=name, time=f"{seconds:.3f}")
    if judgement == "PROVED":
        return
    tag = {"REFUTED": "failure", "not applicable": "skipped"}.get(judgement, "error")
    ElementTree.SubElement(case, tag, message=message).text = body
