"""Conformance: what happened, held against what may happen. `check-states replay FILE` (docs/check-states.md)."""
