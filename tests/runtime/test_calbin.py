"""The simulator's calbin file: what is written, and that the committed samples are what the code writes."""

from __future__ import annotations

import hashlib
import json

import pytest
from attrs import evolve

from runtime.calbin import MODELS, SAMPLES, CalbinFile, Model, Tensor, files, sample
from runtime.calrt import PrimitiveType
from runtime.manifest import CalTaskKind

TEXT = """CALBIN 1
runtime 0.7.6
seed 7
model m Decode max_batch 1 max_seq 8 tile 2
tensor t in S32 1,1 4 1 tokens
tensor p in S32 1,1 4 1 positions
tensor l out BF16 1,1,3 12 0 logits
csr c cur
csr n total
payload 3
"""
SMALL = CalbinFile(
    seed=7,
    models=(
        Model(
            "m",
            CalTaskKind.Decode,
            (
                Tensor("t", False, PrimitiveType.S32, (1, 1), 4, True, "tokens"),
                Tensor("p", False, PrimitiveType.S32, (1, 1), 4, True, "positions"),
                Tensor("l", True, PrimitiveType.BF16, (1, 1, 3), 12, False, "logits"),
            ),
            (("c", "cur"), ("n", "total")),
            tile=2,
            max_batch=1,
            max_seq=8,
        ),
    ),
    payload=b"\0\n\xff",
)


def test_a_file_is_written_as_its_format_says() -> None:
    assert SMALL.render() == TEXT.encode() + b"\0\n\xff"


@pytest.mark.parametrize("name", ["", "a b", "a\n", " a", "a\u2003b"])
def test_a_name_with_white_space_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not one word"):
        evolve(SMALL.models[0], name=name)
    with pytest.raises(ValueError, match="is not one word"):
        evolve(SMALL.models[0].tensors[0], name=name)
    with pytest.raises(ValueError, match="is not one word"):
        evolve(SMALL, runtime=name)


def test_the_committed_samples_are_what_the_code_writes() -> None:
    """If this fails: `python -m runtime.calbin`."""
    written = dict(files())
    assert {p.name for p in MODELS.iterdir() if p.suffix in (".calbin", ".json")} == set(written)
    assert [name for name, content in written.items() if (MODELS / name).read_bytes() != content] == []


def test_git_leaves_the_samples_as_they_are() -> None:
    """Another end of line would be another digest."""
    assert "*.calbin -text" in (MODELS / ".gitattributes").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("name", "vocabulary", "max_seq", "tiles"),
    [
        ("qwen3-tile16", 151936, 40960, (16, 16, 1)),
        ("qwen3-tile8", 151936, 40960, (8, 8, 8)),
        ("qwen3-tile1", 151936, 40960, (1, 1, 1)),
        ("tiny", 512, 256, (16, 16, 1)),
    ],
)
def test_samples(name: str, vocabulary: int, max_seq: int, tiles: tuple[int, ...]) -> None:
    """Read from the files themselves, as the simulator would."""
    content = sample(name).read_bytes()
    head, _, payload = content.partition(b"payload 64\n")
    lines = head.decode().splitlines()
    assert lines[:2] == ["CALBIN 1", "runtime 0.7.6"]
    assert len(payload) == 64
    models = [line.split() for line in lines if line.startswith("model ")]
    assert [(m[2], *map(int, m[4::2])) for m in models] == [
        (kind, 1, max_seq, tile) for kind, tile in zip(("PrefillIds", "PrefillEmbeds", "Decode"), tiles, strict=True)
    ]
    logits = [line.split() for line in lines if line.startswith("tensor logits ")]
    assert [(t[4], int(t[5])) for t in logits] == [(f"1,1,{vocabulary}", tile * vocabulary * 2) for tile in tiles]
    embeds = [line for line in lines if line.endswith(" embeds")]
    assert embeds == [f"tensor inputs_embeds in BF16 1,{max_seq},64 {max_seq * 64 * 2} 1 embeds"]
    manifest = json.loads(sample(name).with_suffix(".json").read_text(encoding="utf-8"))
    assert manifest["calbin_sha256"] == hashlib.sha256(content).hexdigest()


def test_samples_differ_in_seed_and_one_name_begins_another() -> None:
    assert len({s.calbin().seed for s in SAMPLES}) == len(SAMPLES)
    for s in SAMPLES:
        ids, embeds, _ = (m.name for m in s.calbin().models)
        assert embeds.startswith(ids)


def test_an_unknown_sample() -> None:
    with pytest.raises(LookupError) as e:
        sample("Tiny")
    expected = "no sample model is called 'Tiny'; there are qwen3-tile16, qwen3-tile8, qwen3-tile1, tiny"
    assert e.value.args == (expected,)
