"""`calexec doctor`: each check alone, in the order of start-up; what is missing makes the next ones skip."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from broken_manifests import BROKEN, NOT_JSON, Broken, NotJson
from doubles import CalbinDouble, DeviceDouble, LibraryDouble
from manifests import GOOD_MODELS, GOOD_TEXT, assert_pieces, mutated, put, write
from numpy._core import _multiarray_umath  # a shared object that is surely there, and surely not libcalrt_c.so

from runtime import doctor
from runtime.calrt import LIBRARY_VARIABLE, Library, NativeMissing
from runtime.cli import run
from runtime.elf import parse, why_not_loadable
from runtime.exits import Exit
from runtime.manifest import ManifestError, load_manifest

SHARED_OBJECT = Path(_multiarray_umath.__file__)
Doctor = Callable[..., tuple[Exit, str, list[str]]]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> LibraryDouble:
    """Stands for the library, whatever file is asked for."""
    double = LibraryDouble()
    monkeypatch.setattr(doctor, "load_library", lambda path: double)
    return double


@pytest.fixture
def examine(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Runs the command on a manifest's text; (exit, stdout, lines of stderr)."""
    monkeypatch.setenv("COLUMNS", "400")

    def examine(text: str | bytes = GOOD_TEXT, *args: str) -> tuple[Exit, str, list[str]]:
        code = run(["doctor", "--manifest", str(write(tmp_path, text)), *args])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert code.name in Exit.__members__
        return code, out, err.splitlines()

    return examine


def results(out: str) -> dict[str, str]:
    """check: result, from the table."""
    return {line.split()[0]: line.split()[1] for line in out.splitlines()[1:]}


ALL = ("library", "manifest", "version", "calbin", "models", "device", "memory")


# -- good ------------------------------------------------------------------------------------------------------------
def test_a_good_machine(library: LibraryDouble, examine: Doctor) -> None:
    code, out, err = examine(GOOD_TEXT, "--device", "3")
    assert (code, err) == (Exit.OK, [])
    assert results(out) == dict.fromkeys(ALL, "ok")
    assert "123,456 bytes used" in out
    assert library.numbers == [3]
    assert library.the_calbin.released
    assert library.the_device.released


def test_json(library: LibraryDouble, examine: Doctor) -> None:
    library.device_code = 18
    code, out, err = examine(GOOD_TEXT, "--json")
    report = json.loads(out)
    assert (code, report["exit"], report["format"]) == (Exit.DEVICE, 8, 1)
    assert {c["check"]: c["result"] for c in report["checks"]} == dict.fromkeys(ALL, "ok") | {
        "device": "failed",
        "memory": "skipped",
    }
    assert [f"calexec: {f}" for c in report["checks"] for f in c["findings"]] == err
    assert len(err) == 1


def test_without_options_it_checks_the_sample(library: LibraryDouble, capsys: pytest.CaptureFixture[str]) -> None:
    """The double's models are tiny's, so the sample's are seen to be missing."""
    assert run(["doctor"]) is Exit.MODELS
    out, err = capsys.readouterr()
    assert "qwen3-tile16" in out
    assert_pieces(err.splitlines()[0], 'qwen3-tile16.json: submodels[0].exact_name is "qwen3_prefill" ... expected')


# -- broken manifests, as above --------------------------------------------------------------------------------------
@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.name)
def test_broken_manifest(broken: Broken, library: LibraryDouble, examine: Doctor, tmp_path: Path) -> None:
    code, out, err = examine(mutated(broken.mutation))
    assert len(err) == len(broken.lines)
    for line, wanted in zip(err, broken.lines, strict=True):
        assert_pieces(line, f"calexec: {tmp_path / 'm.json'}: ... {wanted}")
    assert code is expected_exit(tmp_path / "m.json", broken)
    assert "failed" in results(out).values()
    assert results(out)["device"] == "ok"


def expected_exit(path: Path, broken: Broken) -> Exit:
    try:
        load_manifest(path)
    except ManifestError:
        return Exit.MANIFEST
    if broken.lines[0].startswith("calrt_version"):
        return Exit.VERSION
    return Exit.CALBIN if broken.lines[0].startswith(("calbin_sha256", "the calbin ...")) else Exit.MODELS


@pytest.mark.parametrize("broken", NOT_JSON, ids=lambda b: b.name)
def test_a_file_that_is_no_manifest(broken: NotJson, library: LibraryDouble, examine: Doctor) -> None:
    code, out, (line,) = examine(broken.content)
    assert code is Exit.MANIFEST
    assert_pieces(line, broken.line)
    skipped = {"version", "calbin", "models"}
    assert {name for name, result in results(out).items() if result == "skipped"} == skipped


# -- library, version, calbin, device --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("double", "exit_", "failed", "line"),
    [
        (LibraryDouble(says=(0, "0.8.0")), Exit.VERSION, "version", 'calrt_version is "0.7.6"; expected "0.8.0"'),
        (
            LibraryDouble(says=(-770001, "")),
            Exit.NO_LIBRARY,
            "version",
            "version returned -770001 ShimException ... what(): bad_alloc",
        ),
        (LibraryDouble(calbin_code=19), Exit.CALBIN, "models", "tiny.calbin returned 19 IllegalCalbin ... (Artifact)"),
        (LibraryDouble(calbin_code=4711), Exit.CALBIN, "models", "returned 4711 Undocumented(4711) ... (Unknown)"),
        (
            LibraryDouble(the_calbin=CalbinDouble(answer=(-770003, ()))),
            Exit.CALBIN,
            "models",
            "the submodels of ... tiny.calbin returned -770003 ShimBadArgument",
        ),
        (
            LibraryDouble(the_calbin=CalbinDouble(answer=(0, GOOD_MODELS[:2]))),
            Exit.MODELS,
            "models",
            'submodels[2].exact_name is "tiny_decode" ... expected',
        ),
        (
            LibraryDouble(the_calbin=CalbinDouble(refuses_release=True)),
            Exit.CALBIN,
            "models",
            "was not released",
        ),
        (LibraryDouble(device_code=18), Exit.DEVICE, "device", "opening device 0 returned 18 DeviceUnavailable"),
        (LibraryDouble(device_code=8), Exit.DEVICE, "device", "returned 8 DriverIncompatible ... (Compatibility)"),
        (
            LibraryDouble(the_device=DeviceDouble(memory=(28, 0))),
            Exit.DEVICE,
            "memory",
            "the memory used returned 28 DeviceCrash",
        ),
        (LibraryDouble(the_device=DeviceDouble(refuses_release=True)), Exit.DEVICE, "close", "was not released: 17"),
    ],
)
def test_one_thing_is_wrong(
    double: LibraryDouble, exit_: Exit, failed: str, line: str, monkeypatch: pytest.MonkeyPatch, examine: Doctor
) -> None:
    monkeypatch.setattr(doctor, "load_library", lambda path: double)
    code, out, (found,) = examine()
    assert code is exit_
    assert_pieces(found, line)
    assert [name for name, result in results(out).items() if result == "failed"] == [failed]


def test_the_first_failure_gives_the_exit_code(library: LibraryDouble, examine: Doctor) -> None:
    library.says, library.device_code = (0, "0.8.0"), 18
    code, _, err = examine()
    assert (code, len(err)) == (Exit.VERSION, 2)


def missing(path: Path) -> None:
    path.unlink()


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [missing, directory])
def test_a_calbin_that_cannot_be_read_is_one_line(
    spoil: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the library that `make native` builds, which would say the same once more."""
    monkeypatch.setenv("COLUMNS", "400")
    manifest = write(tmp_path, GOOD_TEXT)
    spoil(tmp_path / "tiny.calbin")
    assert run(["doctor", "--manifest", str(manifest), "--device", "60"]) is Exit.CALBIN
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert_pieces(line, f"calexec: {manifest}: the calbin ... tiny.calbin ... expected it beside the manifest")
    assert [results(out)[name] for name in ("calbin", "models", "device")] == ["failed", "skipped", "ok"]


def test_another_calbin_is_still_compared(library: LibraryDouble, examine: Doctor) -> None:
    """Control: it can be read, so what it has is known."""
    code, out, (line,) = examine(mutated(put("calbin_sha256", "0" * 64)))
    assert code is Exit.CALBIN
    assert_pieces(line, "calbin_sha256 is ... expected")
    assert results(out)["models"] == "ok"


# -- files that are no library ---------------------------------------------------------------------------------------
def patched(at: int, value: bytes) -> bytes:
    raw = SHARED_OBJECT.read_bytes()
    return raw[:at] + value + raw[at + len(value) :]


LIBRARIES: list[tuple[str, Callable[[], bytes], str]] = [
    ("no ELF", lambda: b"#!/bin/sh\n", "is no shared object; expected an ELF file"),
    ("empty", lambda: b"", "is no shared object; expected an ELF file"),
    ("another processor", lambda: patched(18, struct.pack("<H", 8)), "is for MIPS with 64 bits; expected "),
    ("an unknown processor", lambda: patched(18, struct.pack("<H", 999)), "is for processor 999 with 64 bits"),
    ("32 bits", lambda: patched(4, b"\1"), "with 32 bits; expected ... 64 bits, as this Python is"),
    ("a program", lambda: patched(16, struct.pack("<H", 2)), "is an ELF file but no shared object"),
    ("cut off", lambda: SHARED_OBJECT.read_bytes()[:4096], "has 4096 bytes; expected at least ... it is cut off"),
    (
        "without our functions",
        SHARED_OBJECT.read_bytes,
        "cannot be used as libcalrt_c.so ... undefined symbol: calrt_c_",
    ),
]


@pytest.mark.parametrize(("content", "line"), [x[1:] for x in LIBRARIES], ids=[x[0] for x in LIBRARIES])
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_file_that_is_no_library(
    content: Callable[[], bytes], line: str, by: str, tmp_path: Path, examine: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "libcalrt_c.so"
    path.write_bytes(content())
    monkeypatch.setenv(LIBRARY_VARIABLE, str(path) if by == "environment" else "/nowhere")
    code, out, (found,) = examine(GOOD_TEXT, *(["--library", str(path)] if by == "option" else []))
    assert code is Exit.NO_LIBRARY
    assert_pieces(found, f"calexec: {path} ... {line}")
    assert results(out) == {
        "library": "failed", "manifest": "ok", "version": "skipped", "calbin": "ok", "models": "skipped",
        "device": "skipped", "memory": "skipped",
    }  # fmt: skip


def test_no_file_at_all(tmp_path: Path, examine: Doctor) -> None:
    for path, line in (("none.so", "cannot be read: No such file or directory"), (".", "is a directory")):
        code, _, (found,) = examine(GOOD_TEXT, "--library", str(tmp_path / path))
        assert code is Exit.NO_LIBRARY
        assert_pieces(found, line)
    os.mkfifo(tmp_path / "pipe")
    _, _, (found,) = examine(GOOD_TEXT, "--library", str(tmp_path / "pipe"))
    assert_pieces(found, "is a device, pipe or socket")


def test_a_good_shared_object_may_be_loaded() -> None:
    """Control."""
    assert why_not_loadable(SHARED_OBJECT) is None
    header = parse(SHARED_OBJECT.read_bytes()[:64])
    assert header is not None
    assert header.bits == 8 * struct.calcsize("P")


def test_a_library_that_is_not_built(examine: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path | None) -> Library:
        raise NativeMissing("libcalrt_c.so is not built;\n run `make native`")

    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(doctor.Library, "load", staticmethod(missing))
    code, _, err = examine()
    assert (code, err) == (Exit.NO_LIBRARY, ["calexec: libcalrt_c.so is not built; run `make native`"])
