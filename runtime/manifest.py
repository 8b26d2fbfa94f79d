"""The manifest (§4.1): which submodels a calbin must have, to the byte; and whether it has them.

Theory. The product chose a submodel by a part of its name, the last match winning (S08), and took the tile of the
logits for granted (S09). Here every name, shape, dtype and size is written down beforehand, and start-up compares it
with what the device's metadata says: exactly, in both directions, and before anything is configured (§10.2, FI01).
There are two questions. Is the manifest sound by itself (`load_manifest`): each number follows from others, so a slip
shows without a device. Is it true (`verify`): the library's version, the calbin's digest and every model are compared
field by field. What passes both becomes a `ModelGeneration`; everything else a `ManifestError` with all findings.
"""

from __future__ import annotations

import enum
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType

from attrs import evolve, field, frozen

from runtime.calrt import Calbin, ModelInfo, PrimitiveType, TensorInfo
from runtime.names import hint, listed, nearest, plain, shown
from runtime.strict_json import U32, U64, JsonError, check_regular, load

__all__ = [
    "ITEM_BYTES",
    "CalTaskKind",
    "Manifest",
    "ManifestError",
    "ModelGeneration",
    "SubmodelContract",
    "TensorContract",
    "digest_of",
    "load_manifest",
    "refused_names",
    "verify",
    "verify_loaded",
]

ITEM_BYTES = {PrimitiveType.S32: 4, PrimitiveType.BF16: 2, PrimitiveType.F32: 4}
POSITION_MAX = 2**31 - 1  # positions are S32


class ManifestError(ValueError):
    """The manifest is not sound, or not true. `findings`: what was found, what was expected, where; one line each."""

    def __init__(self, subject: str, findings: Iterable[str]) -> None:
        self.subject = subject
        self.findings = tuple(findings)
        self.lines = tuple(f"{plain(subject)}: {f}" for f in self.findings)
        super().__init__("\n".join(self.lines))


# -- types (§4.1) ----------------------------------------------------------------------------------------------------
def _key(about: str) -> dict[str, str]:
    """Metadata of a field that is a key of the file: what it means (docs/manifest.md)."""
    return {"about": about}


class CalTaskKind(enum.Enum):
    """What a submodel is for. Vision is named by the specification, but nothing says what it takes."""

    PrefillIds, PrefillEmbeds, Decode, Vision = range(4)


@frozen
class TensorContract:
    """One tensor of a submodel (§4.1)."""

    name: str = field(metadata=_key("exact name"))
    shape: tuple[U64, ...] = field(metadata=_key("logical shape"))
    dtype: PrimitiveType = field(metadata=_key("type of the elements"))
    byte_size: U64 = field(metadata=_key("ByteSize, which is physical: of a logits tensor all rows of the tile"))
    sliceable: bool = field(
        metadata=_key("whether SliceTensor may be called; true for an input of more than one token")
    )


@frozen
class SubmodelContract:
    """One submodel (§4.1)."""

    kind: CalTaskKind = field(metadata=_key("what it is for; Vision is refused, and each kind occurs once at most"))
    exact_name: str = field(metadata=_key("name among GetAllModels(), compared character by character"))
    token_or_embed: TensorContract = field(
        metadata=_key("tokens S32 [1, max_seq]; embeddings BF16 [1, max_seq, hidden]; of Decode S32 [1, 1]")
    )
    position: TensorContract = field(metadata=_key("positions S32 [1, max_seq]; of Decode [1, 1]"))
    logits: TensorContract = field(
        metadata=_key("logits BF16 [1, 1, vocabulary]; ByteSize logits_tile_d0 x vocabulary x 2")
    )
    csr_cur_seq: str = field(metadata=_key("CSR that takes the number of tokens of a call"))
    csr_total_seq: str = field(metadata=_key("CSR that takes the sequence's length after it"))
    max_batch: U32 = field(metadata=_key("sequences of one call; 1 (§6.3)"))
    max_seq: U32 = field(metadata=_key("longest sequence in tokens, the same in all submodels"))
    logits_tile_d0: U32 = field(
        metadata=_key("rows of the logits' tile, as the graph's metadata says; there is no default")
    )

    @property
    def vocabulary(self) -> int:
        """Elements of one row of logits."""
        return self.logits.shape[-1]


@frozen
class Manifest:
    """A manifest file. path: where it was read from; the calbin lies beside it."""

    calbin: str = field(metadata=_key("the calbin's file name, beside the manifest"))
    calbin_sha256: str = field(metadata=_key("SHA-256 of that file, 64 lower-case hexadecimal digits"))
    calrt_version: str = field(metadata=_key("the CalRT version that it is for, compared character by character"))
    submodels: tuple[SubmodelContract, ...] = field(metadata=_key("every submodel of the calbin, in any order"))
    golden_sha256: str = field(
        default="",
        metadata=_key("digest of the golden run's logits (runtime/golden.py); without it the first run counts"),
    )
    path: Path = field(factory=Path, eq=False)

    @property
    def calbin_path(self) -> Path:
        return self.path.parent / self.calbin


def _read_only(submodels: Mapping[CalTaskKind, SubmodelContract]) -> Mapping[CalTaskKind, SubmodelContract]:
    return MappingProxyType(dict(submodels))


@frozen
class ModelGeneration:
    """What was verified and may be configured (§4.1). generation_id: the caller's, 1 for the first."""

    generation_id: int
    calbin_sha256: str
    calrt_version: str
    submodels: Mapping[CalTaskKind, SubmodelContract] = field(converter=_read_only, hash=False)

    def same(self, other: ModelGeneration) -> bool:
        """Whether what was checked for the other is true of this one: the same calbin, under the same contracts."""
        return self is other or (self.calbin_sha256, self.submodels) == (other.calbin_sha256, other.submodels)


# -- sound by itself -------------------------------------------------------------------------------------------------
def load_manifest(path: Path) -> Manifest:
    """Read a manifest and judge it by itself; no library is needed. Raises ManifestError."""
    try:
        read = load(path, Manifest)
    except JsonError as e:
        raise ManifestError(str(path), e.findings) from None
    manifest = evolve(read, path=path)
    _refuse(manifest, unsound(manifest))
    return manifest


def _refuse(manifest: Manifest, findings: Iterable[str]) -> None:
    if found := tuple(findings):
        raise ManifestError(str(manifest.path), found)


def unsound(manifest: Manifest) -> Iterator[str]:
    """What is wrong with a manifest whatever the calbin is."""
    if Path(manifest.calbin).name != manifest.calbin or set(manifest.calbin) & set("\\\0"):
        yield f"calbin is {shown(manifest.calbin)}; expected a file name alone: the calbin lies beside the manifest"
    for key, digest in (("calbin_sha256", manifest.calbin_sha256), ("golden_sha256", manifest.golden_sha256)):
        if not re.fullmatch("[0-9a-f]{64}", digest) and (digest or key == "calbin_sha256"):
            yield f"{key} is {shown(digest)} ({len(digest)} characters); expected 64 lower-case hexadecimal digits"
    for i, m in enumerate(manifest.submodels):
        yield from _unsound_submodel(f"submodels[{i}]", m)
    yield from _unsound_together(manifest.submodels)


def _unsound_together(submodels: Sequence[SubmodelContract]) -> Iterator[str]:
    kinds = [m.kind for m in submodels]
    yield from _twice(submodels, "kind", [k.name for k in kinds])
    yield from _twice(submodels, "exact_name", [m.exact_name for m in submodels])
    if CalTaskKind.Decode not in kinds:
        yield f"submodels has {_names(kinds)}; expected one of kind Decode"
    if not {CalTaskKind.PrefillIds, CalTaskKind.PrefillEmbeds} & set(kinds):
        yield f"submodels has {_names(kinds)}; expected one of kind PrefillIds or PrefillEmbeds"
    served = [m for m in submodels if m.kind is not CalTaskKind.Vision]
    yield from _differing("max_seq", {m.exact_name: m.max_seq for m in served})
    yield from _differing("vocabulary", {m.exact_name: m.vocabulary for m in served if m.logits.shape})


def _names(kinds: Sequence[CalTaskKind]) -> str:
    return ", ".join(k.name for k in kinds) or "no submodel"


def _twice(submodels: Sequence[SubmodelContract], key: str, values: Sequence[str]) -> Iterator[str]:
    for value, n in Counter(values).items():
        if n > 1:
            where = " and ".join(f"submodels[{i}]" for i, v in enumerate(values) if v == value)
            yield f"{key} {shown(value)} is given {n} times, in {where}; expected once"


def _differing(what: str, values: Mapping[str, int]) -> Iterator[str]:
    if len(set(values.values())) > 1:
        found = ", ".join(f"{value} in {shown(name)}" for name, value in values.items())
        yield f"{what} is {found}; expected the same in every submodel"


def _refused(at: str, name: str) -> Iterator[str]:
    """A NUL would end a name in C, and other control characters cannot be told apart on a screen."""
    for i, c in enumerate(name, 1):
        if unicodedata.category(c) == "Cc":
            yield f"{at} is {shown(name)}; expected no control character, and character {i} is U+{ord(c):04X}"
            return


def refused_names(models: Iterable[ModelInfo]) -> Iterator[str]:
    """Names of a calbin that no manifest can name."""
    for m in models:
        yield from _refused("a submodel's name", m.name)
        for t in m.tensors:
            yield from _refused(f"a tensor's name of submodel {shown(m.name)}", t.name)
        for name in m.csr_names:
            yield from _refused(f"a CSR's name of submodel {shown(m.name)}", name)


def _refused_in(at: str, m: SubmodelContract) -> Iterator[str]:
    yield from _refused(f"{at}.exact_name", m.exact_name)
    for role in ("token_or_embed", "position", "logits"):
        yield from _refused(f"{at}.{role}.name", getattr(m, role).name)
    for key in ("csr_cur_seq", "csr_total_seq"):
        yield from _refused(f"{at}.{key}", getattr(m, key))


def _unsound_submodel(at: str, m: SubmodelContract) -> Iterator[str]:
    yield from _refused_in(at, m)
    if m.kind is CalTaskKind.Vision:
        yield f"{at}.kind is Vision; expected PrefillIds, PrefillEmbeds or Decode: what a Vision graph takes is unknown"
        return
    if m.max_batch != 1:
        yield f"{at}.max_batch is {m.max_batch}; expected 1: a call has one sequence (§6.3)"
    if m.max_seq > POSITION_MAX:
        yield f"{at}.max_seq is {m.max_seq}; expected at most {POSITION_MAX}: positions are S32"
    if m.csr_cur_seq == m.csr_total_seq:
        yield f"{at}.csr_cur_seq and csr_total_seq are both {shown(m.csr_cur_seq)}; expected two CSRs"
    yield from _same_tensors(at, m)
    tokens = 1 if m.kind is CalTaskKind.Decode else m.max_seq
    if m.kind is CalTaskKind.PrefillEmbeds:
        yield from _unsound_input(f"{at}.token_or_embed", m.token_or_embed, PrimitiveType.BF16, (1, tokens, "hidden"))
    else:
        yield from _unsound_input(f"{at}.token_or_embed", m.token_or_embed, PrimitiveType.S32, (1, tokens))
    yield from _unsound_input(f"{at}.position", m.position, PrimitiveType.S32, (1, tokens))
    yield from _unsound_logits(f"{at}.logits", m.logits, m.logits_tile_d0)


def _same_tensors(at: str, m: SubmodelContract) -> Iterator[str]:
    for name, n in Counter(t.name for t in (m.token_or_embed, m.position, m.logits)).items():
        if n > 1:
            yield f"{at} names {n} of its tensors {shown(name)}; expected three different names"


def _unsound_input(at: str, t: TensorContract, dtype: PrimitiveType, shape: tuple[int | str, ...]) -> Iterator[str]:
    wrong = tuple(_wrong_form(at, t, dtype, shape))
    yield from wrong
    size = prod(t.shape) * ITEM_BYTES[dtype]
    if not wrong and t.byte_size != size:  # a size that follows from a wrong shape says nothing
        yield f"{at}.byte_size is {t.byte_size}; expected {size}: {_text(t.shape)} of {ITEM_BYTES[dtype]} bytes"
    if not t.sliceable and shape[1] != 1:
        yield f"{at}.sliceable is false; expected true: a call with fewer tokens passes a slice"


def _unsound_logits(at: str, t: TensorContract, tile: int) -> Iterator[str]:
    wrong = tuple(_wrong_form(at, t, PrimitiveType.BF16, (1, 1, "vocabulary")))
    yield from wrong
    if wrong:
        return
    size = tile * t.shape[-1] * ITEM_BYTES[t.dtype]
    if t.byte_size != size:
        rows = f"logits_tile_d0 {tile} x vocabulary {t.shape[-1]} x {ITEM_BYTES[t.dtype]} bytes"
        yield f"{at}.byte_size is {t.byte_size}; expected {size}: {rows}"


def _wrong_form(at: str, t: TensorContract, dtype: PrimitiveType, shape: tuple[int | str, ...]) -> Iterator[str]:
    """shape: a word stands for any number."""
    if t.dtype is not dtype:
        yield f"{at}.dtype is {t.dtype.name}; expected {dtype.name}"
    if len(t.shape) != len(shape) or any(isinstance(w, int) and w != f for f, w in zip(t.shape, shape, strict=True)):
        found, expected = _texts(t.shape, shape)
        yield f"{at}.shape is {found}; expected {expected}"


def _text(shape: Iterable[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _texts(*shapes: Sequence[int | str]) -> Iterator[str]:
    """Shapes that differ, with their ranks when these differ too."""
    ranks = {len(s) for s in shapes}
    return (_text(s) + (f" of rank {len(s)}" if len(ranks) > 1 else "") for s in shapes)


# -- true of this calbin and library ---------------------------------------------------------------------------------
def verify(
    manifest: Manifest,
    calbin: Path | bytes,
    models: Sequence[ModelInfo],
    runtime_version: str,
    generation_id: int = 1,
) -> ModelGeneration:
    """The generation that may be configured. calbin: its file, or its bytes; models: what `Calbin.models()` returned;
    runtime_version: what `Library.version()` returned. Calls nothing of CalRT. Raises ManifestError, all findings."""
    findings = [
        *unsound(manifest),
        *untrue_version(manifest, runtime_version),
        *untrue_digest(manifest, calbin),
        *untrue_models(manifest, models),
    ]
    _refuse(manifest, findings)
    submodels = {m.kind: m for m in manifest.submodels}
    return ModelGeneration(generation_id, manifest.calbin_sha256, manifest.calrt_version, submodels)


def verify_loaded(manifest: Manifest, calbin: Calbin, generation_id: int = 1) -> ModelGeneration:
    """`verify` against the calbin that CalRT has loaded, and the library that loaded it. Raises ManifestError."""
    _, models = calbin.models()
    _, version = calbin.library.version()
    return verify(manifest, manifest.calbin_path, models, version, generation_id)


def untrue_version(manifest: Manifest, runtime_version: str) -> Iterator[str]:
    """Whether the library is the one that the manifest is for."""
    if manifest.calrt_version != runtime_version:
        yield f"calrt_version is {shown(manifest.calrt_version)}; expected {shown(runtime_version)}, the library's"


def untrue_digest(manifest: Manifest, calbin: Path | bytes) -> Iterator[str]:
    """Whether the calbin is the one that the manifest is for."""
    try:
        found = digest_of(calbin)
    except JsonError as e:
        yield f"the calbin {shown(str(calbin))} {e}; expected it beside the manifest"
        return
    if manifest.calbin_sha256 != found:
        yield f"calbin_sha256 is {shown(manifest.calbin_sha256)}; expected {shown(found)}, the file's"


def digest_of(calbin: Path | bytes) -> str:
    """SHA-256 as the manifest writes it. Raises JsonError when the file cannot be read."""
    if isinstance(calbin, bytes):
        return hashlib.sha256(calbin).hexdigest()
    check_regular(calbin)
    try:
        with calbin.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise JsonError([f"cannot be read: {e.strerror or e}"]) from None


def untrue_models(manifest: Manifest, models: Sequence[ModelInfo]) -> Iterator[str]:
    """Whether the submodels are exactly those that the manifest names (§10.2), and each is as its contract says."""
    wanted = {f"submodels[{i}].exact_name": m.exact_name for i, m in enumerate(manifest.submodels)}
    yield from _untrue_names("the calbin", "submodel", wanted, [m.name for m in models])
    for i, contract in enumerate(manifest.submodels):
        matching = [m for m in models if m.name == contract.exact_name]
        if len(matching) == 1:
            yield from _untrue_submodel(f"submodels[{i}]", contract, matching[0])


def _untrue_names(owner: str, what: str, wanted: Mapping[str, str], there: Sequence[str]) -> Iterator[str]:
    """Exact lookup, both ways: each wanted name (by where it is written) is there once, and nothing else is. A name
    that nearly is the wanted one is reported together with it; it is never taken for it."""
    spare = [n for n in dict.fromkeys(there) if n not in wanted.values()]
    for where, name in wanted.items():
        if (n := there.count(name)) > 1:
            yield f"{where} is {shown(name)}, which {owner} has {n} times; expected exactly once"
        elif n == 0:
            names = listed(dict.fromkeys(there))
            yield f"{where} is {shown(name)}; expected a {what} of {owner}, which has {names}{hint(name, spare)}"
            if near := nearest(name, spare):  # one finding for both
                spare.remove(near.name)
    for name in spare:
        yield f"{owner} has the {what} {shown(name)}; expected none that the manifest does not name"


def _untrue_submodel(at: str, contract: SubmodelContract, model: ModelInfo) -> Iterator[str]:
    roles = {"token_or_embed": contract.token_or_embed, "position": contract.position, "logits": contract.logits}
    owner = f"submodel {shown(model.name)} of the calbin"
    wanted = {f"{at}.{role}.name": t.name for role, t in roles.items()}
    yield from _untrue_names(owner, "tensor", wanted, [t.name for t in model.tensors])
    for role, tensor in roles.items():
        matching = [t for t in model.tensors if t.name == tensor.name]
        if len(matching) == 1:
            yield from _untrue_tensor(f"{at}.{role}", tensor, matching[0], is_output=role == "logits")
    csrs = {f"{at}.{key}": getattr(contract, key) for key in ("csr_cur_seq", "csr_total_seq")}
    yield from _untrue_names(owner, "CSR", csrs, model.csr_names)
    for key in ("max_batch", "max_seq", "logits_tile_d0"):
        yield from _untrue_value(f"{at}.{key}", getattr(contract, key), getattr(model, key))


def _untrue_tensor(at: str, contract: TensorContract, tensor: TensorInfo, is_output: bool) -> Iterator[str]:
    dtype = tensor.dtype.name if isinstance(tensor.dtype, PrimitiveType) else f"the unknown dtype {tensor.dtype}"
    yield from _untrue_value(f"{at}.dtype", contract.dtype.name, dtype)
    yield from _untrue_value(f"{at}.shape", *_texts(contract.shape, tensor.shape))
    yield from _untrue_value(f"{at}.byte_size", contract.byte_size, tensor.byte_size)
    yield from _untrue_value(f"{at}.sliceable", shown(contract.sliceable), shown(tensor.sliceable))
    if tensor.is_output is not is_output:
        kinds = {True: "an output", False: "an input"}
        name = shown(tensor.name)
        yield f"{at} is {kinds[is_output]}; expected {kinds[tensor.is_output]}, which {name} is in the calbin"


def _untrue_value(at: str, found: object, expected: object) -> Iterator[str]:
    if found != expected:
        yield f"{at} is {found}; expected {expected}, the calbin's"
