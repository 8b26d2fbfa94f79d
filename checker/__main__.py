"""`python -m checker` is `check-states`. Nothing else is imported before Ctrl-C and SIGTERM end in one line."""

from __future__ import annotations

import sys

from checker.stopping import Terminated, raise_on_sigterm


def main() -> None:
    """The console script."""
    try:
        raise_on_sigterm()
        from checker.cli import run

        code = int(run())
    except (KeyboardInterrupt, Terminated) as e:
        from checker.exits import Exit

        exit_ = Exit.TERMINATED if isinstance(e, Terminated) else Exit.INTERRUPTED
        print(f"check-states: {exit_.about}", file=sys.stderr)
        code = int(exit_)
    sys.exit(code)


if __name__ == "__main__":
    main()
