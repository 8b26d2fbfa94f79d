"""The independent oracle of the simulated language model: what every logit must be, from the definition alone.

Theory. The device is trusted with nothing: its logits are compared bit for bit with what this file computes from the
seed, the vocabulary and the history. So it imports nothing of `runtime`, shares no line with the simulator, and reads
the two numbers it needs from the calbin file itself. A sequence is one 64-bit number h, folded over the KV entries in
their order; a row of logits is a rotated background plus four peaks, all of them functions of h. One wrong entry, one
entry too many or two of them swapped give another h, and so another row nearly everywhere.

    mix(x)      splitmix64's finalizer
    entry       E(p, t) = mix(seed ^ mix(t * 0x9E3779B97F4A7C15 + p))          t: token, or FNV-1a of an embeds row
    history     h_0 = mix(seed + 0x1234);  h_n+1 = mix(h_n * 6364136223846793005 + E)
    background  base[v] = mix(seed ^ (v + 0x5EED)) & 0xFF, / 16 - 8;  row[v] = base[(v + h % V) % V]
    peaks       at mix(h + j + 1) % V, for j = 0..3:  24 - 2 j + (mix(h ^ (0xABC + j)) & 7) / 8, the first one wins
    decoys      row i of an output tile, where it is not the last token's: the row of mix(h ^ (0xDEC0 + i))

All arithmetic is unsigned, 64 bits wide and wraps. Every value is exact in BF16, so equality is the only tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["Oracle", "Sequence", "fnv1a_rows"]

Bf16 = NDArray[np.uint16]
U64 = NDArray[np.uint64]

MASK = (1 << 64) - 1
PEAKS = 4


def mix(x: int) -> int:
    """splitmix64's finalizer, of one number."""
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def mix_all(values: U64) -> U64:
    """The same, of many."""
    x = values ^ (values >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def fnv1a_rows(rows: NDArray[np.uint16]) -> U64:
    """FNV-1a-64 of each row's bytes (BF16, little endian). rows: [tokens, hidden]; result: [tokens]."""
    columns = np.ascontiguousarray(rows.astype("<u2", copy=False)).view(np.uint8).T
    hashes = np.full(rows.shape[0], 0xCBF29CE484222325, np.uint64)
    for column in columns:  # over the bytes of a row; all rows at once
        hashes ^= column
        hashes *= np.uint64(0x100000001B3)
    return hashes


def bf16(values: NDArray[np.float32]) -> Bf16:
    """The upper halves. Raises ValueError where a value is not exact in BF16: a rounding would hide a difference."""
    bits = values.view(np.uint32)
    if np.any(bits & 0xFFFF):
        raise ValueError("a value is not exact in BF16")
    return (bits >> 16).astype(np.uint16)


class Oracle:
    """The language model of one calbin: `seed` as in its file, `vocabulary` logits a row."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        if not 0 <= seed <= MASK:
            raise ValueError(f"the seed is {seed}; it must be an unsigned 64-bit number")
        if vocabulary < 1:
            raise ValueError(f"the vocabulary is {vocabulary}; it must be at least 1")
        self.seed, self.vocabulary = seed, vocabulary
        k = mix_all(np.uint64(seed) ^ (np.arange(vocabulary, dtype=np.uint64) + np.uint64(0x5EED))) & np.uint64(0xFF)
        base = bf16(k.astype(np.float32) / np.float32(16) - np.float32(8))
        self._twice = np.concatenate([base, base])  # a rotation is then one slice

    @classmethod
    def of_calbin(cls, path: str | Path) -> Oracle:
        """Seed and vocabulary from a calbin file of the simulator, by a reader of its own.

        Raises ValueError when there is no `seed` line, no tensor with role `logits`, or models with different ones.
        """
        seed, vocabularies = None, set()
        with open(path, "rb") as file:
            for line in iter(file.readline, b""):
                match line.decode("utf-8").split():
                    case ["seed", number]:
                        seed = int(number)
                    case ["tensor", *_, shape, _, _, "logits"]:
                        vocabularies.add(int(shape.split(",")[-1]))
                    case ["payload", *_]:
                        break
        if seed is None or len(vocabularies) != 1:
            raise ValueError(f"{path}: seed {seed}, vocabularies {sorted(vocabularies)}; one of each is needed")
        return cls(seed, vocabularies.pop())

    def sequence(self) -> Sequence:
        """An empty sequence, to be extended call by call."""
        return Sequence(self)

    def tokens(self, prompt: Items[int], count: int) -> list[int]:
        """The `count` tokens that greedy decoding appends to `prompt` (token ids, at least one)."""
        sequence = self._of(prompt)
        answer: list[int] = []
        for _ in range(count):
            answer.append(sequence.token())
            sequence.extend(answer[-1:])
        return answer

    def row(self, history: Items[int]) -> Bf16:
        """The logits after the token ids `history`: [vocabulary], BF16 bits."""
        return self._of(history).row()

    def tile(self, history: Items[int], call: int, rows: int) -> Bf16:
        """The whole output tensor of a call that ended `history` with `call` tokens: [rows, vocabulary], BF16 bits."""
        return self._of(history).tile(call, rows)

    def _of(self, history: Items[int]) -> Sequence:
        if len(history) == 0:
            raise ValueError("the history is empty; there are no logits before the first token")
        sequence = self.sequence()
        sequence.extend(history)
        return sequence

    def row_of(self, h: int) -> Bf16:
        """The row of one history value."""
        size = self.vocabulary
        row = self._twice[h % size : h % size + size].copy()
        taken: set[int] = set()
        for j in range(PEAKS):
            at = mix(h + j + 1 & MASK) % size
            if at not in taken:
                taken.add(at)
                row[at] = bf16(np.array([24 - 2 * j + (mix(h ^ (0xABC + j)) & 7) / 8], np.float32))[0]
        return row


class Sequence:
    """One sequence's history. `length` entries, `value` is h after the last of them. `copy()` branches it."""

    def __init__(self, oracle: Oracle, length: int = 0, value: int | None = None) -> None:
        self.oracle, self.length = oracle, length
        self.value = mix(oracle.seed + 0x1234 & MASK) if value is None else value

    def copy(self) -> Sequence:
        return Sequence(self.oracle, self.length, self.value)

    def extend(self, tokens: Items[int]) -> None:
        """Appends token ids (int32; negative ones count as their 32 bits)."""
        self._append(np.asarray(tokens, np.int64).astype(np.uint32).astype(np.uint64))

    def extend_embeds(self, rows: NDArray[np.uint16]) -> None:
        """Appends embeds rows: [tokens, hidden], BF16 bits."""
        self._append(fnv1a_rows(rows) & np.uint64(0xFFFFFFFF))

    def _append(self, keys: U64) -> None:
        positions = np.arange(self.length, self.length + len(keys), dtype=np.uint64)
        entries = mix_all(np.uint64(self.oracle.seed) ^ mix_all(keys * np.uint64(0x9E3779B97F4A7C15) + positions))
        h = self.value
        for entry in entries.tolist():  # a chain: only this part is sequential
            h = mix(h * 6364136223846793005 + entry & MASK)
        self.value, self.length = h, self.length + len(keys)

    def token(self) -> int:
        """The greedy token: where the highest peak stands, which is the row's first maximum."""
        return mix(self.value + 1 & MASK) % self.oracle.vocabulary

    def row(self) -> Bf16:
        """The logits after the last entry: [vocabulary], BF16 bits."""
        return self.oracle.row_of(self.value)

    def tile(self, call: int, rows: int) -> Bf16:
        """The output tensor of a call of `call` tokens: [rows, vocabulary]. All rows but one are decoys."""
        last = (call - 1) % rows
        values = [self.value if i == last else mix(self.value ^ (0xDEC0 + i)) for i in range(rows)]
        return np.stack([self.oracle.row_of(h) for h in values])
