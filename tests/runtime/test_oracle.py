"""The oracle against published vectors, and against the definition written once more in plain Python numbers."""

from __future__ import annotations

import ast
import itertools
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import oracle
from runtime.oracle import Oracle, fnv1a_rows, mix, mix_all

WRAP = 2**64


# -- published vectors --


def test_mix_is_the_finalizer_of_splitmix64() -> None:
    """splitmix64 from seed 1234567 (the sequence that its implementations publish): state += gamma; mix(state)."""
    states = [(1234567 + n * 0x9E3779B97F4A7C15) % WRAP for n in range(1, 6)]
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [mix(s) for s in states] == published
    assert mix_all(np.array(states, np.uint64)).tolist() == published


@pytest.mark.parametrize(("text", "published"), [(b"", 0xCBF29CE484222325), (b"foobar", 0x85944171F73967E8)])
def test_fnv1a(text: bytes, published: int) -> None:
    """A row is bytes, two of them a value."""
    assert fnv1a_rows(np.frombuffer(text, "<u2").reshape(1, -1)).tolist() == [published]


# -- the definition, written once more: whole numbers, %, one value at a time, struct for BF16 --


def mix_by_hand(x: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ x // 2**shift) * factor % WRAP
    return x


def history_by_hand(seed: int, keys: list[int]) -> int:
    h = mix_by_hand((seed + 0x1234) % WRAP)
    for position, key in enumerate(keys):
        inner = mix_by_hand((key % 2**32 * 0x9E3779B97F4A7C15 + position) % WRAP)
        h = mix_by_hand((h * 6364136223846793005 + mix_by_hand(seed ^ inner)) % WRAP)
    return h


def bits(value: float) -> int:
    upper, lower = struct.unpack(">HH", struct.pack(">f", value))
    assert lower == 0
    return int(upper)


def row_by_hand(seed: int, vocabulary: int, h: int) -> list[int]:
    row = []
    for v in range(vocabulary):
        k = mix_by_hand(seed ^ ((v + h % vocabulary) % vocabulary + 0x5EED)) % 256
        row.append(bits(k / 16 - 8))
    for j in reversed(range(4)):  # the smaller j overwrites: the same as that it comes first
        row[mix_by_hand((h + j + 1) % WRAP) % vocabulary] = bits(24 - 2 * j + mix_by_hand(h ^ (0xABC + j)) % 8 / 8)
    return row


seeds = st.integers(0, WRAP - 1)
token_ids = st.integers(-(2**31), 2**31 - 1)


@given(seeds, st.integers(1, 40), st.lists(token_ids, min_size=1, max_size=6))
def test_row_is_the_definition(seed: int, vocabulary: int, history: list[int]) -> None:
    """Down to a vocabulary of 1, where all peaks fall on one place."""
    expected = row_by_hand(seed, vocabulary, history_by_hand(seed, history))
    assert Oracle(seed, vocabulary).row(history).tolist() == expected


@given(seeds, st.lists(token_ids, min_size=1, max_size=5), st.integers(1, 8))
def test_tokens_are_the_first_maxima_fed_back(seed: int, prompt: list[int], count: int) -> None:
    o = Oracle(seed, 61)
    history = list(prompt)
    for _ in range(count):
        row = [
            struct.unpack(">f", struct.pack(">HH", b, 0))[0]
            for b in row_by_hand(seed, 61, history_by_hand(seed, history))
        ]
        history.append(row.index(max(row)))
    assert o.tokens(prompt, count) == history[len(prompt) :]


@given(seeds, st.lists(token_ids, min_size=1, max_size=20), st.sampled_from([1, 2, 8, 16]))
def test_a_tile_holds_the_row_and_decoys(seed: int, history: list[int], rows: int) -> None:
    h = history_by_hand(seed, history)
    tile = Oracle(seed, 31).tile(history, len(history), rows)
    assert tile.shape == (rows, 31)
    last = (len(history) - 1) % rows
    for i in range(rows):
        value = h if i == last else mix_by_hand(h ^ (0xDEC0 + i))
        assert tile[i].tolist() == row_by_hand(seed, 31, value)


@given(seeds, st.lists(token_ids, max_size=30), st.lists(st.integers(0, 30), max_size=4))
def test_a_sequence_may_be_fed_in_any_pieces(seed: int, history: list[int], cuts: list[int]) -> None:
    sequence = Oracle(seed, 7).sequence()
    edges = [0, *sorted(min(c, len(history)) for c in cuts), len(history)]
    for begin, end in itertools.pairwise(edges):
        sequence.extend(history[begin:end])
    assert sequence.length == len(history)
    assert sequence.value == history_by_hand(seed, history)


def test_a_copy_is_a_branch() -> None:
    trunk = Oracle(5, 7).sequence()
    trunk.extend([1, 2])
    branch = trunk.copy()
    branch.extend([3])
    assert (trunk.length, branch.length) == (2, 3)
    assert trunk.value == history_by_hand(5, [1, 2])
    assert branch.value == history_by_hand(5, [1, 2, 3])


def test_embeds_rows_take_the_place_of_tokens() -> None:
    rows = np.array([[0x3F80, 0xBF80], [0, 0x8000]], np.uint16)
    keys = []
    for row in rows.tolist():
        hashed = 0xCBF29CE484222325
        for byte in b"".join(v.to_bytes(2, "little") for v in row):
            hashed = (hashed ^ byte) * 1099511628211 % WRAP
        keys.append(hashed % 2**32)
    sequence = Oracle(11, 13).sequence()
    sequence.extend_embeds(rows)
    sequence.extend([4])
    assert sequence.value == history_by_hand(11, [*keys, 4])


# -- pinned: computed once, so that both formulations changing together is seen --


def test_pinned() -> None:
    assert Oracle(42, 1000).tokens([72, 105], 4) == PINNED_TOKENS
    assert history_by_hand(42, [72, 105]) == PINNED_HISTORY


PINNED_HISTORY = 9651663007286710108
PINNED_TOKENS = [611, 864, 531, 680]


# -- reading the two numbers from a calbin file --

CALBIN = """CALBIN 1
runtime 0.7.6
seed 18446744073709551615
model m PrefillIds max_batch 1 max_seq 8 tile 2
tensor ids in S32 1,8 32 1 tokens
tensor logits out BF16 1,1,512 2048 0 logits
{more}payload 6
seed 7"""


def test_of_calbin(tmp_path: Path) -> None:
    """The payload is not read as records."""
    path = tmp_path / "x.calbin"
    path.write_text(CALBIN.format(more=""), encoding="utf-8")
    found = Oracle.of_calbin(path)
    assert (found.seed, found.vocabulary) == (WRAP - 1, 512)


@pytest.mark.parametrize(
    "text",
    [
        CALBIN.format(more="tensor logits out BF16 1,1,513 2052 0 logits\n"),
        CALBIN.replace("seed 18446744073709551615\n", "").format(more=""),
        "CALBIN 1\nseed 1\npayload 0\n",
    ],
)
def test_a_calbin_without_one_seed_and_one_vocabulary_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.calbin"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="one of each is needed"):
        Oracle.of_calbin(path)


# -- misuse, and independence --


@pytest.mark.parametrize(("seed", "vocabulary"), [(-1, 5), (WRAP, 5), (1, 0)])
def test_impossible_models_are_refused(seed: int, vocabulary: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        Oracle(seed, vocabulary)


def test_an_empty_history_has_no_logits() -> None:
    with pytest.raises(ValueError, match="empty"):
        Oracle(1, 5).row([])


def test_a_value_that_bf16_would_round_is_refused() -> None:
    with pytest.raises(ValueError, match="not exact"):
        oracle.bf16(np.array([1 / 3], np.float32))


def test_the_oracle_is_independent() -> None:
    """It imports nothing of ours."""
    source = Path(oracle.__file__).read_text(encoding="utf-8")
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module).split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"numpy"}
