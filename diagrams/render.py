"""DOT text to SVG with graphviz; the SVG carries the SHA-256 of the DOT text that it was made from.

`graphviz` (the Python package) runs a program. `graphviz-pure` installs one with pip alone, under its own name;
`use_pip_graphviz` points the package at it, so that no system package is needed.
"""

from __future__ import annotations

import hashlib
import re
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import graphviz
from graphviz.backend import dot_command

__all__ = ["RenderError", "hash_in", "hash_of", "to_svg", "use_pip_graphviz"]

_MARK = re.compile(r"<!-- dot-sha256: ([0-9a-f]{64}) -->")


class RenderError(RuntimeError):
    """Graphviz is missing or refused the text."""


def use_pip_graphviz() -> Path:
    """Point the `graphviz` package at graphviz-pure's program. Raises RenderError when it is not installed."""
    try:
        installed = files("graphviz-pure") or []
    except PackageNotFoundError:
        raise RenderError("no graphviz: pip install graphviz-pure") from None
    for entry in installed:
        if Path(entry.name).stem == "graphviz-pure":
            program = Path(str(entry.locate())).resolve()
            dot_command.DOT_BINARY = program
            return program
    raise RenderError("no graphviz: the package graphviz-pure is installed without its program; reinstall it")


def hash_of(dot: str) -> str:
    """The SHA-256 of a DOT text, in hex."""
    return hashlib.sha256(dot.encode()).hexdigest()


def hash_in(svg: str) -> str:
    """The hash that an SVG carries; empty when it carries none."""
    found = _MARK.search(svg)
    return found.group(1) if found else ""


def to_svg(dot: str, *, pinned: bool = False) -> str:
    """Lay out and draw; pinned: nodes stay where their `pos` says. Raises RenderError with graphviz's own words."""
    use_pip_graphviz()
    engine, keep = ("neato", 2) if pinned else ("dot", None)
    try:
        svg = graphviz.Source(dot, engine=engine).pipe("svg", encoding="utf-8", neato_no_op=keep, quiet=True)
    except graphviz.CalledProcessError as e:
        raise RenderError(f"graphviz failed: {str(e.stderr).strip() or e}") from e
    head, svg_tag, body = str(svg).partition("<svg")
    return f"{head}<!-- dot-sha256: {hash_of(dot)} -->\n{svg_tag}{_widely_known_fonts(body)}"


def _widely_known_fonts(svg: str) -> str:
    """The layout measured Arial; name fonts of the same widths for readers who have none."""
    return svg.replace('font-family="Arial"', 'font-family="Arial,Liberation Sans,Arimo,Helvetica,sans-serif"')
