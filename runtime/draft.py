"""A manifest from a calbin's metadata, and what that does not say, given by the user: what each submodel is for, which
input carries the positions, and which CSR is which. Nothing is guessed from names or from their order (S08)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from runtime.calrt import ModelInfo, PrimitiveType, TensorInfo
from runtime.manifest import (
    CalTaskKind,
    Manifest,
    ManifestError,
    SubmodelContract,
    TensorContract,
    digest_of,
    refused_names,
    unsound,
)
from runtime.names import hint, listed, shown
from runtime.strict_json import JsonError


@frozen
class Roles:
    """What the metadata does not say. kinds: by the submodel's exact name."""

    kinds: Mapping[str, CalTaskKind]
    position: str
    csr_cur_seq: str
    csr_total_seq: str


def draft(calbin: Path, models: Sequence[ModelInfo], version: str, roles: Roles) -> Manifest:
    """A sound manifest for this calbin and this library, to lie beside the calbin. Raises ManifestError."""
    unfit = (problem for model in models for problem in _unfit(model))
    if problems := [*refused_names(models), *_unknown(models, roles), *unfit, *_lacking(models, roles)]:
        raise ManifestError(str(calbin), problems)
    try:
        digest = digest_of(calbin)
    except JsonError as e:
        raise ManifestError(str(calbin), e.findings) from None
    manifest = Manifest(calbin.name, digest, version, tuple(_contract(m, roles) for m in models))
    if problems := list(unsound(manifest)):
        raise ManifestError(str(calbin), problems)
    return manifest


def _unknown(models: Sequence[ModelInfo], roles: Roles) -> Iterator[str]:
    names = [m.name for m in models]
    for name in roles.kinds:
        if name not in names:
            yield f"a kind is given for {shown(name)}; expected a submodel of {listed(names)}{hint(name, names)}"
    for name in names:
        if name not in roles.kinds:
            yield f"no kind is given for the submodel {shown(name)}; expected --kind {name}=KIND"


def _lacking(models: Sequence[ModelInfo], roles: Roles) -> Iterator[str]:
    """A name that is wrong for several submodels is one finding."""
    inputs = [(m.name, tuple(_sides(m)[0])) for m in models]
    yield from _lacking_one("input", roles.position, inputs)
    for name in (roles.csr_cur_seq, roles.csr_total_seq):
        yield from _lacking_one("CSR", name, [(m.name, m.csr_names) for m in models])


def _lacking_one(what: str, name: str, owned: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """owned: the names that each submodel has."""
    without = [(model, names) for model, names in owned if name not in names]
    if not without:
        return
    there = tuple(dict.fromkeys(n for _, names in without for n in names))
    models = listed(model for model, _ in without)
    has = f"submodel {models} has" if len(without) == 1 else f"submodels {models} have"
    yield f"{has} no {what} {shown(name)}; expected one of {listed(there)}{hint(name, there)}"


def _unfit(model: ModelInfo) -> Iterator[str]:
    inputs, outputs = _sides(model)
    owner = f"submodel {shown(model.name)}"
    if len(inputs) != 2 or len(outputs) != 1:
        yield f"{owner} has {len(inputs)} inputs and {len(outputs)} outputs; expected 2 and 1"
    for t in model.tensors:
        if not isinstance(t.dtype, PrimitiveType):
            yield f"{owner} has the tensor {shown(t.name)} of the unknown dtype {t.dtype}"


def _sides(model: ModelInfo) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo]]:
    sides: tuple[dict[str, TensorInfo], dict[str, TensorInfo]] = ({}, {})
    for t in model.tensors:
        sides[t.is_output][t.name] = t
    return sides


def _contract(model: ModelInfo, roles: Roles) -> SubmodelContract:
    inputs, outputs = _sides(model)
    (first,) = (t for name, t in inputs.items() if name != roles.position)
    (logits,) = outputs.values()
    return SubmodelContract(
        kind=roles.kinds[model.name],
        exact_name=model.name,
        token_or_embed=_tensor(first),
        position=_tensor(inputs[roles.position]),
        logits=_tensor(logits),
        csr_cur_seq=roles.csr_cur_seq,
        csr_total_seq=roles.csr_total_seq,
        max_batch=model.max_batch,
        max_seq=model.max_seq,
        logits_tile_d0=model.logits_tile_d0,
    )


def _tensor(t: TensorInfo) -> TensorContract:
    return TensorContract(t.name, t.shape, PrimitiveType(t.dtype), t.byte_size, t.sliceable)
