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
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

import numpy as np
from attrs import Attribute, field, frozen

from runtime.calrt import PrimitiveType
from runtime.golden import DECODES, PROMPT, digest
from runtime.manifest import ITEM_BYTES, CalTaskKind, Manifest, SubmodelContract, TensorContract, digest_of
from runtime.oracle import Oracle
from runtime.strict_json import dumps

MODELS = Path(__file__).parent / "models"
RUNTIME = "0.7.6"
PAYLOAD_BYTES = 64
HIDDEN = 64  # elements of one embedding in the samples


def _one_word(instance: object, attribute: Attribute[str], value: str) -> None:
    if not value or value.split() != [value]:
        raise ValueError(f"{attribute.name} {value!r} is not one word: fields are separated by white space")


@frozen
class Tensor:
    """One tensor. shape: logical. byte_size: physical, so of all rows of an output tile. Raises ValueError."""

    name: str = field(validator=_one_word)
    is_output: bool
    dtype: PrimitiveType
    shape: tuple[int, ...]
    byte_size: int
    sliceable: bool
    role: str

    def line(self) -> str:
        direction, shape = ("out" if self.is_output else "in"), ",".join(map(str, self.shape))
        form = f"{direction} {self.dtype.name} {shape} {self.byte_size} {self.sliceable:d}"
        return f"tensor {self.name} {form} {self.role}"


@frozen
class Model:
    """One submodel. csrs: (name, role), the role being cur or total. tile: rows of the logits' tile."""

    name: str = field(validator=_one_word)
    kind: CalTaskKind
    tensors: tuple[Tensor, ...]
    csrs: tuple[tuple[str, str], ...]
    tile: int
    max_batch: int
    max_seq: int

    def lines(self) -> Iterator[str]:
        yield f"model {self.name} {self.kind.name} max_batch {self.max_batch} max_seq {self.max_seq} tile {self.tile}"
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
        models = (
            self._model("prefill", CalTaskKind.PrefillIds, self.prefill_tile),
            self._model("prefill_embeds", CalTaskKind.PrefillEmbeds, self.prefill_tile),
            self._model("decode", CalTaskKind.Decode, self.decode_tile),
        )
        return CalbinFile(int.from_bytes(digest[:8], "little"), models, (digest * 2)[:PAYLOAD_BYTES])

    def _model(self, name: str, kind: CalTaskKind, tile: int) -> Model:
        tokens = 1 if kind is CalTaskKind.Decode else self.max_seq
        return Model(
            f"{self.prefix}_{name}",
            kind,
            (
                _first_input(kind, tokens),
                _input("position_ids", PrimitiveType.S32, (1, tokens), "positions"),
                _logits(self.vocabulary, tile),
            ),
            (("cur_seq", "cur"), ("total_seq", "total")),
            tile,
            max_batch=1,
            max_seq=self.max_seq,
        )


def _first_role(kind: CalTaskKind) -> str:
    return "embeds" if kind is CalTaskKind.PrefillEmbeds else "tokens"


def _first_input(kind: CalTaskKind, tokens: int) -> Tensor:
    if kind is CalTaskKind.PrefillEmbeds:
        return _input("inputs_embeds", PrimitiveType.BF16, (1, tokens, HIDDEN), _first_role(kind))
    return _input("input_ids", PrimitiveType.S32, (1, tokens), _first_role(kind))


def _input(name: str, dtype: PrimitiveType, shape: tuple[int, ...], role: str) -> Tensor:
    return Tensor(name, False, dtype, shape, prod(shape) * ITEM_BYTES[dtype], sliceable=True, role=role)


def _logits(vocabulary: int, tile: int) -> Tensor:
    size = tile * vocabulary * ITEM_BYTES[PrimitiveType.BF16]
    return Tensor("logits", True, PrimitiveType.BF16, (1, 1, vocabulary), size, sliceable=False, role="logits")


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
def manifest_of(calbin: CalbinFile, calbin_name: str) -> Manifest:
    """The manifest (§4.1) of a calbin of ours; the roles tell which tensor is which."""
    submodels = tuple(_contract(m) for m in calbin.models)
    return Manifest(
        calbin_name, digest_of(calbin.render()), calbin.runtime, submodels, golden_of(calbin.seed, submodels)
    )


def golden_of(seed: int, submodels: Iterable[SubmodelContract]) -> str:
    """What the golden run has to say, from the definition of the simulated language model alone."""
    oracle = Oracle(seed, next(iter(submodels)).vocabulary)
    said: list[int] = list(PROMPT)
    rows = []
    for _ in range(1 + DECODES):
        rows.append((oracle.row(said).astype(np.uint32) << 16).view(np.float32))
        said.append(int(rows[-1].argmax()))
    return digest(rows)


def _contract(model: Model) -> SubmodelContract:
    by_role = {t.role: t for t in model.tensors}
    csrs = {role: name for name, role in model.csrs}
    return SubmodelContract(
        kind=model.kind,
        exact_name=model.name,
        token_or_embed=_tensor_contract(by_role[_first_role(model.kind)]),
        position=_tensor_contract(by_role["positions"]),
        logits=_tensor_contract(by_role["logits"]),
        csr_cur_seq=csrs["cur"],
        csr_total_seq=csrs["total"],
        max_batch=model.max_batch,
        max_seq=model.max_seq,
        logits_tile_d0=model.tile,
    )


def _tensor_contract(t: Tensor) -> TensorContract:
    return TensorContract(t.name, t.shape, t.dtype, t.byte_size, t.sliceable)


def files(samples: Iterable[Sample] = SAMPLES) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every file of `runtime/models/`."""
    for s in samples:
        calbin = s.calbin()
        name = f"{s.name}.calbin"
        yield name, calbin.render()
        yield f"{s.name}.json", dumps(manifest_of(calbin, name)).encode()


if __name__ == "__main__":
    for file_name, content in files():
        (MODELS / file_name).write_bytes(content)
        print(f"wrote {file_name}")
