"""Pictures of a rulebook for design review: its tables, who fires what, and counterexamples as sequence diagrams.

Theory. A picture is described neutrally first (`picture`: nodes, edges, roles, notes), from the same tables and rules
that the checker explores (`tables`, `joint`, `sequence`). One printer turns a description into DOT text (`dot`);
graphviz lays it out (`render`). The committed SVG files (`gallery`) carry the SHA-256 of their DOT text: a file is
stale when the DOT of today has another hash. SVG bytes are never compared, so another graphviz changes nothing.

    python -m diagrams                  draw everything into diagrams/rendered
    python -m diagrams --check          name what is stale, missing or surplus
    python -m diagrams counterexample MODULE:RULEBOOK --run NAME -o FILE
"""
