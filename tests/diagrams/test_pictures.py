"""What the pictures say, against the tables, rules and findings that they are of; and that they can be read."""

import itertools
import re
from xml.etree import ElementTree

import diagrams_toy
import graphviz
import pytest
from attrs import evolve
from transitions.extensions import GraphMachine

from checker.explore import explore
from checker.model import build
from diagrams import gallery
from diagrams.counterexample import refute
from diagrams.dot import TONE_FONT, to_dot
from diagrams.joint import PARTS, joint_pictures, rules_of
from diagrams.picture import Cell, Edge, Line, Link, Node, Picture, Role
from diagrams.render import RenderError, to_svg, use_pip_graphviz
from diagrams.sequence import sequence_picture
from diagrams.tables import TROUBLE, roles_of, table_picture
from diagrams.text import packed, wrapped_expression
from machines.protocol import RULEBOOK

TABLES = {t.name: t for t in (*RULEBOOK.tables, *diagrams_toy.RULEBOOK.tables)}
BOOKS = {b.name: b for b in (RULEBOOK, diagrams_toy.RULEBOOK)}
SCREEN_PT = (1440, 1120)
"""A picture that is read as one: width of a full HD screen, height of one screen and a little scrolling, in points."""


def words(node: Node) -> str:
    return " ".join(f"{line.text} {line.quiet}" for row in node.rows for cell in row for line in cell.text)


# -- tables -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_table_shows_every_row_with_its_section(table):
    drawn = {
        (edge.source, line.text, edge.target, line.quiet) for edge in table_picture(table).edges for line in edge.text
    }
    assert drawn == {(e.source.name, e.event, e.target.name, e.cites) for e in table.gotos()}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_table_says_what_is_ignored_and_rejected_and_why(table):
    notes = " ".join(text for note in table_picture(table).notes for text in note.text)
    quiet = [e for e in table.entries.values() if e.kind != "goto"]
    for e in quiet:
        assert re.search(rf"\b{e.event} in [^:]*\b{e.source.name}\b[^:]*: {re.escape(e.why)}", notes), e.id
    assert bool(notes) == bool(quiet)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_table_agrees_with_graph_machine(table):
    """`transitions` draws the same states and arrows (it shows an ignore as an arrow from a state to itself)."""

    class Model:
        state = table.initial.name

    machine = GraphMachine(**{**table.machine_arguments(), "model": Model()}, graph_engine="graphviz")
    use_pip_graphviz()
    graph = machine.get_combined_graph()
    assert "<svg" in graph.pipe("svg", encoding="utf-8")
    arrows = set(re.findall(r"^\t(\w+) -> (\w+) ", graph.source, re.M))
    ignores = {(e.source.name, e.source.name) for e in table.entries.values() if e.kind == "ignore"}
    picture = table_picture(table)
    assert arrows == {(e.source, e.target) for e in picture.edges} | ignores
    assert set(machine.states) == {n.id for n in picture.nodes}


def test_roles_of_states():
    job, shop = diagrams_toy.JOB, diagrams_toy.SHOP
    assert {s.name: roles_of(job, s)[1:] or roles_of(job, s) for s in job.states} == {
        "Absent": (Role.PSEUDO,),
        "Waiting": (Role.STATE,),
        "Running": (Role.STATE,),
        "Done": (Role.REST, Role.DEAD_END),
        "Failed": (Role.REST, Role.TROUBLE, Role.DEAD_END),
    }
    assert roles_of(shop, diagrams_toy.Shop.Open) == (Role.STATE, Role.INITIAL)


def test_names_of_trouble_are_names_of_states():
    named = {s.name for t in RULEBOOK.tables for s in t.states}
    assert named >= TROUBLE, f"no table has {TROUBLE - named}"


# -- the joint protocol -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("book", BOOKS.values(), ids=BOOKS)
def test_every_rule_is_on_one_page_of_its_actor_in_order(book):
    overview, *pages = joint_pictures(book)
    assert overview.name == "joint"
    for actor in book.actors:
        mine = [p for p in pages if re.fullmatch(rf"joint-{actor.name}(-\d+)?", p.name)]
        assert [rule for p in mine for rule in p.stack] == [r.id for r in rules_of(book, actor)]
    assert sum(len(p.stack) for p in pages) == len(book.rules)


@pytest.mark.parametrize("book", BOOKS.values(), ids=BOOKS)
def test_a_page_shows_all_of_a_rule(book):
    nodes = {n.id: n for p in joint_pictures(book) for n in p.nodes if Role.RULE in n.roles}
    for rule in book.rules:
        shown = re.sub(r"\s+", " ", words(nodes[rule.id]))
        for part in (rule.id, rule.cites, *rule.guard.conjuncts(), *rule.world.conjuncts()):
            assert str(part) in shown, f"{rule.id} does not show {part}"
        for target, value in (*rule.then, *rule.truth, *(u for e in rule.each for u in (*e.then, *e.truth))):
            assert f"{target} := {value}" in shown


@pytest.mark.parametrize("book", BOOKS.values(), ids=BOOKS)
def test_edges_are_what_rules_fire_begin_and_end(book):
    drawn = {
        (e.source, e.target.removeprefix("machine "), e.into, e.link) for p in joint_pictures(book) for e in p.edges
    }
    wanted = set()
    for r in book.rules:
        fires = [*r.fires, *(f for e in r.each for f in e.fires)]
        wanted |= {(r.id, target.args[0].machine.name, event, Link.FIRES) for target, event in fires}
        wanted |= {(r.id, "calls", r.begins.name, Link.BEGINS)} if r.begins else set()
        wanted |= {(r.id, "calls", r.outcome[0].name, Link.ENDS)} if r.outcome else set()
    assert drawn == wanted


def test_edges_end_at_cells_that_exist():
    for book in BOOKS.values():
        for picture in joint_pictures(book):
            ports = {(n.id, cell.port) for n in picture.nodes for row in n.rows for cell in row}
            for e in picture.edges:
                assert {(e.source, e.out), (e.target, e.into)} <= ports


def test_overview_has_every_actor_and_event():
    (matrix,) = joint_pictures(RULEBOOK)[0].nodes
    shown = words(matrix)
    for name in [a.name for a in RULEBOOK.actors] + [t.name for t in RULEBOOK.tables]:
        assert name in shown
    for rule in RULEBOOK.rules:
        for _, event in rule.fires:
            assert event in shown


def test_parts_of_rules_are_explained():
    for picture in joint_pictures(RULEBOOK)[1:]:
        ports = {cell.port for n in picture.nodes if Role.RULE in n.roles for row in n.rows for cell in row}
        text = " ".join(t for note in picture.notes for t in note.text)
        assert {p for p in PARTS if f"{p}: " in text} == ports - {""}


# -- counterexamples ----------------------------------------------------------------------------------------------
def test_sequence_has_the_steps_in_order_of_time():
    found = refute(diagrams_toy.RULEBOOK, "lie")
    picture = sequence_picture(found.model, found.finding)
    steps = [n for n in picture.nodes if n.id.startswith("step ")]
    assert [words(n).split()[:2] for n in steps] == [
        ["1", "arrive[0]"], ["2", "run.begin[0]"], ["3", "run.ok~lie[0]"],
    ]  # fmt: skip
    heights = [n.at[1] for n in steps]
    assert heights == sorted(heights, reverse=True)
    assert len(set(heights)) == 3
    heads = {n.id.removeprefix("head "): n.at[0] for n in picture.nodes if n.id.startswith("head ")}
    assert [n.at[0] for n in steps] == [heads["client"], heads["worker"], heads["worker"]]
    assert {(e.source, e.target, e.link) for e in picture.edges if e.link is not Link.LIFELINE} == {
        ("step 2", "call 2", Link.CALL), ("call 3", "step 3", Link.RETURN),
    }  # fmt: skip


@pytest.mark.parametrize("run", ["lie", "hang"])
def test_sequence_says_what_changed_and_what_is_violated(run):
    found = refute(diagrams_toy.RULEBOOK, run)
    nodes = {n.id: words(n) for n in sequence_picture(found.model, found.finding).nodes}
    states = [s.state for s in found.finding.trace]
    for number, (before, after) in enumerate(itertools.pairwise(states), 1):
        for change in found.model.show(after, before).split(", "):
            assert change in nodes[f"change {number}"]
    prop = next(p for p in diagrams_toy.RULEBOOK.properties if p.id == found.finding.prop)
    assert prop.says in nodes["violation"]
    assert prop.cites in nodes["violation"]


def test_sequence_of_a_liveness_finding_says_what_goes_on_for_ever():
    found = refute(diagrams_toy.RULEBOOK, "hang")
    picture = sequence_picture(found.model, found.finding)
    assert any("nothing more happens, for ever" in words(n) for n in picture.nodes if Role.FOREVER in n.roles)
    safe = refute(diagrams_toy.RULEBOOK, "lie")
    assert Role.FOREVER not in sequence_picture(safe.model, safe.finding).legend


def test_sequence_marks_the_part_that_repeats():
    found = refute(diagrams_toy.RULEBOOK, "lie")
    picture = sequence_picture(found.model, evolve(found.finding, loop=1))
    height = {n.id: n.at[1] for n in picture.nodes}
    start, end = (n for n in picture.nodes if Role.FOREVER in n.roles)
    assert "from here for ever" in words(start)
    assert height["step 1"] > height[start.id] > height["step 2"]
    assert "and again from step 2" in words(end)
    assert height["step 3"] > height[end.id] > height["violation"]


def test_boxes_of_a_sequence_do_not_overlap(committed):
    pictures = [p for p in committed.values() if p.pinned]
    for run in ("lie", "hang"):
        found = refute(diagrams_toy.RULEBOOK, run)
        pictures.append(sequence_picture(found.model, found.finding))
    for picture in pictures:
        assert overlaps(picture) == []


def test_overlap_would_be_seen():
    box = [Node(n, ((Cell([Line("text")]),),), (Role.OURS,), at=(0, y)) for n, y in (("a", 0), ("b", 10))]
    assert overlaps(Picture("x", "x", nodes=tuple(box), pinned=True)) == [("a", "b")]


def overlaps(picture: Picture) -> list[tuple[str, str]]:
    use_pip_graphviz()
    plain = graphviz.Source(to_dot(picture), engine="neato").pipe("plain", encoding="utf-8", neato_no_op=2, quiet=True)
    boxes = {}
    for name, x, y, width, height in re.findall(r'^node (".*?"|\S+) (\S+) (\S+) (\S+) (\S+) ', plain, re.M):
        half = float(width) / 2, float(height) / 2
        boxes[name.strip('"')] = (float(x) - half[0], float(x) + half[0], float(y) - half[1], float(y) + half[1])
    assert len(boxes) == len(picture.nodes)
    return [
        (a, b)
        for a, p in boxes.items()
        for b, q in boxes.items()
        if a < b and p[0] < q[1] and q[0] < p[1] and p[2] < q[3] and q[2] < p[3]
    ]


# -- reading ------------------------------------------------------------------------------------------------------
def test_committed_pictures_can_be_read(committed):
    """Tables and pages fit a screen, a sequence fits its width; no text is smaller than 9 points (12 pixels)."""
    assert min(size for size, _, _ in TONE_FONT.values()) >= 9
    for path, picture in committed.items():
        svg = (gallery.RENDERED / path).read_text()
        width, height = map(int, re.search(r'<svg width="(\d+)pt" height="(\d+)pt"', svg).groups())
        assert width <= SCREEN_PT[0], f"{path} is {width} points wide"
        assert picture.pinned or height <= SCREEN_PT[1], f"{path} is {height} points high"
        assert min(map(float, re.findall(r'font-size="([\d.]+)"', svg))) >= 9, path


def test_every_picture_has_title_and_legend(committed):
    for path, picture in committed.items():
        shown = squeezed(" ".join(ElementTree.fromstring((gallery.RENDERED / path).read_text()).itertext()))
        assert picture.legend
        for text in (picture.title, *(entry.value for entry in picture.legend)):
            assert squeezed(text) in shown, path


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_lines_break_between_operands_only():
    text = "job.state == Created & job.answer != Pending & (mode == Open | work == 0)"
    for columns in range(24, 80):
        lines = wrapped_expression(text, columns)
        assert " ".join(line.strip() for line in lines) == text
        assert all(re.match(r"\(?\w|[&|]", line.strip()) for line in lines)
        assert not any(re.search(r"(==|!=)$", line) for line in lines)
    assert packed(["a := 1", "b := 2", "c := 3"], 15) == ["a := 1, b := 2,", "c := 3"]


# -- drawing ------------------------------------------------------------------------------------------------------
def test_pip_graphviz_is_enough(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "<svg" in to_svg(to_dot(table_picture(diagrams_toy.JOB)))


def test_refused_text_is_one_clear_error():
    with pytest.raises(RenderError, match=r"graphviz failed: .*syntax error"):
        to_svg("digraph {")


@pytest.mark.parametrize(
    "broken",
    [
        {"nodes": (Node("a"), Node("a"))},
        {"nodes": (Node("a"),), "edges": (Edge("a", "b", Link.GOTO),)},
        {"nodes": (Node("a"),), "stack": ("b",)},
    ],
    ids=["node twice", "edge to nothing", "stack of nothing"],
)
def test_a_picture_that_contradicts_itself_is_refused(broken):
    with pytest.raises(ValueError, match="picture x"):
        Picture("x", "x", **broken)


def test_hostile_text_is_escaped():
    nasty = '<b> & "quoted" \\ '
    svg = to_svg(to_dot(Picture("x", nasty, nodes=(Node(nasty, ((Cell([Line(nasty)]),),)),))))
    assert "&lt;b&gt; &amp;" in svg


def test_model_of_toy_is_as_its_runs_declare():
    """The rulebook that these tests rest on does what its runs say."""
    assert not explore(build(diagrams_toy.RULEBOOK.scope({"honest": 1}))).findings
    assert set(explore(build(diagrams_toy.RULEBOOK.scope({"honest": 0}))).findings) == {"done-means-worked"}
