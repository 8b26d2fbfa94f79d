"""Which of several names is the nearest to the one that was written."""

from __future__ import annotations

import itertools

import pytest

from runtime.names import nearest


@pytest.mark.parametrize(
    ("written", "names", "name", "says"),
    [
        ("calbin_sha256.0", ("calbin", "calbin_sha256"), "calbin_sha256", "goes on too long (character 14: U+002E"),
        ("max", ("max_sequence", "max_seq", "max_s"), "max_s", "is cut off (character 4: nothing where U+005F"),
        ("tiny_decode ", ("tiny", "tiny_decode", "tiny_decodes"), "tiny_decode", "white space at its ends"),
        ("tiny_decodes", ("tiny", "tiny_decode", "tiny_decoder"), "tiny_decode", "in one character"),
    ],
)
def test_the_nearest_shares_most(written: str, names: tuple[str, ...], name: str, says: str) -> None:
    """In whatever order they come."""
    for order in itertools.permutations(names):
        near = nearest(written, order)
        assert near is not None
        assert near.name == name
        assert says in near.says


def test_a_name_unlike_any_has_no_nearest() -> None:
    assert nearest("llama", ("calbin", "tiny_decode")) is None
    assert nearest("calbin", ("calbin",)) is None
