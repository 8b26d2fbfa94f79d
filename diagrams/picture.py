"""What a picture shows, without how: nodes, edges, notes. Everything has a role; the printer gives roles a look.

The legend is not written by hand: it is the roles that the picture uses, in the order in which they stand here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

from attrs import field, frozen

__all__ = ["Cell", "Edge", "Line", "Link", "Node", "Note", "Picture", "Role", "Tone"]


@enum.unique
class Role(enum.Enum):
    """What a node is. The value is its line in the legend, unless it needs none (UNEXPLAINED)."""

    STATE = "state"
    INITIAL = "initial state: thick border"
    REST = "final: may rest here for ever"
    TROUBLE = "error, quarantine or unknown"
    DEAD_END = "dead end: no row leads out"
    PSEUDO = "there is no such thing (not a state of the specification)"
    OURS = "actor of ours"
    ENVIRONMENT = "actor of the environment: never assumed fair"
    OBSERVER = "modelling actor: may read the world and write our bookkeeping at once"
    RULE = "rule: guard, what it fires, what it changes"
    MACHINE = "machine: its events, and the rows they may take"
    EFFECT = "call made with no lock held"
    LIST = "list"
    MATRIX = "grid"
    CHANGE = "what the step changed"
    FOREVER = "what goes on for ever"
    VIOLATION = "what is violated"
    POINT = "end of a lifeline"


@enum.unique
class Link(enum.Enum):
    """What an edge means. The value is its line in the legend, unless it needs none (UNEXPLAINED)."""

    GOTO = "row: event § leads to a state"
    TO_TROUBLE = "row into error, quarantine or unknown"
    TO_NOTHING = "row that ends it"
    FIRES = "fires (each rule in a shade of its own)"
    BEGINS = "begins the call"
    ENDS = "takes a return of the call"
    LIFELINE = "lifeline"
    CALL = "begins a call"
    RETURN = "the call returned"
    RETURN_AND_CALL = "the call returned, the next begins"


UNEXPLAINED = frozenset({Role.LIST, Role.MATRIX, Role.POINT, Link.LIFELINE})


class Tone(enum.Enum):
    """How loud a text is."""

    TITLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    QUIET = enum.auto()
    ALARM = enum.auto()


@frozen
class Line:
    """A line of text; `quiet` is appended in a lower voice (a section number, a count)."""

    text: str
    tone: Tone = Tone.BODY
    quiet: str = ""


def _lines(text: Iterable[Line]) -> tuple[Line, ...]:
    return tuple(text)


@frozen
class Cell:
    """A cell of a node's label. role: fills the cell; href: file the cell leads to; span: columns it takes;
    width: at least so many points; port: name by which an edge can end at this cell."""

    text: tuple[Line, ...] = field(converter=_lines)
    role: Role | None = None
    href: str = ""
    span: int = 1
    width: int = 0
    port: str = ""


@frozen
class Node:
    """roles: from the plain to the specific, the last look wins. at: fixed centre in points (pinned pictures only);
    width: fixed width in points, text starts at its left; hint: shown when a reader points at the node."""

    id: str
    rows: tuple[tuple[Cell, ...], ...] = ()
    roles: tuple[Role, ...] = (Role.STATE,)
    at: tuple[int, int] | None = None
    width: int = 0
    hint: str = ""


@frozen
class Edge:
    """out, into: ports of the cells at which it begins and ends; spine: part of the usual way, to be drawn straight;
    shade: number that tells edges of one link apart."""

    source: str
    target: str
    link: Link
    text: tuple[Line, ...] = ()
    out: str = ""
    into: str = ""
    spine: bool = False
    shade: int = 0


@frozen
class Note:
    """Small print below the picture: a heading and its lines."""

    heading: str
    text: tuple[str, ...]


@frozen
class Picture:
    """One picture. name: file name without suffix; down: layers go from top to bottom, else from left to right;
    stack: nodes of one layer that stand in this order; pinned: every node says where it stands."""

    name: str
    title: str
    subtitle: str = ""
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    stack: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    down: bool = True
    pinned: bool = False

    def __attrs_post_init__(self) -> None:
        known = {n.id for n in self.nodes}
        if len(known) != len(self.nodes):
            raise ValueError(f"picture {self.name} has two nodes of the same id")
        for end in (e for edge in self.edges for e in (edge.source, edge.target)):
            if end not in known:
                raise ValueError(f"picture {self.name} has an edge at {end!r}, which is not a node")
        for member in self.stack:
            if member not in known:
                raise ValueError(f"picture {self.name} stacks {member!r}, which is not a node")

    @property
    def legend(self) -> tuple[Role | Link, ...]:
        """The roles and links in use that need an explanation."""
        used = {role for n in self.nodes for role in _roles(n)} | {e.link for e in self.edges}
        return tuple(kind for kind in (*Role, *Link) if kind in used - UNEXPLAINED)


def _roles(node: Node) -> Iterator[Role]:
    yield from node.roles
    yield from (cell.role for row in node.rows for cell in row if cell.role)
