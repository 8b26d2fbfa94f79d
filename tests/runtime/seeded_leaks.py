"""Executors that leak, for `calexec soak --break NAME`: what watches for growth must be seen to be red.

Each leaks at the end of a job, by a few lines that change the running executor's classes, and says which quantity of
`runtime/soak_samples.py` grows."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from runtime.breaks import Bug
from runtime.calrt import Handle
from runtime.executor import DeviceExecutor

__all__ = ["BUGS", "give_back"]

RARELY = 50  # jobs: of what is counted, one of so many is leaked


def after_answers(leak: Callable[[DeviceExecutor, Any, Any], None], every: int = 1) -> Any:
    """Something more is done with one of so many answers; told are the executor, the job and the status."""

    def installed() -> AbstractContextManager[Any]:
        settle, nth = DeviceExecutor._settle, itertools.count(1)

        def wrong(self: DeviceExecutor, context: Any, status: Any) -> None:
            settle(self, context, status)
            if next(nth) % every == 0:
                leak(self, context, status)

        return patch.object(DeviceExecutor, "_settle", wrong)

    return installed


# -- the leaks ---------------------------------------------------------------------------------------------------------
kept: list[Any] = []
ended = threading.Event()  # for threads that were left behind


def give_back() -> None:
    """For a process that goes on."""
    ended.set()
    for thing in kept:
        if isinstance(thing, int):
            os.close(thing)
        elif isinstance(thing, threading.Thread):
            thing.join()
        elif isinstance(thing, Handle):
            thing.release()
    kept.clear()
    ended.clear()


def result_kept(executor: DeviceExecutor, context: Any, status: Any) -> None:
    kept.append(context.handle.settled)


def page_kept(executor: DeviceExecutor, context: Any, status: Any) -> None:
    """Memory of C's, which no Python object tells of: as large as the logits of a real model."""
    kept.append(bytes(b"\1" * (64 << 10)))


def file_open(executor: DeviceExecutor, context: Any, status: Any) -> None:
    kept.append(os.open(os.devnull, os.O_RDONLY))


def thread_left(executor: DeviceExecutor, context: Any, status: Any) -> None:
    kept.append(threading.Thread(target=ended.wait, daemon=True))
    kept[-1].start()


def handle_held(executor: DeviceExecutor, context: Any, status: Any) -> None:
    calls = executor.calls
    if calls.calbin is not None:
        kept.append(calls.device.input(calls.calbin, 0)[1])


BUGS = (
    Bug(name="results", about="each result is kept", seen_as="blocks", installed=after_answers(result_kept)),
    Bug(name="memory", about="64 KiB are kept for each job", seen_as="rss_bytes", installed=after_answers(page_kept)),
    Bug(
        name="files", about="a file is left open by one of 50 jobs", seen_as="files",
        installed=after_answers(file_open, RARELY),
    ),
    Bug(
        name="threads", about="a thread is left behind by one of 50 jobs", seen_as="threads",
        installed=after_answers(thread_left, RARELY),
    ),
    Bug(
        name="handles", about="a handle is not released by one of 50 jobs", seen_as="handles",
        installed=after_answers(handle_held, RARELY),
    ),
)  # fmt: skip
