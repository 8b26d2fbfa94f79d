"""The command `calexec` as its user meets it: models, help, misuse, streams; and what the documents say of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import attrs
import click
import pytest
from doubles import LibraryDouble
from manifests import CALBIN_BYTES, GOOD_MODELS, GOOD_TEXT, assert_pieces, findings

from runtime import doctor, exits
from runtime.calrt import Library, PrimitiveType
from runtime.cli import EPILOG, group, run
from runtime.exits import Exit
from runtime.manifest import ITEM_BYTES, Manifest, SubmodelContract, TensorContract, load_manifest
from runtime.simulator import Simulator
from runtime.strict_json import FILE_BYTES_MAX, LIST_ITEMS_MAX, type_name

WRITTEN = re.sub(',\n  "golden_sha256": ".*"', "", GOOD_TEXT)

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
KINDS = {"tiny_prefill": "PrefillIds", "tiny_prefill_embeds": "PrefillEmbeds", "tiny_decode": "Decode"}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> LibraryDouble:
    double = LibraryDouble()
    monkeypatch.setattr(doctor, "load_library", lambda path: double)
    return double


@pytest.fixture
def calbin(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.calbin"
    path.write_bytes(CALBIN_BYTES)
    return path


def arguments(calbin: Path, kinds: dict[str, str] = KINDS, **changes: str) -> list[str]:
    options = {"position": "position_ids", "csr": "cur_seq,total_seq", "manifest-out": str(calbin.parent / "m.json")}
    given = [f"--{name}={value}" for name, value in (options | changes).items() if value]
    return ["models", str(calbin), *given, *(f"--kind={name}={kind}" for name, kind in kinds.items())]


def failed(capsys: pytest.CaptureFixture[str], args: list[str], expected: Exit) -> list[str]:
    """Run, expect a failure with this exit code, and return the lines on stderr."""
    assert run(args) is expected
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err.splitlines()


# -- models ----------------------------------------------------------------------------------------------------------
def test_models_are_printed(library: LibraryDouble, calbin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", str(calbin)]) is Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == '"tiny_prefill": max_batch 1, max_seq 256, logits_tile_d0 16, CSRs "cur_seq", "total_seq"'
    assert [line.split() for line in lines[1:5]] == [
        ["tensor", "dtype", "shape", "bytes"],
        ['"input_ids"', "input,", "sliceable", "S32", "[1,", "256]", "1024"],
        ['"position_ids"', "input,", "sliceable", "S32", "[1,", "256]", "1024"],
        ['"logits"', "output", "BF16", "[1,", "1,", "512]", "16384"],
    ]
    assert len(lines) == 15
    assert library.the_calbin.released


def test_a_written_manifest_is_the_sample(
    library: LibraryDouble, calbin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sample was made from the calbin's roles, this one from the metadata; what a golden run says is in neither."""
    assert run(arguments(calbin)) is Exit.OK
    written = calbin.parent / "m.json"
    assert capsys.readouterr().out == f"wrote {written}: 3 submodels of tiny.calbin\n"
    assert written.read_text(encoding="utf-8") == WRITTEN
    assert findings(written) == ()


def test_a_file_that_is_there_is_not_overwritten(
    library: LibraryDouble, calbin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = calbin.parent / "m.json"
    there.write_text("mine", encoding="utf-8")
    (line,) = failed(capsys, arguments(calbin), Exit.NOT_WRITTEN)
    assert line == f"calexec: cannot write {there}: File exists"
    assert there.read_text(encoding="utf-8") == "mine"


WITHOUT_POSITION = attrs.evolve(GOOD_MODELS[2], tensors=GOOD_MODELS[2].tensors[::2])
ODD_DTYPE = attrs.evolve(
    GOOD_MODELS[2], tensors=(attrs.evolve(GOOD_MODELS[2].tensors[0], dtype=9), *GOOD_MODELS[2].tensors[1:])
)
SHORT = attrs.evolve(GOOD_MODELS[2], max_seq=128)
CONTROL = attrs.evolve(GOOD_MODELS[2], name="tiny\a")
ALL_THREE = ", ".join(f'"{m.name}"' for m in GOOD_MODELS)
DOUBTFUL: list[tuple[str, dict[str, Any], tuple[Any, ...], list[str]]] = [
    (
        "kind of none",
        {"kinds": KINDS | {"tiny_decodes": "Decode"}},
        GOOD_MODELS,
        ['a kind is given for "tiny_decodes" ... expected a submodel of ... the nearest is "tiny_decode"'],
    ),
    (
        "no kind",
        {"kinds": {k: v for k, v in KINDS.items() if v != "Decode"}},
        GOOD_MODELS,
        ['no kind is given for the submodel "tiny_decode"; expected --kind tiny_decode=KIND'],
    ),
    ("Vision", {"kinds": KINDS | {"tiny_prefill": "Vision"}}, GOOD_MODELS, ["kind is Vision ... expected PrefillIds"]),
    (
        "position",
        {"position": "position_idx"},
        GOOD_MODELS,
        [f'submodels {ALL_THREE} have no input "position_idx"; expected one of ... the nearest is "position_ids"'],
    ),
    (
        "position of some",
        {"position": "input_ids"},
        GOOD_MODELS,
        ['submodel "tiny_prefill_embeds" has no input "input_ids"; expected one of "inputs_embeds", "position_ids"'],
    ),
    (
        "an output as position",
        {"position": "logits"},
        GOOD_MODELS,
        [f'submodels {ALL_THREE} have no input "logits"; expected one of "input_ids", "position_ids"'],
    ),
    (
        "CSR",
        {"csr": "cur_seq,total"},
        GOOD_MODELS,
        [f'submodels {ALL_THREE} have no CSR "total"; expected one of "cur_seq", "total_seq"; the nearest is "total_s'],
    ),
    (
        "both CSRs",
        {"csr": "cur,total"},
        GOOD_MODELS,
        ['have no CSR "cur"; expected', 'have no CSR "total"; expected'],
    ),
    (
        "a name with a control character",
        {"kinds": {name.replace("tiny_decode", "tiny\a"): kind for name, kind in KINDS.items()}},
        (*GOOD_MODELS[:2], CONTROL),
        ['a submodel\'s name is "tiny\\u0007"; expected no control character, and character 5 is U+0007'],
    ),
    (
        "one input",
        {},
        (*GOOD_MODELS[:2], WITHOUT_POSITION),
        ["has 1 inputs and 1 outputs; expected 2 and 1", 'has no input "position_ids"'],
    ),
    ("odd dtype", {}, (*GOOD_MODELS[:2], ODD_DTYPE), ['has the tensor "input_ids" of the unknown dtype 9']),
    ("unsound", {}, (*GOOD_MODELS[:2], SHORT), ["max_seq is 256 ... 128 in ... expected the same in every submodel"]),
    (
        "a submodel twice",
        {},
        (*GOOD_MODELS, GOOD_MODELS[2]),
        ['kind "Decode" is given 2 times', "exact_name ... 2 times"],
    ),
]


@pytest.mark.parametrize(("changes", "models", "lines"), [d[1:] for d in DOUBTFUL], ids=[d[0] for d in DOUBTFUL])
def test_a_manifest_that_would_be_wrong_is_not_written(
    changes: dict[str, Any],
    models: tuple[Any, ...],
    lines: list[str],
    library: LibraryDouble,
    calbin: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    library.the_calbin.answer = (0, models)
    found = failed(capsys, arguments(calbin, **changes), Exit.MODELS)
    assert len(found) == len(lines), found
    for line, wanted in zip(found, lines, strict=True):
        assert_pieces(line, f"calexec: {calbin}: ... {wanted}")
    assert not (calbin.parent / "m.json").exists()


MISUSE: list[tuple[str, dict[str, Any], str]] = [
    ("no kind at all", {"kinds": {}}, "--manifest-out needs --kind NAME=KIND for each submodel, --position and --csr"),
    ("no position", {"position": ""}, "--manifest-out needs"),
    ("no CSRs", {"csr": ""}, "--manifest-out needs"),
    ("roles without a file", {"manifest-out": ""}, "give --manifest-out FILE too"),
    ("one CSR", {"csr": "cur_seq"}, "--csr 'cur_seq' is not CUR,TOTAL"),
    ("half a CSR", {"csr": "cur_seq,"}, "--csr 'cur_seq,' is not CUR,TOTAL"),
    ("one CSR for both", {"csr": "cur_seq,cur_seq"}, "--csr 'cur_seq,cur_seq' names one CSR twice; expected two"),
    ("unknown kind", {"kinds": {"tiny_decode": "decode"}}, "is not NAME=KIND; kinds are PrefillIds, PrefillEmbeds,"),
    ("kind of nothing", {"kinds": {"": "Decode"}}, "--kind '=Decode' is not NAME=KIND"),
    ("another directory", {"manifest-out": "/m.json"}, "is in another directory than"),
]


@pytest.mark.parametrize(("changes", "wanted"), [m[1:] for m in MISUSE], ids=[m[0] for m in MISUSE])
def test_misuse(
    changes: dict[str, Any], wanted: str, library: LibraryDouble, calbin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = failed(capsys, arguments(calbin, **changes), Exit.USAGE)
    assert_pieces(line, f"calexec: ... {wanted} ... (see calexec models --help)")


@pytest.mark.parametrize("kind", ["PrefillIds", "Decode"])
def test_a_kind_that_is_given_twice(
    kind: str, library: LibraryDouble, calbin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the first nor the last wins, not even where both are the same."""
    (line,) = failed(capsys, [*arguments(calbin), f"--kind=tiny_decode={kind}"], Exit.USAGE)
    assert_pieces(line, "calexec: --kind is given twice for 'tiny_decode'; expected one for each submodel ... --help")
    assert not (calbin.parent / "m.json").exists()


CONTROLS = attrs.evolve(
    GOOD_MODELS[2],
    tensors=(attrs.evolve(GOOD_MODELS[2].tensors[0], name="ids\x1b[31m"), *GOOD_MODELS[2].tensors[1:]),
    csr_names=("cur_seq", "total\0seq"),
)


def test_a_calbin_with_control_characters_is_shown_and_refused(
    library: LibraryDouble, calbin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No manifest can name them."""
    library.the_calbin.answer = (0, (*GOOD_MODELS[:2], CONTROLS))
    assert run(["models", str(calbin)]) is Exit.MODELS
    out, err = capsys.readouterr()
    assert '"ids\\u001b[31m"' in out
    for line, wanted in zip(
        err.splitlines(),
        [
            'a tensor\'s name of submodel "tiny_decode" is "ids\\u001b[31m"; expected no control ... 4 is U+001B',
            'a CSR\'s name of submodel "tiny_decode" is "total\\u0000seq"; expected no control ... 6 is U+0000',
        ],
        strict=True,
    ):
        assert_pieces(line, f"calexec: {calbin}: {wanted}")


@pytest.mark.parametrize(
    "args",
    [
        ["doctr"], ["doctor", "--what"], ["doctor", "x"], ["doctor", "--device", "-1"], ["models"],
        ["run", "--faults", "nan"], ["run", "--cancel", "nan"], ["run", "--faults", "1.01"], ["run", "--seeds", ""],
    ],
)  # fmt: skip
def test_what_click_refuses(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = failed(capsys, args, Exit.USAGE)
    assert line.startswith("calexec: ")


def test_a_calbin_that_cannot_be_loaded(
    library: LibraryDouble, calbin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library.calbin_code = 10
    (line,) = failed(capsys, ["models", str(calbin)], Exit.CALBIN)
    assert_pieces(line, f"loading {calbin} returned 10 FileNotFound: a file is missing (Artifact)")


def test_no_library(calbin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = failed(capsys, ["models", str(calbin), "--library", str(calbin)], Exit.NO_LIBRARY)
    assert_pieces(line, f"calexec: {calbin} is no shared object")


def test_a_path_with_control_characters_stays_on_its_line(
    library: LibraryDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--manifest", "a\n\x1b[31mb"]) is Exit.MANIFEST
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 1
    assert "\x1b" not in out + err


# -- help, streams, documents ----------------------------------------------------------------------------------------
def test_help_names_commands_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) is Exit.OK
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in group.commands)
    assert all(f"{code.value:<4} {code.about}" in out for code in Exit)
    assert "calexec doctor --manifest my.json" in out
    for name, command in group.commands.items():
        assert run([name, "--help"]) is Exit.OK
        text = capsys.readouterr().out
        assert all(p.opts[-1] in text for p in command.params if isinstance(p, click.Option))
    assert run([]) is Exit.USAGE
    assert "Examples:" in capsys.readouterr().err


def test_every_documented_option_exists() -> None:
    for text in (EPILOG, DOCUMENT):
        lines = re.findall(r"calexec (doctor|models)\b(.*(?:\n +--.*)?)", text)
        assert len(lines) >= 3
        for name, rest in lines:
            known = {option for p in group.commands[name].params for option in p.opts}
            assert set(re.findall(r"(?<!\S)--[\w-]+", rest)) <= known


def test_a_reader_that_leaves_and_a_full_disk(tmp_path: Path) -> None:
    """Whoever cannot write says so by its exit code, and never by a traceback."""
    command = [sys.executable, "-m", "runtime.cli", "doctor", "--library", str(tmp_path / "none.so")]
    run_options: dict[str, Any] = {
        "cwd": ROOT,
        "env": os.environ | {"COLUMNS": "80"},
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with open("/dev/full", "w", encoding="utf-8") as full:
        ended = subprocess.run(command, stdout=full, check=False, **run_options)
    assert (ended.returncode, "Traceback" in ended.stderr) == (int(Exit.NOT_WRITTEN), False)
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(command, stdout=write, check=False, **run_options)
    os.close(write)
    assert (ended.returncode, "Traceback" in ended.stderr) == (int(Exit.NOT_WRITTEN), False)


def table_under(heading: str) -> list[tuple[str, ...]]:
    section = DOCUMENT.split(f"{heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [tuple(cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]) for row in rows]


@pytest.mark.parametrize("cls", [Manifest, SubmodelContract, TensorContract])
def test_the_documented_keys_are_those_of_the_classes(cls: Any) -> None:
    types = get_type_hints(cls, include_extras=True)
    keys = [a for a in attrs.fields(cls) if "about" in a.metadata]
    assert table_under(f"### {cls.__name__}") == [
        (f"`{a.name}`", type_name(types[a.name]), a.metadata["about"]) for a in keys
    ]


def test_the_documented_exit_codes_and_checks_are_those_of_the_command(library: LibraryDouble) -> None:
    assert table_under("## Exit codes of calexec") == [(str(e.value), e.about) for e in Exit]
    assert exits.table() in EPILOG
    checks = doctor.examine(ROOT / "runtime" / "models" / "tiny.json", None, 0)
    assert [row[0] for row in table_under("## doctor")] == [c.name for c in checks]


def test_the_documented_sizes_are_those_of_the_code() -> None:
    assert ", ".join(f"{t.name} {ITEM_BYTES[t]}" for t in PrimitiveType) + " bytes" in DOCUMENT
    assert f"larger than {FILE_BYTES_MAX >> 20} MiB" in DOCUMENT
    assert f"more than {LIST_ITEMS_MAX} items" in DOCUMENT


# -- against the library that `make native` builds -------------------------------------------------------------------
@pytest.fixture
def real_library() -> Library:
    return Library.load()


@pytest.mark.parametrize("name", ["qwen3-tile16", "qwen3-tile8", "qwen3-tile1", "tiny"])
def test_every_sample_passes_against_the_simulator(
    name: str, real_library: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = ROOT / "runtime" / "models" / f"{name}.json"
    assert run(["doctor", "--manifest", str(manifest), "--device", "61"]) is Exit.OK
    assert capsys.readouterr().err == ""


def test_a_manifest_written_from_the_simulator_is_the_sample(
    real_library: Library, calbin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(calbin)) is Exit.OK
    assert (calbin.parent / "m.json").read_text(encoding="utf-8") == WRITTEN
    capsys.readouterr()


def test_one_character_wrong_and_the_device_is_not_configured(
    real_library: Library, calbin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FI01, seen from the device: the simulator's trace has no configure."""
    simulator = Simulator.beside(real_library, 62)
    wrong = calbin.parent / "m.json"
    wrong.write_text(GOOD_TEXT.replace('"tiny_decode"', '"tiny_decodf"'), encoding="utf-8")
    assert load_manifest(wrong).submodels[2].exact_name == "tiny_decodf"
    assert run(["doctor", "--manifest", str(wrong), "--device", "62"]) is Exit.MODELS
    (line,) = capsys.readouterr().err.splitlines()
    assert_pieces(line, 'submodels[2].exact_name is "tiny_decodf" ... "tiny_decode"')
    calls = [c.call for c in simulator.trace()]
    assert "open" in calls
    assert "configure" not in calls
    configure(real_library, 62, calbin)
    assert "configure" in [c.call for c in simulator.trace()], "control: it would have been seen"


def configure(library: Library, number: int, path: Path) -> None:
    (_, device), (_, loaded) = library.device(number), library.calbin(path)
    assert device is not None
    assert loaded is not None
    with device, loaded:
        assert device.configure(loaded) == 0
