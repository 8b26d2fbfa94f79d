"""Proves what the rulebook says: exhaustive exploration in Python and in generated C, liveness, reports.

Uses `machines`; only `checker.conform` (later) uses the runtime.
"""
