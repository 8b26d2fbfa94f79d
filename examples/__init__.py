"""Worked examples: machines written in this framework whose published state counts are pinned by tests."""
