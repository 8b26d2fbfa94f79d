"""What is kept of an incident: one JSON file with all that is known of the executor at that moment.

Theory. Who looks into a device that was lost last night has the log, which says what failed, and this, which says what
everybody was doing: the last steps (a journal that can be played back), the counters, each actor, each job with its
states, the configuration and the versions. Nothing of what users said is in it, but how much that was.

The file is there whole or not at all; the oldest go when there are more than so many.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from machines.expr import Var
from machines.protocol import RULEBOOK
from runtime.calllog import last_calls
from runtime.calls import DeviceCalls
from runtime.engine import Engine
from runtime.files import private_directory, write_private
from runtime.health import MONITOR_S, Health
from runtime.job import JobContext
from runtime.metrics import Metrics
from runtime.status import now_us

__all__ = ["FORMAT", "Incident", "Incidents", "dossier", "moment"]

FORMAT = 1
PREFIX, SUFFIX = "incident-", ".json"
JOBS_MAX = 1000
NOT_KNOWN = "not known"  # a CalRT that keeps no record of its calls
ORPHANED_S = 3600  # a file that was begun so long ago, and never became one


@attrs.frozen
class Incident:
    """what: the device's state that was entered, "actor died", or "abandoned". rule: the step, cause: what began it; ""
    where there is none.

    at: UTC, as in the file's name."""

    what: str
    rule: str
    cause: str
    generation: int
    at: datetime = attrs.field(factory=lambda: datetime.now(UTC))


class Incidents:
    """Files in `directory`, which is made when it is not there; at most `kept_max` of them, whoever wrote them."""

    def __init__(self, directory: Path, kept_max: int) -> None:
        self.directory, self.kept_max = directory, kept_max

    def write(self, incident: Incident, content: dict[str, Any]) -> Path:
        """Raises OSError; then what was there is still there."""
        private_directory(self.directory)
        name = f"{PREFIX}{incident.at:%Y%m%dT%H%M%S.%fZ}-{incident.what.replace(' ', '-')}-{os.getpid()}{SUFFIX}"
        path = self.directory / name
        write_private(path, json.dumps(content, default=str).encode())
        self._prune()
        return path

    def _prune(self) -> None:
        oldest_first = sorted(self.directory.glob(f"{PREFIX}*{SUFFIX}"))  # their names begin with the time
        orphans = [p for p in self.directory.glob(f".{PREFIX}*") if time.time() - p.stat().st_mtime > ORPHANED_S]
        for path in (*oldest_first[: -self.kept_max], *orphans):
            with suppress(FileNotFoundError):  # another process may prune as well
                path.unlink()


# -- what is known -----------------------------------------------------------------------------------------------------
def moment(engine: Engine, jobs: Iterable[JobContext]) -> dict[str, Any]:
    """What changes soon: for whoever made the step. Of jobs the first JOBS_MAX."""
    return {"variables": _variables(engine), "jobs": [_job(context) for context in itertools.islice(jobs, JOBS_MAX)]}


def dossier(
    incident: Incident, then: dict[str, Any], calls: DeviceCalls, engine: Engine, metrics: Metrics,
    health: Callable[[], Health],
) -> dict[str, Any]:  # fmt: skip
    """Everything, as plain data. then: the moment of the step; the rest is as it is now, and `journal` says how far."""
    journal = list(engine.journal.records(lambda: last_calls(calls.library, calls.config.device)))
    return {
        "incident": FORMAT,
        **attrs.asdict(incident),
        "versions": _versions(calls),
        "config": attrs.asdict(calls.config, recurse=False) | {"facts": dict(calls.config.facts)},
        "health": health().as_dict(),
        "counters": dict(_samples(metrics)),
        **then,
        "abi": _calls(journal),
        "journal": journal,
    }


def _versions(calls: DeviceCalls) -> dict[str, str]:
    return {
        "calexec": importlib.metadata.version("calexec"),
        "calrt": calls.manifest.calrt_version,
        "calbin_sha256": calls.manifest.calbin_sha256,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _calls(journal: list[dict[str, Any]]) -> Any:
    """Which calls of the ABI are in the journal, by their numbers."""
    if journal[0]["calls"] is None:
        return NOT_KNOWN
    made = [record["id"] for record in journal if "id" in record]
    return {"first": min(made, default=None), "last": max(made, default=None)}


def _samples(metrics: Metrics) -> Iterator[tuple[str, float]]:
    """As Prometheus writes them: name and labels, then the value."""
    for line in metrics.text().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            yield name, float(value)


def _variables(engine: Engine) -> dict[str, Any] | str:
    """The rulebook's, with the names of states."""
    try:
        values: dict[str, Any] = engine.read(engine.program.values_of, MONITOR_S)
    except TimeoutError as error:
        return str(error)
    own = [v for v in RULEBOOK.variables if not v.world]
    named: dict[str, Any] = {v.name: _named(v, values[v.name]) for v in own if v.sort is None}
    for sort in RULEBOOK.sorts:
        theirs = [v for v in own if v.sort is sort]
        named[sort.name] = [
            {"element": e["element"], **{v.name: _named(v, e[v.name]) for v in theirs}} for e in values[sort.name]
        ]
    return named


def _named(v: Var, value: int) -> Any:
    return list(v.domain.enum)[value].name if v.domain.enum else value


def _job(context: JobContext) -> dict[str, Any]:
    request, timings = context.request, context.timings
    told = context.handle.settled
    return {
        "job": context.job_id, "request": request.request_id, "sequence": request.seq_id, "task": request.task.name,
        "past_len": request.past_len, "tokens": len(request.values), "generation": context.generation_id,
        "kv_id": context.kv_id, "failure": str(context.failure) if context.failure else None,
        "told": str(told.status) if told else None, "timings": attrs.asdict(timings),
        "age_us": now_us() - timings.accepted_us if timings.accepted_us is not None else None,
    }  # fmt: skip
