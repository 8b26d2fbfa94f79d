"""Chooses the engine of a run: generated C where a compiler works, else plain Python, and says which."""

from __future__ import annotations

from attrs import field, frozen

from checker.explore import Edge, explore
from checker.graph import Graph, from_edges
from checker.model import Model, StateTuple
from checker.native import CodegenError, NativeError, Program
from checker.result import Exploration, Limits, ProgressCallback

ENGINES = ("auto", "c", "python")


class EngineError(Exception):
    """No engine can do the work: one line that says why."""


@frozen(eq=False)
class Search:
    """What one search is asked for. with_graph: keep all states and steps, for liveness."""

    engine: str = "auto"
    limits: Limits = field(factory=Limits)
    stop_at_first: bool = False
    with_graph: bool = False
    progress: ProgressCallback | None = None


@frozen(eq=False)
class Searched:
    exploration: Exploration
    graph: Graph | None
    note: str


def search(model: Model, wanted: Search) -> Searched:
    """Explore a model. Raises EngineError when the C engine is demanded and cannot be had, or when it breaks down."""
    if wanted.engine == "python":
        return _python(model, wanted, "")
    try:
        program = Program(model)
    except (NativeError, CodegenError) as e:
        if wanted.engine == "c":
            raise EngineError(str(e)) from e
        return _python(model, wanted, f"the Python engine ran, because there is no C engine: {e}")
    try:
        return _native(program, wanted)
    except NativeError as e:
        raise EngineError(str(e)) from e


def _native(program: Program, wanted: Search) -> Searched:
    if wanted.with_graph:
        exploration, graph = program.graph(limits=wanted.limits, progress=wanted.progress)
        return Searched(exploration, graph, "")
    exploration = program.explore(limits=wanted.limits, stop_at_first=wanted.stop_at_first, progress=wanted.progress)
    return Searched(exploration, None, "")


def _python(model: Model, wanted: Search, note: str) -> Searched:
    edges: list[Edge] | None = [] if wanted.with_graph else None
    order: list[StateTuple] = []
    exploration = explore(
        model,
        limits=wanted.limits,
        stop_at_first=wanted.stop_at_first,
        progress=wanted.progress,
        graph=edges,
        order=order,
    )
    return Searched(exploration, None if edges is None else from_edges(model, edges, order), note)
