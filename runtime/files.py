"""Files that hold what users said or what went wrong: of their owner alone, and whole or not there."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["DIRECTORY_MODE", "FILE_MODE", "private_directory", "write_private"]

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700


def private_directory(path: Path) -> None:
    """Makes the directory when it is not there; one that is there keeps its mode. Raises OSError."""
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)


def write_private(path: Path, content: bytes, durable: bool = True) -> None:
    """Replaces the file in one step; its mode is 0600. After an error what was there is still there. Raises OSError.

    durable: it has reached the disk before its name appears, so that a crash leaves no empty file."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # its mode is 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
