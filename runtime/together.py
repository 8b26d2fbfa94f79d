"""Several pieces of work at once, each on a thread of its own, and none of them left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

__all__ = ["together"]


def together(work: Mapping[str, Callable[[], None]], stop: threading.Event) -> None:
    """Blocks until all have ended. work: by the names of the threads.

    stop: is set when one of them raises, or this thread is interrupted, so that the others can end early. Raises what
    the first one raised."""
    errors: list[BaseException] = []

    def run(piece: Callable[[], None]) -> None:
        try:
            piece()
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=run, args=(piece,), name=name) for name, piece in work.items()]
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        stop.set()
        for t in threads:
            t.join()
    if errors:
        raise errors[0]
