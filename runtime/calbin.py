"""The simulator's calbin file, and the sample models that are shipped.

Theory. A calbin is what a device is configured with: metadata of each submodel (tensors, tile, CSR names) and a
payload. The vendor's format is not known to us; the simulator reads the one below, and nothing but the simulator does.
It is one record a line, fields separated by one space, so that a broken one can be made with an editor:

    CALBIN 1
    runtime 0.7.6                      the oldest CalRT that may load it
    seed 7                             what the weights of a real model are: it decides every logit
    model decode Decode max_batch 1 max_seq 256 tile 1
    tensor input_ids in S32 1,1 4 1 tokens
    tensor logits out BF16 1,1,512 1024 0 logits
    csr cur_seq cur
    payload 64
    <64 raw bytes>

`tensor` and `csr` lines belong to the `model` line above them. Run as `python -m runtime.calbin` to write the samples
into `runtime/models/`, each with its manifest; a test holds the committed files to what this prints.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

from attrs import Attribute, field, frozen

MODELS = Path(__file__).parent / "models"
RUNTIME = "0.7.6"
PAYLOAD_BYTES = 64
ITEM_BYTES = {"S32": 4, "BF16": 2, "F32": 4}
HIDDEN = 64  # elements of one embedding in the samples
TOKEN_INPUT = {"PrefillIds": "tokens", "PrefillEmbeds": "embeds", "Decode": "tokens"}  # kind: role of its first input


def _one_word(instance: object, attribute: Attribute[str], value: str) -> None:
    if not value or value.split() != [value]:
        raise ValueError(f"{attribute.name} {value!r} is not one word: fields are separated by white space")


@frozen
class Tensor:
    """One tensor. shape: logical. byte_size: physical, so of all rows of an output tile. Raises ValueError."""

    name: str = field(validator=_one_word)
    is_output: bool
    dtype: str
    shape: tuple[int, ...]
    byte_size: int
    sliceable: bool
    role: str

    def line(self) -> str:
        direction, shape = ("out" if self.is_output else "in"), ",".join(map(str, self.shape))
        return f"tensor {self.name} {direction} {self.dtype} {shape} {self.byte_size} {self.sliceable:d} {self.role}"


@frozen
class Model:
    """One submodel. csrs: (name, role), the role being cur or total. tile: rows of the logits' tile."""

    name: str = field(validator=_one_word)
    kind: str
    tensors: tuple[Tensor, ...]
    csrs: tuple[tuple[str, str], ...]
    tile: int
    max_batch: int
    max_seq: int

    def lines(self) -> Iterator[str]:
        yield f"model {self.name} {self.kind} max_batch {self.max_batch} max_seq {self.max_seq} tile {self.tile}"
        yield from (t.line() for t in self.tensors)
        yield from (f"csr {name} {role}" for name, role in self.csrs)


@frozen
class CalbinFile:
    """A whole calbin of the simulator's."""

    seed: int
    models: tuple[Model, ...]
    payload: bytes
    runtime: str = field(default=RUNTIME, validator=_one_word)

    def render(self) -> bytes:
        """The file's bytes."""
        head = ["CALBIN 1", f"runtime {self.runtime}", f"seed {self.seed}"]
        body = [line for m in self.models for line in m.lines()]
        text = "\n".join([*head, *body, f"payload {len(self.payload)}"]) + "\n"
        return text.encode() + self.payload


# -- the samples -----------------------------------------------------------------------------------------------------
@frozen
class Sample:
    """What tells one shipped sample from another. The names of the submodels begin with `prefix`; one of them is the
    beginning of another, so that whoever looks names up by a part of them finds the wrong one (S08)."""

    name: str
    prefix: str
    vocabulary: int
    max_seq: int
    prefill_tile: int
    decode_tile: int

    def calbin(self) -> CalbinFile:
        digest = hashlib.sha256(self.name.encode()).digest()
        tiles = {"PrefillIds": self.prefill_tile, "PrefillEmbeds": self.prefill_tile, "Decode": self.decode_tile}
        models = tuple(self._model(kind, tile) for kind, tile in tiles.items())
        return CalbinFile(int.from_bytes(digest[:8], "little"), models, (digest * 2)[:PAYLOAD_BYTES])

    def _model(self, kind: str, tile: int) -> Model:
        name = {"PrefillIds": "prefill", "PrefillEmbeds": "prefill_embeds", "Decode": "decode"}[kind]
        tokens = 1 if kind == "Decode" else self.max_seq
        role = TOKEN_INPUT[kind]
        first = _input("inputs_embeds", "BF16", (1, tokens, HIDDEN), role)
        if role == "tokens":
            first = _input("input_ids", "S32", (1, tokens), role)
        return Model(
            f"{self.prefix}_{name}",
            kind,
            (first, _input("position_ids", "S32", (1, tokens), "positions"), _logits(self.vocabulary, tile)),
            (("cur_seq", "cur"), ("total_seq", "total")),
            tile,
            max_batch=1,
            max_seq=self.max_seq,
        )


def _input(name: str, dtype: str, shape: tuple[int, ...], role: str) -> Tensor:
    return Tensor(name, False, dtype, shape, prod(shape) * ITEM_BYTES[dtype], sliceable=True, role=role)


def _logits(vocabulary: int, tile: int) -> Tensor:
    size = tile * vocabulary * ITEM_BYTES["BF16"]
    return Tensor("logits", True, "BF16", (1, 1, vocabulary), size, sliceable=False, role="logits")


SAMPLES = (
    Sample("qwen3-tile16", "qwen3", 151936, 40960, prefill_tile=16, decode_tile=1),
    Sample("qwen3-tile8", "qwen3", 151936, 40960, prefill_tile=8, decode_tile=8),
    Sample("qwen3-tile1", "qwen3", 151936, 40960, prefill_tile=1, decode_tile=1),
    Sample("tiny", "tiny", 512, 256, prefill_tile=16, decode_tile=1),
)


def sample(name: str) -> Path:
    """The calbin of a shipped sample; its manifest is beside it, `.with_suffix(".json")`. Raises LookupError with the
    names there are."""
    if name not in {s.name for s in SAMPLES}:
        raise LookupError(f"no sample model is called {name!r}; there are {', '.join(s.name for s in SAMPLES)}")
    return MODELS / f"{name}.calbin"


# -- a manifest for it -----------------------------------------------------------------------------------------------
def manifest_of(calbin: CalbinFile, calbin_name: str) -> dict[str, Any]:
    """The manifest (§4.1) of a calbin of ours, as its JSON file says it; the roles tell which tensor is which."""
    return {
        "calbin": calbin_name,
        "calbin_sha256": hashlib.sha256(calbin.render()).hexdigest(),
        "calrt_version": calbin.runtime,
        "submodels": [_submodel(m) for m in calbin.models],
    }


def _submodel(model: Model) -> dict[str, Any]:
    by_role = {t.role: t for t in model.tensors}
    csrs = {role: name for name, role in model.csrs}
    return {
        "kind": model.kind,
        "exact_name": model.name,
        "token_or_embed": _tensor(by_role[TOKEN_INPUT[model.kind]]),
        "position": _tensor(by_role["positions"]),
        "logits": _tensor(by_role["logits"]),
        "csr_cur_seq": csrs["cur"],
        "csr_total_seq": csrs["total"],
        "max_batch": model.max_batch,
        "max_seq": model.max_seq,
        "logits_tile_d0": model.tile,
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "byte_size": tensor.byte_size,
        "sliceable": tensor.sliceable,
    }


def files(samples: Iterable[Sample] = SAMPLES) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every file of `runtime/models/`."""
    for s in samples:
        calbin = s.calbin()
        name = f"{s.name}.calbin"
        yield name, calbin.render()
        yield f"{s.name}.json", (json.dumps(manifest_of(calbin, name), indent=2) + "\n").encode()


if __name__ == "__main__":
    for file_name, content in files():
        (MODELS / file_name).write_bytes(content)
        print(f"wrote {file_name}")
