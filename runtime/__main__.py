"""The command `calexec` from its first moment on: Ctrl-C while its modules are still being loaded is one line, too.

Theory. Loading takes longer than most commands. A KeyboardInterrupt would be raised inside of somebody's import, past
everything that could catch it in words, and some imports swallow it. Nothing has been begun by then that would have to
be undone: so until the command runs, the signal's handler ends the process itself. Imported before it is but little.
"""

from __future__ import annotations

import os
import signal
import sys

from runtime.exits import Exit

__all__ = ["main"]


def _end(*_: object) -> None:
    """Does not return."""
    try:
        os.write(2, b"calexec: interrupted\n")
    finally:  # also where stderr is closed
        os._exit(Exit.INTERRUPTED)


def main() -> None:
    """The console script."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:  # and not ignored, as in the background of a shell
        signal.signal(signal.SIGINT, _end)
    from runtime.cli import run

    try:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.exit(int(run()))
    except KeyboardInterrupt:  # before `run` could handle it
        _end()


if __name__ == "__main__":
    main()
