"""The one printer: a picture as DOT text. The look of every role stands in the two tables below and nowhere else.

The text depends on the picture alone, so that its hash says whether a committed drawing is current. Labels are
HTML-like tables, because only they mix sizes, weights and colours. Every graphviz measures the characters of Latin-1
well, and few others; so arrows are written ->.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable

from attrs import asdict, evolve, frozen

from diagrams.picture import Cell, Edge, Line, Link, Node, Picture, Role, Tone

__all__ = ["to_dot"]

FONT = "Arial"
NOTE_COLUMNS = 150  # characters of small print in one line
LEGEND_COLUMNS = 4
SPINE_WEIGHT = "12"  # how hard the layout pulls an edge straight; 1 is usual
QUIET_COLOUR = "#6b6b6b"


@frozen
class Look:
    """How a role is drawn; None leaves what a plainer role says."""

    fill: str | None = None
    line: str | None = None
    shape: str | None = None
    pen: float | None = None
    borders: int | None = None
    style: str | None = None

    def over(self, plainer: Look) -> Look:
        """This look, with the plainer one's where it says nothing."""
        return evolve(plainer, **{name: value for name, value in asdict(self).items() if value is not None})


PLAIN = Look("#ffffff", "#333333", "box", 1.0, 1, "rounded,filled")

ROLE_LOOK: dict[Role, Look] = {
    Role.STATE: Look(),
    Role.INITIAL: Look(fill="#cfe3f7", line="#1f5f99", pen=2.0),
    Role.REST: Look(fill="#d8efd3", line="#2f7d32"),
    Role.TROUBLE: Look(fill="#f9d3cf", line="#b3261e"),
    Role.DEAD_END: Look(borders=2),
    Role.PSEUDO: Look(fill="#333333", line="#333333", shape="circle", pen=1.0, style="filled"),
    Role.OURS: Look(fill="#cfe3f7", line="#1f5f99", style="filled"),
    Role.ENVIRONMENT: Look(fill="#fbe3b8", line="#9a6700", style="filled"),
    Role.OBSERVER: Look(fill="#e6d9f2", line="#6a3d9a", style="filled"),
    Role.RULE: Look(fill="#f3f3f3", shape="plain"),
    Role.MACHINE: Look(fill="#d8efd3", line="#2f7d32"),
    Role.LIST: Look(line="#8a8a8a", shape="plain"),
    Role.EFFECT: Look(fill="#fdf3dc", line="#9a6700", shape="box", style="rounded,filled,dashed"),
    Role.MATRIX: Look(shape="plain"),
    Role.CHANGE: Look(fill="#f3f3f3", line="#f3f3f3", shape="plain"),
    Role.FOREVER: Look(fill="#ffffff", line="#b3261e", shape="plain"),
    Role.VIOLATION: Look(fill="#f9d3cf", line="#b3261e", shape="plain"),
    Role.POINT: Look(shape="point", line="#b0b0b0"),
}

LINK_LOOK: dict[Link, dict[str, str]] = {
    Link.GOTO: {"color": "#333333"},
    Link.TO_TROUBLE: {"color": "#b3261e"},
    Link.TO_NOTHING: {"color": "#8a8a8a", "style": "dashed"},
    Link.FIRES: {"color": "#2f7d32"},
    Link.BEGINS: {"color": "#9a6700"},
    Link.ENDS: {"color": "#9a6700", "style": "dashed", "dir": "back"},
    Link.LIFELINE: {"color": "#b0b0b0", "style": "dashed", "arrowhead": "none"},
    Link.CALL: {"color": "#9a6700"},
    Link.RETURN: {"color": "#9a6700", "style": "dashed"},
    Link.RETURN_AND_CALL: {"color": "#9a6700", "dir": "both"},
}

SHADES = ("#2f7d32", "#1f5f99", "#6a3d9a", "#00838f", "#ad1457", "#5d4037")
"""To tell edges of one link apart; the first is the link's own."""

TONE_FONT: dict[Tone, tuple[int, str, bool]] = {
    Tone.TITLE: (16, "#000000", True),
    Tone.HEAD: (11, "#000000", True),
    Tone.BODY: (10, "#000000", False),
    Tone.QUIET: (9, QUIET_COLOUR, False),
    Tone.ALARM: (11, "#b3261e", True),
}


def to_dot(picture: Picture) -> str:
    """The picture as DOT text; the same picture always gives the same text."""
    inner = [*map(_node, picture.nodes), *map(_edge, picture.edges), *_stack(picture.stack)]
    if picture.pinned or picture.stack:  # a cluster has no effect on pinned nodes, and breaks the order of a stack
        body = [f"label=<{_table([_heading(picture), _small_print(picture)])}>", "labelloc=t", *inner]
    else:
        body = [
            f"label=<{_small_print(picture)}>",
            "labelloc=b",
            "subgraph cluster_picture {",
            *_indent(["color=none", "labelloc=t", f"label=<{_heading(picture)}>", *inner]),
            "}",
        ]
    return "\n".join([f"digraph {_quoted(picture.name)} {{", *_indent([*_defaults(picture), *body]), "}"]) + "\n"


def _defaults(picture: Picture) -> list[str]:
    graph = {
        "fontname": FONT,
        "rankdir": "TB" if picture.down else "LR",
        "nodesep": "0.35" if picture.down else "0.16",
        "ranksep": "0.3" if picture.down else "1.1",
        "splines": "line" if picture.pinned else "true",
        "bgcolor": "white",
        "pad": "0.2",
        "outputorder": "edgesfirst" if picture.pinned else "breadthfirst",
    }
    return [
        f"graph {_attributes(graph)}",
        f"node {_attributes({'fontname': FONT, 'margin': '0.09,0.05', 'height': '0.3'})}",
        f"edge {_attributes({'fontname': FONT, 'fontsize': '11', 'arrowsize': '0.7'})}",
    ]


def _look(roles: Iterable[Role]) -> Look:
    look = PLAIN
    for role in roles:
        look = ROLE_LOOK[role].over(look)
    return look


def _node(node: Node) -> str:
    look = _look(node.roles)
    attributes = {
        "shape": str(look.shape),
        "style": str(look.style),
        "fillcolor": str(look.fill),
        "color": str(look.line),
        "penwidth": f"{look.pen:g}",
        "peripheries": str(look.borders),
    }
    if look.shape == "plain":
        attributes = {"shape": "plain"}
    elif look.shape == "point":
        attributes = {"shape": "point", "width": "0.04", "color": str(look.line)}
    elif look.shape == "circle":
        attributes |= {"width": "0.18", "height": "0.18", "fixedsize": "true"}
    if node.at:
        attributes["pos"] = f"{node.at[0]},{node.at[1]}"
    if node.hint:
        attributes["tooltip"] = node.hint
    if look.shape == "circle":
        beside = "".join(_line(line) for row in node.rows for cell in row for line in cell.text)
        return f"{_quoted(node.id)} {_attributes(attributes, label='', xlabel=beside)}"
    return f"{_quoted(node.id)} {_attributes(attributes, label=_rows(node, look))}"


def _rows(node: Node, look: Look) -> str:
    """The node's label. A plain shape has no outline of its own, so its table draws one."""
    boxed = look.shape == "plain"
    grid = Role.MATRIX in node.roles
    frame = {
        "BORDER": "1" if boxed else "0",
        "CELLBORDER": "1" if grid else "0",
        "CELLSPACING": "0",
        "CELLPADDING": "4" if grid else "1" if boxed else "2",
    }
    if boxed:
        frame |= {"COLOR": str(look.line), "BGCOLOR": str(look.fill)}
    if node.width:
        frame["WIDTH"] = str(node.width)
    left = Role.STATE not in node.roles
    rows = "".join(f"<TR>{''.join(_cell(c, left) for c in row)}</TR>" for row in node.rows)
    return f"<TABLE {_html_attributes(frame)}>{rows}</TABLE>" if rows else ""


def _cell(cell: Cell, left: bool) -> str:
    attributes = {"ALIGN": "LEFT", "BALIGN": "LEFT"} if left else {}
    if cell.role:
        attributes["BGCOLOR"] = str(_look([cell.role]).fill)
    if cell.span > 1:
        attributes["COLSPAN"] = str(cell.span)
    if cell.width:
        attributes["WIDTH"] = str(cell.width)
    if cell.port:
        attributes["PORT"] = cell.port
    if cell.href:
        attributes |= {"HREF": cell.href, "TITLE": cell.href}
    opening = f"TD {_html_attributes(attributes)}" if attributes else "TD"
    return f"<{opening}>{_text(cell.text, left)}</TD>"


def _edge(edge: Edge) -> str:
    label = "".join(f'&#160;{_line(line)}&#160;<BR ALIGN="LEFT"/>' for line in edge.text)
    attributes = LINK_LOOK[edge.link] | ({"weight": SPINE_WEIGHT} if edge.spine else {})
    if edge.shade:
        attributes |= {"color": SHADES[edge.shade % len(SHADES)]}
    source = _quoted(edge.source) + (f":{_quoted(edge.out)}:e" if edge.out else "")
    target = _quoted(edge.target) + (f":{_quoted(edge.into)}:w" if edge.into else "")
    return f"{source} -> {target} {_attributes(attributes, **({'label': label} if label else {}))}"


def _stack(members: tuple[str, ...]) -> list[str]:
    """One layer, kept in order by edges that nobody sees."""
    if len(members) < 2:
        return []
    return [f"{{ rank=same; {' -> '.join(map(_quoted, members))} [style=invis] }}"]


# -- around the picture -------------------------------------------------------------------------------------------
def _heading(picture: Picture) -> str:
    about = [Line(part, Tone.QUIET) for part in textwrap.wrap(picture.subtitle, NOTE_COLUMNS)]
    rows = "".join(f"<TR><TD>{_text(text)}</TD></TR>" for text in ([Line(picture.title, Tone.TITLE)], about) if text)
    return f'<TABLE BORDER="0" CELLSPACING="2" CELLPADDING="1">{rows}</TABLE>'


def _small_print(picture: Picture) -> str:
    """The legend and the notes, one below the other."""
    parts = [_legend(picture.legend)] if picture.legend else []
    for note in picture.notes:
        wrapped = [part for text in note.text for part in textwrap.wrap(text, NOTE_COLUMNS, subsequent_indent="    ")]
        heading = [Line(note.heading, Tone.HEAD)] if note.heading else []
        parts.append(_text([*heading, *(Line(t, Tone.QUIET) for t in wrapped)], left=True))
    return _table(parts) if parts else " "


def _legend(entries: tuple[Role | Link, ...]) -> str:
    cells = [_swatch(entry) + f'<TD ALIGN="LEFT">{_line(Line(entry.value, Tone.QUIET))}</TD>' for entry in entries]
    rows = [cells[i : i + LEGEND_COLUMNS] for i in range(0, len(cells), LEGEND_COLUMNS)]
    body = "".join(f"<TR>{''.join(row)}</TR>" for row in rows)
    return f'<TABLE BORDER="0" CELLSPACING="3" CELLPADDING="2">{body}</TABLE>'


def _swatch(entry: Role | Link) -> str:
    """A small sample of the look."""
    if isinstance(entry, Link):
        look = LINK_LOOK[entry]
        arrow = "- - &gt;" if look.get("style") in ("dashed", "dotted") else "---&gt;"
        return f'<TD ALIGN="RIGHT"><FONT POINT-SIZE="11" COLOR="{look["color"]}"><B>{arrow}</B></FONT></TD>'
    return _box_swatch(_look([entry]))


def _box_swatch(look: Look) -> str:
    frame = f'BORDER="{2 if (look.pen or 1) > 1 else 1}" COLOR="{look.line}" BGCOLOR="{look.fill}"'
    if (look.borders or 1) > 1:
        inner = f'<TABLE BORDER="1" COLOR="{look.line}" CELLBORDER="0" CELLPADDING="0"><TR><TD>  </TD></TR></TABLE>'
        return f'<TD {frame} CELLPADDING="1" WIDTH="22" HEIGHT="14">{inner}</TD>'
    size = 'WIDTH="12" HEIGHT="12"' if look.shape == "circle" else 'WIDTH="22" HEIGHT="14"'
    return f"<TD {frame} {size}></TD>"


def _table(parts: Iterable[str]) -> str:
    rows = "".join(f'<TR><TD ALIGN="LEFT" BALIGN="LEFT">{p}</TD></TR>' for p in parts)
    return f'<TABLE BORDER="0" CELLSPACING="4" CELLPADDING="0">{rows}</TABLE>'


# -- text ---------------------------------------------------------------------------------------------------------
def _text(text: Iterable[Line], left: bool = False) -> str:
    """Lines below each other. Graphviz sets lines of one font well and squeezes mixed ones, so those get a row each."""
    text = list(text)
    if len(text) > 1 and (len({line.tone for line in text}) > 1 or any(line.quiet for line in text)):
        align = ' ALIGN="LEFT"' if left else ""
        rows = "".join(f"<TR><TD{align}>{_line(line)}</TD></TR>" for line in text)
        return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0">{rows}</TABLE>'
    ending = '<BR ALIGN="LEFT"/>' if left else "<BR/>"
    return ending.join(map(_line, text)) + (ending if left and len(text) > 1 else "")


def _line(line: Line) -> str:
    size, colour, bold = TONE_FONT[line.tone]
    loud = html.escape(line.text) or " "
    loud = f"<B>{loud}</B>" if bold else loud
    text = f'<FONT POINT-SIZE="{size}" COLOR="{colour}">{loud}</FONT>'
    if line.quiet:
        text += f'<FONT POINT-SIZE="9" COLOR="{QUIET_COLOUR}">&#160; {html.escape(line.quiet)}</FONT>'
    return text


def _attributes(plain: dict[str, str], **as_html: str) -> str:
    pairs = [f"{name}={_quoted(value)}" for name, value in plain.items()]
    pairs += [f"{name}=<{value}>" if value else f'{name}=""' for name, value in as_html.items()]
    return f"[{' '.join(pairs)}]"


def _html_attributes(pairs: dict[str, str]) -> str:
    return " ".join(f'{name}="{html.escape(value, quote=True)}"' for name, value in pairs.items())


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _indent(body: Iterable[str]) -> list[str]:
    return ["  " + line for line in body]
