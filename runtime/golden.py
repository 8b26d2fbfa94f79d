"""The golden run (§9.2): a fixed prefill and a few greedy decodes, and the digest of every logit that they gave.

Theory. A new generation serves only when the device says, bit for bit, what this model has to say. What that is stands
in the manifest (`golden_sha256`); where it is not known the first run of the process is taken, which finds a device
that changes later and not one that was wrong from the start. The run goes through the same pool, lanes and KV as a job,
on one thread and on a sequence of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.buffers import BufferPool
from runtime.calrt import BufStatus
from runtime.kv import KvCoordinator
from runtime.lane import Lane
from runtime.manifest import CalTaskKind, ModelGeneration
from runtime.prepare import program
from runtime.status import Failure, failed

__all__ = ["DECODES", "PROMPT", "digest", "golden_run"]

PROMPT = tuple(b"The quick brown fox jumps over the lazy dog.")
DECODES = 4

Row = NDArray[np.float32]


def digest(rows: Iterable[Row]) -> str:
    """SHA-256 of the rows of logits, [vocabulary] FP32 little endian each, as the manifest writes it."""
    sha256 = hashlib.sha256()
    for row in rows:
        sha256.update(row.astype("<f4", copy=False).tobytes())
    return sha256.hexdigest()


def golden_run(pool: BufferPool, kv: KvCoordinator, kv_id: int) -> list[Row] | Failure:
    """The logits of the prefill and of each decode; the first failure otherwise. kv_id: a sequence that was never used;
    it is free afterwards, unless a call failed."""
    rows: list[Row] = []
    kind, tokens = _prompt(pool.generation)
    past = 0
    for _ in range(1 + DECODES):
        granted, failure = kv.reserve(kv_id, past + len(tokens))
        if not granted:
            return failure or Failure("golden run", 0, "there is no KV for it")
        row = _job(pool, kv, kind, kv_id, tokens, past)
        if isinstance(row, Failure):
            return row
        rows.append(row)
        kind, past, tokens = CalTaskKind.Decode, past + len(tokens), np.array([row.argmax()], np.int32)
    return kv.remove(kv_id) or rows


def _prompt(model: ModelGeneration) -> tuple[CalTaskKind, NDArray[Any]]:
    """As much of the prompt as a short model takes; where there is no prefill of ids, embeddings instead."""
    kind = CalTaskKind.PrefillIds if CalTaskKind.PrefillIds in model.submodels else CalTaskKind.PrefillEmbeds
    contract = model.submodels[kind]
    prompt = np.array(PROMPT[: max(1, contract.max_seq - DECODES)], np.int32)
    if kind is CalTaskKind.PrefillIds:
        return kind, prompt % contract.vocabulary
    return kind, np.repeat((0x3F80 + prompt).astype(np.uint16)[:, None], contract.token_or_embed.shape[-1], axis=1)


def _job(
    pool: BufferPool, kv: KvCoordinator, kind: CalTaskKind, kv_id: int, tokens: NDArray[Any], past: int
) -> Row | Failure:
    """One call from the first step to the last on this thread; its slot is kept when it fails on the way."""
    lease = pool.lease()
    lane = lease.lane(kind)
    logits = np.empty(lane.contract.vocabulary, np.float32)
    failure = program(lane, kv_id, tokens, past) or failed("infer", lane.infer(), lane.library) or _done(lane)
    failure = failure or lane.read(len(tokens), logits) or kv.commit(kv_id, past + len(tokens))
    if failure:
        pool.quarantine(lease)
        return failure
    return pool.give_back(lease) or logits


def _done(lane: Lane) -> Failure | None:
    code, _ = lane.output.wait()
    if failure := failed("Wait", code, lane.library):
        return failure
    code, status = lane.output.get_status()
    if failure := failed("GetStatus", code, lane.library):
        return failure
    return None if status == BufStatus.DONE else Failure("GetStatus", 0, f"the status is {status!r}")
