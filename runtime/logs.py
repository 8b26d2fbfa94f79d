"""What the executor logs: one line for each failure and each step of the device's life, with everything of §6.1.

Theory. The library speaks through the logger `calexec` of the standard library and sets nothing up: no handler, no
level. A host that wants lines of JSON gives its handler the formatter `JsonLines`; one that does not gets the same in
words. The configuration's `log_level` is the executor's own, so two executors in one process may differ; the host's
levels apply besides.

A line is written where something fails, and a thing that fails may fail a thousand times a second (F31). So each kind
of event has a bucket: when it is empty, lines are counted and not written, and the next that is written says how many.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from attrs import define, field

from runtime.status import Failure, Status, now_us

__all__ = ["BURST", "LINES_PER_S", "LOGGER", "Events", "JsonLines", "of_failure", "of_status"]

LOGGER = "calexec"
BURST, LINES_PER_S = 100, 10  # of one kind of event
ATTRIBUTE = "calexec"  # of a log record: its fields


@define
class _Bucket:
    """Lines that may be written at once. Full at first."""

    since_us: int
    lines: float = BURST
    suppressed: int = 0

    def takes(self, at_us: int) -> bool:
        self.lines = min(BURST, self.lines + max(0, at_us - self.since_us) * LINES_PER_S / 1e6)
        self.since_us = at_us
        if self.lines < 1:
            self.suppressed += 1
            return False
        self.lines -= 1
        return True


@define(eq=False)
class Events:
    """The log of one executor. Thread-safe. level: of the configuration ("info"); what is below is not written."""

    level: str = "debug"
    clock_us: Callable[[], int] = now_us
    _logger: logging.Logger = field(factory=lambda: logging.getLogger(LOGGER), init=False)
    _buckets: dict[str, _Bucket] = field(factory=dict, init=False)  # by event: names of ours, so there are few
    _mu: Any = field(factory=threading.Lock, init=False)

    def debug(self, event: str, message: str, **fields: Any) -> None:
        self._write(logging.DEBUG, event, message, fields)

    def info(self, event: str, message: str, **fields: Any) -> None:
        self._write(logging.INFO, event, message, fields)

    def warning(self, event: str, message: str, **fields: Any) -> None:
        self._write(logging.WARNING, event, message, fields)

    def error(self, event: str, message: str, **fields: Any) -> None:
        self._write(logging.ERROR, event, message, fields)

    def critical(self, event: str, message: str, error: BaseException, **fields: Any) -> None:
        self._write(logging.CRITICAL, event, message, fields, error)

    def close(self) -> None:
        """Say what was suppressed and has not been told yet."""
        with self._mu:
            left = {event: b.suppressed for event, b in self._buckets.items() if b.suppressed}
            self._buckets.clear()
        for event, suppressed in left.items():
            self.warning(event, "lines were suppressed", suppressed=suppressed)

    def _write(
        self, level: int, event: str, message: str, fields: Mapping[str, Any], error: BaseException | None = None
    ) -> None:
        if level < logging.getLevelNamesMapping()[self.level.upper()] or not self._logger.isEnabledFor(level):
            return
        with self._mu:
            bucket = self._buckets.setdefault(event, _Bucket(self.clock_us()))
            if not bucket.takes(self.clock_us()):
                return
            suppressed, bucket.suppressed = bucket.suppressed, 0
        said = {"event": event, **fields, **({"suppressed": suppressed} if suppressed else {})}
        with suppress(Exception):  # a handler or filter of the host's that raises costs a line, and no actor (F47)
            self._logger.log(level, "%s", message, exc_info=error, extra={ATTRIBUTE: said})


def of_status(status: Status) -> dict[str, Any]:
    """The fields of a job's failure (§6.1). Those that are not known are left out."""
    ids = {
        "job": status.job_id, "request": status.request_id, "sequence": status.seq_id, "generation": status.generation,
    }  # fmt: skip
    known = {name: number for name, number in ids.items() if number is not None}
    return {**known, "status": status.kind.name, "stage": status.stage, **_of_code(status.code, status.code_name)}


def of_failure(failure: Failure) -> dict[str, Any]:
    """The fields of a call that failed."""
    return {"stage": failure.stage, **_of_code(failure.code, failure.known.name if failure.code else "")}


def _of_code(code: int, name: str) -> dict[str, Any]:
    return {"code": code, "code_name": name} if code else {}


class JsonLines(logging.Formatter):
    """One JSON object a line: at (UTC), level, thread, event, its fields, message, and of an exception the text.

    Also for records that are not the executor's."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        said: dict[str, Any] = {"at": at, "level": record.levelname.lower(), "thread": record.threadName}
        said |= getattr(record, ATTRIBUTE, {})
        said["message"] = record.getMessage()
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)
