"""A counterexample as a sequence diagram.

One lifeline per actor that takes part, and one for the calls (what is inside the vendor's library). Time runs down:
one numbered step per line, on the lifeline of its actor, with what it changed at the right. A step that begins a call
has an arrow to the calls' lifeline, a step that takes a return has one from it. The last line says what is violated; in
a liveness counterexample a line says where the part begins that repeats for ever.

Everything stands at a computed place (graphviz draws, it does not arrange), so that lines stay in the order of time.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from attrs import field, frozen

from checker.model import Instance, Model, StateTuple
from checker.result import Finding
from diagrams.joint import actor_role
from diagrams.picture import Cell, Edge, Line, Link, Node, Picture, Role, Tone
from diagrams.text import packed
from machines.rulebook import Actor

__all__ = ["sequence_picture"]

CHARACTER = 5.1  # points, the average at 10 points
LINE = 12  # points, one line of text
BOX = 34  # points, the box of a step
GAP = 9  # points between two steps
LIFELINE_MIN = 80  # points between two lifelines
CHANGE_COLUMNS = 64  # characters
CALLS = "calls"


@frozen
class _Step:
    """One step, ready to be placed. changes: lines of text; begins, ends: calls."""

    number: int
    actor: Actor
    label: str
    changes: tuple[Line, ...]
    cites: str
    begins: str = ""
    ends: str = ""

    @property
    def call(self) -> str:
        """What is written on the calls' lifeline."""
        return "; ".join(part for part in (self.ends, self.begins) if part)

    @property
    def height(self) -> int:
        return max(BOX, len(self.changes) * LINE) + GAP


@frozen
class _Columns:
    """Where the lifelines stand (points from the left) and where the text at the right begins."""

    at: dict[str, int]
    text_left: int

    @property
    def text_width(self) -> int:
        return int(CHANGE_COLUMNS * CHARACTER)

    @property
    def right(self) -> int:
        return self.text_left + self.text_width


def sequence_picture(model: Model, finding: Finding, *, name: str = "counterexample", about: str = "") -> Picture:
    """The picture of a finding in the model in which it was found. about: stands before the scope."""
    steps = _steps(model, finding)
    columns = _columns(steps)
    drawing = _Drawing(columns)
    drawing.heads(steps)
    for step in steps:
        if finding.loop is not None and step.number == finding.loop + 1:
            drawing.remark("from here for ever:")
        drawing.step(step)
    if finding.loop is not None:
        again = finding.loop < finding.length
        drawing.remark(f"and again from step {finding.loop + 1}" if again else "and nothing more happens, for ever")
    drawing.tails()
    drawing.violation(_violation(model, finding))
    return Picture(
        name=name,
        title=f"{model.rulebook.name}: counterexample to {finding.prop}, {finding.length} steps",
        subtitle="; ".join(part for part in (about, str(model.scope)) if part),
        nodes=tuple(drawing.nodes),
        edges=tuple(drawing.edges),
        pinned=True,
    )


# -- what happened ------------------------------------------------------------------------------------------------
def _steps(model: Model, finding: Finding) -> list[_Step]:
    instances = {i.name: i for i in model.instances}
    pairs = zip(finding.trace, finding.trace[1:], strict=False)
    return [_step(model, n, instances[b.instance], a.state, b.state) for n, (a, b) in enumerate(pairs, 1)]


def _step(model: Model, number: int, fired: Instance, before: StateTuple, after: StateTuple) -> _Step:
    rule = fired.rule
    ends = f"{rule.outcome[0].name} -> {fired.ret.name}" if rule.outcome and fired.ret else ""
    return _Step(
        number=number,
        actor=rule.actor,
        label=fired.name.removeprefix(rule.actor.name + "."),
        changes=_changes(model, before, after),
        cites=rule.cites,
        begins=rule.begins.name if rule.begins else "",
        ends=ends,
    )


def _changes(model: Model, before: StateTuple, after: StateTuple) -> tuple[Line, ...]:
    """Machines first, each on its own line; then our variables; then the world's, quietly."""
    machines: list[str] = []
    own: list[str] = []
    world: list[str] = []
    for slot, a, b in zip(model.slots, before, after, strict=True):
        if a == b:
            continue
        change = f"{slot.name}: {slot.var.show(a)} -> {slot.var.show(b)}"
        (machines if slot.var.machine else world if slot.var.world else own).append(change)
    text = [Line(m) for m in machines]
    text += [Line(t) for t in packed(own, CHANGE_COLUMNS)]
    text += [Line(t, Tone.QUIET) for t in packed(["world:", *world] if world else [], CHANGE_COLUMNS)]
    return tuple(text) or (Line("nothing changes", Tone.QUIET),)


def _violation(model: Model, finding: Finding) -> tuple[Line, ...]:
    prop = next((p for p in model.rulebook.properties if p.id == finding.prop), None)
    text = [Line(f"{finding.prop} is violated", Tone.ALARM, quiet=prop.cites if prop else "")]
    for sentence in (prop.says if prop else "", finding.detail):
        if sentence and sentence != finding.prop:
            text += [Line(t) for t in textwrap.wrap(sentence, 100)]
    return tuple(text)


# -- where it stands ----------------------------------------------------------------------------------------------
def _columns(steps: list[_Step]) -> _Columns:
    """Lifelines in the order of their first step, as far apart as their labels need."""
    widths: dict[str, float] = {}
    for step in steps:
        widest = max(len(step.actor.name) + 2, len(step.label) + 4) * CHARACTER + 24
        widths[step.actor.name] = max(widths.get(step.actor.name, LIFELINE_MIN), widest)
    calls = [len(s.call) for s in steps if s.call]
    if calls:
        widths[CALLS] = max(LIFELINE_MIN, max(calls) * CHARACTER + 40)
    at: dict[str, int] = {}
    left = 0.0
    for name, width in widths.items():
        at[name] = int(left + width / 2)
        left += width
    return _Columns(at, int(left) + 20)


@frozen
class _Drawing:
    """Places nodes from top to bottom; `y` falls with every line."""

    columns: _Columns
    nodes: list[Node] = field(factory=list)
    edges: list[Edge] = field(factory=list)
    y: list[int] = field(factory=lambda: [0])

    def _row(self, height: int) -> int:
        """Take a row of this height; its middle."""
        self.y[0] -= height
        return self.y[0] + height // 2

    def heads(self, steps: list[_Step]) -> None:
        middle = self._row(2 * LINE + GAP)
        actors = {s.actor.name: s.actor for s in steps}
        for name, x in self.columns.at.items():
            role = actor_role(actors[name]) if name in actors else Role.EFFECT
            self.nodes.append(_box(f"head {name}", [Line(name, Tone.HEAD)], role, (x, middle)))

    def step(self, step: _Step) -> None:
        middle = self._row(step.height)
        text = [Line(f"{step.number}  {step.label}")]
        if step.cites:
            text.append(Line(step.cites, Tone.QUIET))
        box = f"step {step.number}"
        self.nodes.append(_box(box, text, actor_role(step.actor), (self.columns.at[step.actor.name], middle)))
        self._text(f"change {step.number}", step.changes, Role.CHANGE, middle)
        if step.call:
            call = f"call {step.number}"
            self.nodes.append(_box(call, [Line(step.call)], Role.EFFECT, (self.columns.at[CALLS], middle)))
            link = Link.RETURN_AND_CALL if step.begins and step.ends else Link.CALL if step.begins else Link.RETURN
            self.edges.append(Edge(call, box, link) if link is Link.RETURN else Edge(box, call, link))

    def remark(self, text: str) -> None:
        middle = self._row(LINE + GAP)
        self._wide(f"remark {-middle}", [Line(text, Tone.ALARM)], Role.FOREVER, middle)

    def violation(self, text: tuple[Line, ...]) -> None:
        self._wide("violation", text, Role.VIOLATION, self._row((len(text) + 1) * LINE + GAP))

    def tails(self) -> None:
        """The lifelines, from their heads to the bottom."""
        bottom = self._row(GAP)
        for name, x in self.columns.at.items():
            self.nodes.append(Node(f"tail {name}", roles=(Role.POINT,), at=(x, bottom)))
            self.edges.append(Edge(f"head {name}", f"tail {name}", Link.LIFELINE))

    def _text(self, node: str, text: tuple[Line, ...], role: Role, middle: int) -> None:
        centre = self.columns.text_left + self.columns.text_width // 2
        self.nodes.append(Node(node, ((Cell(text),),), (role,), (centre, middle), self.columns.text_width))

    def _wide(self, node: str, text: Iterable[Line], role: Role, middle: int) -> None:
        width = self.columns.right
        self.nodes.append(Node(node, ((Cell(text),),), (role,), (width // 2, middle), width))


def _box(node: str, text: Iterable[Line], role: Role, at: tuple[int, int]) -> Node:
    return Node(node, ((Cell(text),),), (role,), at)
