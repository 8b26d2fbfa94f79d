"""A manifest from a calbin's metadata, and what that does not say, given by the user: what each submodel is for, which
input carries the positions, and which CSR is which. Nothing is guessed from names or from their order (S08)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from runtime.calrt import ModelInfo, PrimitiveType, TensorInfo
from runtime.manifest import CalTaskKind, Manifest, ManifestError, SubmodelContract, TensorContract, digest_of, unsound
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
    if problems := [*_unknown(models, roles), *(p for m in models for p in _unfit(m, roles))]:
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


def _unfit(model: ModelInfo, roles: Roles) -> Iterator[str]:
    inputs, outputs = _sides(model)
    owner = f"submodel {shown(model.name)}"
    if len(inputs) != 2 or len(outputs) != 1:
        yield f"{owner} has {len(inputs)} inputs and {len(outputs)} outputs; expected 2 and 1"
    if roles.position not in inputs:
        yield f"{owner} has no input {shown(roles.position)}; its inputs are {listed(inputs)}"
    for name in (roles.csr_cur_seq, roles.csr_total_seq):
        if name not in model.csr_names:
            yield f"{owner} has no CSR {shown(name)}; its CSRs are {listed(model.csr_names)}"
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
