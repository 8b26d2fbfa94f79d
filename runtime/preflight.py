"""What every command that uses the device asks first: the doctor's questions, with the doctor's exit codes."""

from __future__ import annotations

from pathlib import Path

from runtime import doctor
from runtime.calrt import Library
from runtime.exits import Failure
from runtime.manifest import Manifest, load_manifest

__all__ = ["preflight"]


def preflight(manifest: Path, library: Path | None, device: int) -> tuple[Library, Manifest]:
    """The library and the manifest, once library, manifest, calbin and device are as they should be.

    Raises Failure with the first failed check's exit code and every finding, one line each (docs/manifest.md)."""
    checks = doctor.examine(manifest, library, device)
    if lines := [line for check in checks for line in check.findings]:
        raise Failure(doctor.exit_of(checks), lines)
    return Library.load(library), load_manifest(manifest)
