"""Broken manifests: each is refused before anything is configured (FI01), one line for each thing that is wrong."""

from __future__ import annotations

import copy
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from broken_manifests import BROKEN, DECODE, EMBEDS, IDS, NOT_JSON, Broken, NotJson, swap
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manifests import (
    GOOD_MODELS,
    GOOD_TEXT,
    VERSION,
    assert_pieces,
    both,
    drop,
    findings,
    models_of,
    mutated,
    places,
    put,
    start,
    write,
)

from runtime.calbin import SAMPLES, sample
from runtime.calrt import PrimitiveType
from runtime.manifest import CalTaskKind, Manifest, ManifestError, ModelGeneration, load_manifest, verify
from runtime.strict_json import dumps


@pytest.mark.shows("PR2.missing", "PR2.twice", "PR2.shape", "PR2.dtype")
@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.name)
def test_broken_manifest(broken: Broken, tmp_path: Path) -> None:
    """As many lines as there are findings, each naming what was found, what was expected, and where."""
    path = write(tmp_path, mutated(broken.mutation))
    found = findings(path)
    assert len(found) == len(broken.lines), found
    for line, wanted in zip(found, broken.lines, strict=True):
        assert_pieces(line, wanted)
        assert "expected" in line
        assert line.endswith(", the calbin's") == wanted.endswith("the calbin's"), "found by itself, not by comparison"
    with pytest.raises(ManifestError) as e:
        start(path)
    assert str(e.value).splitlines() == [f"{path}: {line}" for line in found]


def test_there_are_many_kinds_and_each_changes_the_manifest() -> None:
    """Control: a mutation that changes nothing would prove nothing."""
    texts = [mutated(b.mutation) for b in BROKEN]
    assert mutated(lambda data: None) not in texts
    assert len(set(texts)) == len(texts) == len({b.name for b in BROKEN})
    assert len(texts) >= 80


@pytest.mark.parametrize("broken", NOT_JSON, ids=lambda b: b.name)
def test_a_file_that_is_not_the_json_it_should_be(broken: NotJson, tmp_path: Path) -> None:
    assert broken.content != GOOD_TEXT.encode()
    (line,) = findings(write(tmp_path, broken.content))
    assert_pieces(line, broken.line)


def test_two_names_swapped_are_two_contracts_that_are_not_met(tmp_path: Path) -> None:
    """Each is the exact name of a submodel, only not of the one that is described."""
    found = findings(write(tmp_path, mutated(swap(f"{IDS}.exact_name", f"{DECODE}.exact_name"))))
    assert_pieces(found[0], "submodels[0].token_or_embed.shape is [1, 256] ... expected [1, 1], the calbin's")
    per_submodel = ["token_or_embed.shape", "token_or_embed.byte_size", "position.shape", "position.byte_size"]
    per_submodel += ["logits.byte_size", "logits_tile_d0"]
    assert [line.split(" is ")[0] for line in found] == [
        f"submodels[{i}].{key}" for i in (0, 2) for key in per_submodel
    ]


def test_a_sound_manifest_of_a_shorter_model_is_not_true(tmp_path: Path) -> None:
    """All numbers agree with each other, and none with the device's."""
    inputs = [f"{m}.{t}" for m in (IDS, EMBEDS) for t in ("token_or_embed", "position")]
    halved = both(
        *(put(f"{m}.max_seq", 128) for m in (IDS, EMBEDS, DECODE)),
        *(put(f"{t}.shape.1", 128) for t in inputs),
        *(put(f"{t}.byte_size", lambda n: n // 2) for t in inputs),
    )
    path = write(tmp_path, mutated(halved))
    assert load_manifest(path).submodels[0].max_seq == 128
    found = findings(path)
    assert len(found) == 11
    assert all(line.endswith(", the calbin's") for line in found)


# -- paths that are no file ------------------------------------------------------------------------------------------
def test_a_directory_a_pipe_and_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert findings(tmp_path) == ("is a directory; expected a file",)
    assert findings(tmp_path / "pipe") == ("is a device, pipe or socket; expected a file",)
    assert findings(tmp_path / "none") == ("cannot be read: No such file or directory",)
    assert_pieces(findings(tmp_path / "a\0b")[0], "cannot be read: ... embedded null")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_manifest(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD_TEXT)
    path.chmod(0)
    assert findings(path) == ("cannot be read: Permission denied",)


def test_a_manifest_that_the_system_does_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, for whoever may read everything."""
    path = write(tmp_path, GOOD_TEXT)

    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    assert findings(path) == ("cannot be read: Permission denied",)


def test_a_calbin_that_the_system_does_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = load_manifest(write(tmp_path, GOOD_TEXT))

    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ManifestError) as e:
        verify(manifest, manifest.calbin_path, GOOD_MODELS, VERSION)
    assert_pieces(e.value.findings[0], "the calbin ... tiny.calbin ... cannot be read: Permission denied; expected it")


def test_a_calbin_that_is_a_directory_or_a_pipe(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD_TEXT)
    calbin = tmp_path / "tiny.calbin"
    calbin.unlink()
    calbin.mkdir()
    (line,) = findings(path)
    assert_pieces(line, "the calbin ... tiny.calbin ... is a directory ... expected")
    calbin.rmdir()
    os.mkfifo(calbin)
    (line,) = findings(path)
    assert_pieces(line, "the calbin ... tiny.calbin ... is a device, pipe or socket ... expected")


# -- good ones -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [s.name for s in SAMPLES])
def test_the_samples_are_good(name: str) -> None:
    (origin,) = (s for s in SAMPLES if s.name == name)
    path = sample(name)
    manifest = load_manifest(path.with_suffix(".json"))
    generation = verify(manifest, path.read_bytes(), models_of(origin.calbin()), VERSION, generation_id=7)
    assert generation.generation_id == 7
    assert generation.calbin_sha256 == manifest.calbin_sha256
    assert set(generation.submodels) == {CalTaskKind.PrefillIds, CalTaskKind.PrefillEmbeds, CalTaskKind.Decode}
    assert {k: m.exact_name.partition("_")[2] for k, m in generation.submodels.items()} == {
        CalTaskKind.PrefillIds: "prefill",
        CalTaskKind.PrefillEmbeds: "prefill_embeds",
        CalTaskKind.Decode: "decode",
    }


def test_the_manifest_of_today_says_what_the_specification_says() -> None:
    """§4.1, last paragraph: numbers typed from there."""
    submodels = load_manifest(sample("qwen3-tile16").with_suffix(".json")).submodels
    for m in submodels:
        assert (m.max_batch, m.max_seq, m.logits.shape, m.vocabulary) == (1, 40960, (1, 1, 151936), 151936)
        assert (m.position.dtype, m.logits.dtype) == (PrimitiveType.S32, PrimitiveType.BF16)
    assert {m.kind.name: (m.logits_tile_d0, m.token_or_embed.dtype.name) for m in submodels} == {
        "PrefillIds": (16, "S32"),
        "PrefillEmbeds": (16, "BF16"),
        "Decode": (1, "S32"),
    }


def test_submodels_may_stand_in_any_order(tmp_path: Path) -> None:
    backwards = mutated(lambda data: data["submodels"].reverse())
    generation = start(write(tmp_path, backwards), GOOD_MODELS[1:] + GOOD_MODELS[:1])
    assert generation == start(write(tmp_path, GOOD_TEXT))


def test_a_generation_cannot_be_changed(tmp_path: Path) -> None:
    generation = start(write(tmp_path, GOOD_TEXT))
    with pytest.raises(TypeError):
        generation.submodels[CalTaskKind.Vision] = generation.submodels[CalTaskKind.Decode]  # type: ignore[index]
    with pytest.raises(AttributeError):
        generation.generation_id = 2  # type: ignore[misc]
    assert hash(generation) == hash(start(write(tmp_path, GOOD_TEXT)))


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    manifest = load_manifest(write(tmp_path, GOOD_TEXT))
    assert dumps(manifest) == GOOD_TEXT
    assert load_manifest(write(tmp_path, dumps(manifest))) == manifest


def test_a_manifest_made_without_a_file_is_judged_too(tmp_path: Path) -> None:
    """`verify` does not rely on `load_manifest` having been called."""
    good = load_manifest(write(tmp_path, GOOD_TEXT))
    bad = Manifest(good.calbin, good.calbin_sha256, good.calrt_version, good.submodels[:1], path=good.path)
    with pytest.raises(ManifestError, match="expected one of kind Decode"):
        verify(bad, bad.calbin_path, GOOD_MODELS[:1], VERSION)


def test_what_a_golden_run_must_say_is_not_judged_here(tmp_path: Path) -> None:
    assert load_manifest(write(tmp_path, mutated(put("golden_sha256", "0" * 64)))).golden_sha256 == "0" * 64
    assert load_manifest(write(tmp_path, mutated(drop("golden_sha256")))).golden_sha256 == ""


@pytest.mark.parametrize("golden", ["0" * 63, "A" * 64, "x"])
def test_what_cannot_be_a_golden_digest(tmp_path: Path, golden: str) -> None:
    with pytest.raises(ManifestError, match=r"golden_sha256 is .*; expected 64 lower-case hexadecimal digits"):
        load_manifest(write(tmp_path, mutated(put("golden_sha256", golden))))


# -- any mutation ----------------------------------------------------------------------------------------------------
GOOD = json.loads(GOOD_TEXT)
PLACES = [place for place in places(GOOD) if place != ("golden_sha256",)]  # only a golden run can judge that
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([0, 1, 2**32, 2**64, 10**60]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), how=st.sampled_from(["put", "drop", "rename", "edit"]), data=st.data())
def test_no_mutation_gives_anything_but_a_generation_or_findings(
    place: tuple[Any, ...], how: str, data: st.DataObject, tmp_path: Path
) -> None:
    value = copy.deepcopy(GOOD)
    outer: Any = {"": value}
    container, key = outer, ""
    for step in place:
        container, key = container[key], step
    if how == "rename" and isinstance(container, dict) and container is not outer:
        container[data.draw(st.text())] = container.pop(key)
    elif how == "drop" and container is not outer:
        del container[key]
    elif how == "edit" and isinstance(container[key], str):
        at = data.draw(st.integers(0, len(container[key])))
        container[key] = container[key][:at] + data.draw(st.characters()) + container[key][at + 1 :]
    else:
        container[key] = data.draw(JSON_VALUES)
    path = write(tmp_path, json.dumps(outer[""]))
    if json.dumps(outer[""], sort_keys=True) == json.dumps(GOOD, sort_keys=True):
        assert isinstance(start(path), ModelGeneration)
        return
    with pytest.raises(ManifestError) as e:  # whatever says something else is refused
        start(path)
    assert all(line.isprintable() for line in e.value.findings)
