"""`calexec doctor`: whether this machine can run that manifest, checked in the order of start-up, configuring nothing.

Theory. Each check needs what some before it found; where that is missing it is skipped, and says which. All that can be
known is found in one go, and the exit code is that of the first check that failed.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen
from rich.table import Table
from rich.text import Text

from machines.errors import classify
from runtime.calrt import LIBRARY_VARIABLE, Device, Library, ModelInfo, NativeMissing, ReleaseRefused
from runtime.elf import why_not_loadable
from runtime.exits import Exit
from runtime.manifest import (
    Manifest,
    ManifestError,
    load_manifest,
    untrue_digest,
    untrue_models,
    untrue_version,
)
from runtime.names import listed, plain

JSON_FORMAT = 1  # raised when the meaning of a key changes


class Result(enum.Enum):
    """How a check ended."""

    ok, failed, skipped = range(3)


COLOURS = {Result.ok: "green", Result.failed: "red", Result.skipped: "yellow"}


def _plain_lines(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(plain(line) for line in lines)


@frozen
class Check:
    """One line of the report. findings: what is wrong, whole sentences; exit: the code if it failed."""

    name: str
    result: Result
    found: str = field(converter=plain)
    findings: tuple[str, ...] = field(default=(), converter=_plain_lines)
    exit: Exit = Exit.OK


def _ok(name: str, found: str) -> Check:
    return Check(name, Result.ok, found)


def _failed(name: str, exit_: Exit, findings: Sequence[str], found: str = "") -> Check:
    return Check(name, Result.failed, found or _count(findings), tuple(findings), exit_)


def _count(findings: Sequence[str]) -> str:
    return findings[0] if len(findings) == 1 else f"{len(findings)} findings"


def _skipped(name: str, needs: str) -> Check:
    return Check(name, Result.skipped, f"needs the {needs}")


def examine(manifest_path: Path, library_path: Path | None, device: int) -> tuple[Check, ...]:
    """All checks. Nothing is configured and nothing is reset; raises nothing that a broken input could cause."""
    return tuple(_checks(manifest_path, library_path, device))


def _checks(manifest_path: Path, library_path: Path | None, device: int) -> Iterator[Check]:
    library = load_library(library_path)
    if isinstance(library, str):
        yield _failed("library", Exit.NO_LIBRARY, [library])
    else:
        yield _ok("library", str(library.path))
    manifest = _load_manifest(manifest_path)
    if isinstance(manifest, ManifestError):
        yield _failed("manifest", Exit.MANIFEST, manifest.lines)
    else:
        yield _ok("manifest", f"{manifest_path}: {listed(m.exact_name for m in manifest.submodels)}")
    usable = None if isinstance(library, str) else library
    sound = None if isinstance(manifest, ManifestError) else manifest
    yield _version(usable, sound)
    yield _digest(sound)
    yield _models(usable, sound)
    yield from _device(usable, device)


def load_library(path: Path | None) -> Library | str:
    """The library, or the line that says why there is none."""
    chosen = path or os.environ.get(LIBRARY_VARIABLE)
    if chosen and (reason := why_not_loadable(Path(chosen))):
        return f"{chosen} {reason}"
    try:
        return Library.load(path)
    except NativeMissing as e:
        return " ".join(str(e).split())


def _load_manifest(path: Path) -> Manifest | ManifestError:
    try:
        return load_manifest(path)
    except ManifestError as e:
        return e


def refusal(library: Library, what: str, code: int) -> str:
    """A return code in words, with the text of an exception that the shim caught."""
    known = classify(code)
    text = f"; {' '.join(library.last_error().split())}" if code < 0 else ""
    return f"{what} returned {code} {known.name}: {known.about} ({known.kind.name}){text}"


def _version(library: Library | None, manifest: Manifest | None) -> Check:
    if library is None:
        return _skipped("version", "library")
    code, version = library.version()
    if code:
        return _failed("version", Exit.NO_LIBRARY, [refusal(library, "the library's version", code)])
    if manifest is None:
        return Check("version", Result.skipped, f"{version}; needs the manifest")
    if findings := [f"{manifest.path}: {f}" for f in untrue_version(manifest, version)]:
        return _failed("version", Exit.VERSION, findings)
    return _ok("version", version)


def _digest(manifest: Manifest | None) -> Check:
    if manifest is None:
        return _skipped("calbin", "manifest")
    if findings := [f"{manifest.path}: {f}" for f in untrue_digest(manifest, manifest.calbin_path)]:
        return _failed("calbin", Exit.CALBIN, findings)
    return _ok("calbin", f"{manifest.calbin}, SHA-256 {manifest.calbin_sha256[:12]}...")


def _models(library: Library | None, manifest: Manifest | None) -> Check:
    if library is None or manifest is None:
        return _skipped("models", "manifest" if library else "library")
    if not _readable(manifest.calbin_path):  # one cause, one line: the check before has it
        return _skipped("models", "calbin")
    models = load_models(library, manifest.calbin_path)
    if isinstance(models, str):
        return _failed("models", Exit.CALBIN, [models])
    if findings := [f"{manifest.path}: {f}" for f in untrue_models(manifest, models)]:
        return _failed("models", Exit.MODELS, findings)
    return _ok("models", f"all {len(models)} as the contract says")


def _readable(path: Path) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)  # the first is False, too, where the name cannot be


def load_models(library: Library, path: Path) -> tuple[ModelInfo, ...] | str:
    """The submodels of a calbin, or the line that says why there are none."""
    try:
        code, calbin = library.calbin(path)
    except ValueError as e:  # a path that C cannot be given
        return f"{str(path)!r} is no path: {e}"
    if calbin is None:
        return refusal(library, f"loading {path}", code)
    try:
        with calbin:
            code, models = calbin.models()
            return refusal(library, f"the submodels of {path}", code) if code else models
    except ReleaseRefused as e:
        return str(e)


def _device(library: Library | None, number: int) -> Iterator[Check]:
    if library is None:
        yield _skipped("device", "library")
        yield _skipped("memory", "library")
        return
    code, device = library.device(number)
    if device is None:
        yield _failed("device", Exit.DEVICE, [refusal(library, f"opening device {number}", code)])
        yield _skipped("memory", "device")
        return
    try:
        with device:
            yield _ok("device", f"device {number} opens")
            yield _memory(library, device)
    except ReleaseRefused as e:
        yield _failed("close", Exit.DEVICE, [str(e)])


def _memory(library: Library, device: Device) -> Check:
    code, used_bytes = device.memory_used()
    if code:
        return _failed("memory", Exit.DEVICE, [refusal(library, "the memory used", code)])
    return _ok("memory", f"{used_bytes:,} bytes used")


# -- the report ------------------------------------------------------------------------------------------------------
def exit_of(checks: Sequence[Check]) -> Exit:
    """The code of the first check that failed."""
    return next((c.exit for c in checks if c.result is Result.failed), Exit.OK)


def as_table(checks: Sequence[Check]) -> Table:
    """The report for people."""
    table = Table(box=None, pad_edge=False)
    for title in ("check", "result", "found"):
        table.add_column(title, header_style="bold", overflow="fold")
    for c in checks:
        table.add_row(Text(c.name), Text(c.result.name, COLOURS[c.result]), Text(c.found))
    return table


def as_json(checks: Sequence[Check]) -> str:
    """The report for programs."""
    rows: list[dict[str, Any]] = [
        {"check": c.name, "result": c.result.name, "found": c.found, "findings": list(c.findings)} for c in checks
    ]
    return json.dumps({"format": JSON_FORMAT, "exit": int(exit_of(checks)), "checks": rows}, indent=2) + "\n"
