"""From a request to a programmed lane: §6.3, in its order.

Theory. Checks 1 to 6 need nobody but the request and the manifest, so they come first, before a job waits for KV or a
slot: `check` makes no CalRT call. Its numbers are Python's and do not overflow. Checks 7 and 8 are what CalRT says:
`program` copies in, binds the sequence, slices, and sets both CSRs, and stops at the first code that is not success.
The lane is then half programmed, and must be undone like one that ran.

Check 6 goes further than §6.3: positions must continue the sequence, token ids be in the vocabulary and embeddings be
finite. On the device each would end in an exception, or in logits that are no numbers, and so one client's mistake
would cost all of them a recovery.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from operator import index
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from machines.errors import observed
from runtime.calrt import PrimitiveType
from runtime.lane import HOST_TYPES, Lane, first_failure, outside
from runtime.manifest import CalTaskKind, ModelGeneration, SubmodelContract, TensorContract
from runtime.status import Failure, failed

__all__ = ["Asked", "RequestRefused", "check", "check_sequence", "outcome", "program"]

SEQUENCE_MAX = 2**31 - 1
BF16_EXPONENT = np.uint16(0x7F80)  # all ones: infinite, or no number


class RequestRefused(ValueError):
    """A request that cannot be; no CalRT call was made for it.

    check: its number in §6.3, 0 where the model has no such kind of call. found, allowed: for the client."""

    def __init__(self, check: int, found: str, allowed: str) -> None:
        self.check, self.found, self.allowed = check, found, allowed
        super().__init__(f"check {check} of §6.3: {found}; allowed: {allowed}")


class Asked(Protocol):
    """What `check` wants to know of a request (`runtime.job.InferenceRequest`); none of it need be right."""

    @property
    def task(self) -> CalTaskKind: ...

    @property
    def seq_id(self) -> int: ...

    @property
    def past_len(self) -> int: ...

    @property
    def values(self) -> Any:
        """[tokens] ids, or [tokens, hidden] embeddings as BF16 bits in uint16."""


# -- checks 1 to 6 -----------------------------------------------------------------------------------------------------
def check(request: Asked, model: ModelGeneration, *, seq_count: int = 1, positions: Any = None) -> SubmodelContract:
    """The contract of the request's submodel. seq_count, positions: where the caller has a batch that says so; without
    positions they are past_len and on. Raises RequestRefused for the first check that does not hold."""
    if not isinstance(request.task, CalTaskKind) or request.task not in model.submodels:
        said = getattr(request.task, "name", type(request.task).__name__)
        raise RequestRefused(0, f"the call is {said}", ", ".join(k.name for k in model.submodels))
    contract = model.submodels[request.task]
    count, past = _length("values", request.values), _integer(2, "past_len", request.past_len)
    if count < 1:
        raise RequestRefused(1, f"{count} tokens", "at least 1")
    if past < 0 or past + count > contract.max_seq:
        found = f"past_len {past} and {count} tokens make {past + count}"
        raise RequestRefused(2, found, f"past_len from 0, and together at most max_seq, {contract.max_seq}")
    if seq_count != 1:
        raise RequestRefused(3, f"{seq_count} sequences", "1 sequence in a call (batch 1)")
    check_sequence(request.seq_id)
    if positions is not None and (given := _length("positions", positions)) != count:
        raise RequestRefused(4, f"{given} positions for {count} tokens", "as many as tokens")
    values = _typed(contract.token_or_embed, request.values)
    placed = None if positions is None else _typed(contract.position, positions)
    for tensor, elements in ((contract.token_or_embed, values.size), (contract.position, count)):
        if problem := outside(tensor, 0, elements):
            raise RequestRefused(6, f"{count} tokens: {problem}", f"{prod(tensor.shape)} elements of {tensor.name}")
    _check_content(contract, values, placed, past)
    return contract


def _length(name: str, given: Any) -> int:
    try:
        return len(given)
    except TypeError:
        raise RequestRefused(4, f"{name} is {type(given).__name__}", "an array") from None


def _integer(number: int, name: str, value: Any) -> int:
    """As Python's int, which does not overflow."""
    try:
        return index(value)
    except TypeError:
        raise RequestRefused(number, f"{name} is of type {type(value).__name__}", "an integer") from None


def check_sequence(seq_id: Any) -> int:
    """The number of a sequence, as Python's. Raises RequestRefused for what is none."""
    sequence = _integer(3, "seq_id", seq_id)
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise RequestRefused(3, f"seq_id {sequence}", f"0 to {SEQUENCE_MAX}")
    return sequence


def _typed(tensor: TensorContract, given: Any) -> NDArray[Any]:
    """An array that fits the tensor but for its length (checks 4 and 5). Token ids and positions may be of any integer
    type, and in a list."""
    try:
        array = np.asarray(given)
    except (ValueError, OverflowError) as error:
        raise RequestRefused(5, f"for {tensor.name}, what is no array: {error}", _form(tensor)) from None
    if array.ndim < 1 or array.shape[1:] != tensor.shape[2:]:
        raise RequestRefused(4, f"for {tensor.name}, the shape {list(array.shape)}", _form(tensor))
    if not _has_type(tensor, array):
        raise RequestRefused(5, f"for {tensor.name}, elements of type {array.dtype}", _form(tensor))
    return array


def _has_type(tensor: TensorContract, array: NDArray[Any]) -> bool:
    if tensor.dtype is PrimitiveType.S32:
        return array.dtype.kind in "iu"
    return array.dtype == HOST_TYPES[tensor.dtype]


def _form(tensor: TensorContract) -> str:
    shape = ", ".join(["tokens", *map(str, tensor.shape[2:])])
    return f"[{shape}] {tensor.dtype.name}, as {np.dtype(HOST_TYPES[tensor.dtype])}"


def _check_content(contract: SubmodelContract, values: NDArray[Any], positions: NDArray[Any] | None, past: int) -> None:
    if contract.token_or_embed.dtype is PrimitiveType.S32:
        for i in _outside(values, contract.vocabulary):
            raise RequestRefused(6, f"token {values[i]} at {i}", f"0 to {contract.vocabulary - 1}")
    else:
        for i in _where((values & BF16_EXPONENT) == BF16_EXPONENT):
            raise RequestRefused(6, f"element {i} of the embeddings is infinite or no number", "finite values")
    if positions is None:
        return
    for i in _where(positions != np.arange(past, past + len(positions))):
        raise RequestRefused(6, f"position {positions[i]} at {i}", f"{past + i}: the positions go on from past_len")


def _outside(tokens: NDArray[Any], vocabulary: int) -> list[int]:
    if tokens.size == 1:  # a decode: without a temporary array
        return [] if 0 <= tokens.item() < vocabulary else [0]
    return _where((tokens < 0) | (tokens >= vocabulary))


def _where(wrong: NDArray[np.bool_]) -> list[int]:
    """The first place, if there is one."""
    places: list[int] = np.flatnonzero(wrong)[:1].tolist()
    return places


# -- checks 7 and 8 ----------------------------------------------------------------------------------------------------
def program(lane: Lane, sequence: int, values: Any, past_len: int) -> Failure | None:
    """Programs the lane for `values` on CalRT's sequence; None when all of it succeeded (FI02).

    A failure without a code is ours, and then CalRT was not called: the values do not fit this lane (FI03), which may
    be one of a newer model than the one they were checked for."""
    c = lane.contract
    try:
        array = _typed(c.token_or_embed, values)
    except RequestRefused as refused:
        return Failure("prepare", text=f"{c.exact_name}: {refused}")
    return first_failure(_programming(lane, sequence, array, past_len))


def _programming(lane: Lane, sequence: int, values: NDArray[Any], past: int) -> Iterator[Failure | None]:
    """One step after the other; whoever asks no further makes no further call."""
    c, count, library = lane.contract, len(values), lane.library
    sizes = ((c.token_or_embed, values.size), (c.position, count))
    if past < 0 or past + count > c.max_seq:
        yield Failure("prepare", text=f"past_len {past} and {count} tokens are over max_seq, {c.max_seq}")
    for tensor, size in sizes:
        if problem := outside(tensor, 0, size):
            yield Failure(f"copy to {tensor.name}", text=problem)
    lane.host_input[0, :count] = values
    lane.host_position[0, :count] = np.arange(past, past + count)
    yield failed(f"bind sequence {sequence}", lane.input.bind_sequence(sequence), library)
    for tensor, size in sizes:
        yield lane.slice(tensor, 0, size)
    for csr, value in ((c.csr_cur_seq, count), (c.csr_total_seq, past + count)):
        yield failed(f"set CSR {csr}", lane.input.set_csr(csr, value), library)


def outcome(failure: Failure | None) -> str:
    """What the protocol observes of a `prepare`: a check of ours, which has no code, concerns this request alone."""
    if failure is None:
        return "ok"
    return observed("prepare", failure.code) if failure.code else "request"
