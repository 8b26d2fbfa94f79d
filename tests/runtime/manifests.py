"""What the tests of the manifest share: a good manifest, what the device says of its calbin, and ways to break them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from runtime.calbin import SAMPLES, CalbinFile, sample
from runtime.calrt import ModelInfo, TensorInfo
from runtime.manifest import ManifestError, ModelGeneration, load_manifest, verify

Json = dict[str, Any]
TINY = next(s for s in SAMPLES if s.name == "tiny")
VERSION = "0.7.6"  # §1
GOOD_TEXT = sample("tiny").with_suffix(".json").read_text(encoding="utf-8")
CALBIN_BYTES = sample("tiny").read_bytes()


def models_of(calbin: CalbinFile) -> tuple[ModelInfo, ...]:
    """What GetAllModels() says of a calbin: written from the calbin's own records, not from the manifest."""
    return tuple(
        ModelInfo(
            name=m.name,
            tensors=tuple(
                TensorInfo(t.name, t.shape, t.dtype, t.byte_size, t.sliceable, t.is_output) for t in m.tensors
            ),
            csr_names=tuple(name for name, _ in m.csrs),
            logits_tile_d0=m.tile,
            max_batch=m.max_batch,
            max_seq=m.max_seq,
        )
        for m in calbin.models
    )


GOOD_MODELS = models_of(TINY.calbin())


def write(directory: Path, text: str | bytes) -> Path:
    """A manifest file with the tiny calbin beside it."""
    (directory / "tiny.calbin").write_bytes(CALBIN_BYTES)
    path = directory / "m.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    return path


def start(path: Path, models: tuple[ModelInfo, ...] = GOOD_MODELS, version: str = VERSION) -> ModelGeneration:
    """What start-up does with a manifest. Raises ManifestError."""
    manifest = load_manifest(path)
    return verify(manifest, manifest.calbin_path, models, version)


def findings(path: Path, models: tuple[ModelInfo, ...] = GOOD_MODELS, version: str = VERSION) -> tuple[str, ...]:
    """Everything that start-up finds; empty when it would go on."""
    try:
        start(path, models, version)
    except ManifestError as e:
        return e.findings
    return ()


# -- ways to break a manifest ----------------------------------------------------------------------------------------
Mutation = Callable[[Json], Any]


def parent_of(data: Any, where: str) -> tuple[Any, Any]:
    """(container, key) of a dotted place such as `submodels.0.logits.shape`."""
    *path, last = [int(p) if p.isdigit() else p for p in where.split(".")]
    for step in path:
        data = data[step]
    return data, last


def put(where: str, value: Any) -> Mutation:
    """Write a value; a function changes what is there."""

    def mutate(data: Json) -> None:
        container, key = parent_of(data, where)
        container[key] = value(container[key]) if callable(value) else value

    return mutate


def drop(where: str) -> Mutation:
    def mutate(data: Json) -> None:
        container, key = parent_of(data, where)
        del container[key]

    return mutate


def both(*mutations: Mutation) -> Mutation:
    def mutate(data: Json) -> None:
        for m in mutations:
            m(data)

    return mutate


def mutated(mutation: Mutation) -> str:
    """The text of the good manifest after a mutation."""
    data = json.loads(GOOD_TEXT)
    mutation(data)
    return json.dumps(data)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, containers included."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


def assert_pieces(line: str, wanted: str) -> None:
    """The pieces of `wanted`, between `...`, stand in the line in this order, and it is one line."""
    at = 0
    for piece in wanted.split(" ... "):
        assert piece in line[at:], f"{piece!r} is not in {line[at:]!r}"
        at = line.index(piece, at) + len(piece)
    assert line.isprintable()
