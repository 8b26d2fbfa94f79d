"""A good manifest and a calbin that is not as it says: every field is compared, in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from manifests import GOOD_MODELS, GOOD_TEXT, assert_pieces, findings, write

from runtime.calrt import ModelInfo, PrimitiveType, TensorInfo


def device(i: int, **changes: Any) -> tuple[ModelInfo, ...]:
    models = list(GOOD_MODELS)
    models[i] = evolve(models[i], **changes)
    return tuple(models)


def device_tensor(i: int, j: int, **changes: Any) -> tuple[ModelInfo, ...]:
    tensors = list(GOOD_MODELS[i].tensors)
    tensors[j] = evolve(tensors[j], **changes)
    return device(i, tensors=tuple(tensors))


SPARE = TensorInfo("mask", (1, 256), PrimitiveType.S32, 1024, True, False)
BROKEN_DEVICES: list[tuple[str, tuple[ModelInfo, ...], list[tuple[str, ...]]]] = [
    (
        "no submodel",
        (),
        [(f"submodels[{i}].exact_name is", "expected a submodel of the calbin, which has none") for i in range(3)],
    ),
    ("a submodel twice", (*GOOD_MODELS, GOOD_MODELS[2]), [("submodels[2].exact_name", "2 times", "exactly once")]),
    (
        "a submodel too many",
        (*GOOD_MODELS, evolve(GOOD_MODELS[2], name="tiny_decode2")),
        [('the calbin has the submodel "tiny_decode2"', "expected none that the manifest does not name")],
    ),
    (
        "a name with a blank",
        device(2, name="tiny_decode "),
        [("submodels[2].exact_name", '"tiny_decode "', "white space", "nothing where U+0020 SPACE is")],
    ),
    ("max_seq", device(2, max_seq=128), [("submodels[2].max_seq is 256", "expected 128, the calbin's")]),
    ("max_batch", device(2, max_batch=4), [("submodels[2].max_batch is 1", "expected 4, the calbin's")]),
    ("tile", device(2, logits_tile_d0=16), [("submodels[2].logits_tile_d0 is 1", "expected 16, the calbin's")]),
    (
        "no CSR",
        device(2, csr_names=()),
        [("submodels[2].csr_cur_seq", "which has none"), ("submodels[2].csr_total_seq", "which has none")],
    ),
    (
        "a CSR too many",
        device(2, csr_names=("cur_seq", "total_seq", "mode")),
        [("submodel", '"tiny_decode"', 'has the CSR "mode"', "expected none")],
    ),
    (
        "a CSR twice",
        device(2, csr_names=("cur_seq", "total_seq", "cur_seq")),
        [("submodels[2].csr_cur_seq", "2 times", "expected exactly once")],
    ),
    (
        "a tensor too many",
        device(0, tensors=(*GOOD_MODELS[0].tensors, SPARE)),
        [("submodel", '"tiny_prefill"', 'has the tensor "mask"', "expected none")],
    ),
    (
        "a tensor twice",
        device(0, tensors=(*GOOD_MODELS[0].tensors, GOOD_MODELS[0].tensors[1])),
        [("submodels[0].position.name", "2 times", "expected exactly once")],
    ),
    ("dtype", device_tensor(0, 1, dtype=PrimitiveType.F32), [("submodels[0].position.dtype is S32", "expected F32")]),
    ("unknown dtype", device_tensor(0, 1, dtype=9), [("submodels[0].position.dtype is S32", "unknown dtype 9")]),
    (
        "rank",
        device_tensor(0, 1, shape=(256,)),
        [("submodels[0].position.shape is [1, 256] of rank 2", "expected [256] of rank 1")],
    ),
    (
        "ByteSize",
        device_tensor(0, 2, byte_size=1024),
        [("submodels[0].logits.byte_size is 16384", "expected 1024, the calbin's")],
    ),
    (
        "sliceable",
        device_tensor(0, 1, sliceable=False),
        [("submodels[0].position.sliceable is true", "expected false, the calbin's")],
    ),
    (
        "direction of an input",
        device_tensor(0, 1, is_output=True),
        [("submodels[0].position is an input", 'expected an output, which "position_ids" is in the calbin')],
    ),
    (
        "direction of the logits",
        device_tensor(0, 2, is_output=False),
        [("submodels[0].logits is an output", 'expected an input, which "logits" is in the calbin')],
    ),
]


@pytest.mark.shows("PR2.twice", "PR2.shape", "PR2.dtype")
@pytest.mark.parametrize(("models", "lines"), [b[1:] for b in BROKEN_DEVICES], ids=[b[0] for b in BROKEN_DEVICES])
def test_a_calbin_that_is_not_as_the_manifest_says(
    models: tuple[ModelInfo, ...], lines: list[tuple[str, ...]], tmp_path: Path
) -> None:
    assert models != GOOD_MODELS
    found = findings(write(tmp_path, GOOD_TEXT), models)
    assert len(found) == len(lines), found
    for line, pieces in zip(found, lines, strict=True):
        assert_pieces(line, " ... ".join(pieces))


def test_all_findings_come_at_once(tmp_path: Path) -> None:
    """Version, digest and models are each judged, whatever the others say."""
    path = write(tmp_path, GOOD_TEXT)
    (tmp_path / "tiny.calbin").write_bytes(b"another")
    found = findings(path, device(2, max_seq=128), version="0.8.0")
    assert [line.split(" is ")[0] for line in found] == ["calrt_version", "calbin_sha256", "submodels[2].max_seq"]
