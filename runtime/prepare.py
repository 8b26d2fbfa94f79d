"""From a request to a programmed lane: §6.3, in its order.

Theory. Checks 1 to 6 need nobody but the request and the manifest, so they come first, before a job waits for KV or a
slot: `check` makes no CalRT call. What passes becomes `Inputs`, which are copies: what was checked is what is sent,
whatever the client does to its arrays meanwhile. Numbers are Python's and do not overflow.

Checks 7 and 8 are what CalRT says: `program` copies in, binds the sequence, slices, and sets both CSRs, and stops at
the first code that is not success. The lane is then half programmed: it must be undone like one that ran.

Two checks go beyond §6.3. Positions must continue the sequence, token ids must be in the vocabulary and embeddings
finite: on the device each of them would end in an exception or in logits that are no numbers, and so cost all clients
a recovery for one client's mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from operator import index
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from machines.errors import observed
from runtime.calrt import PrimitiveType
from runtime.lane import HOST_TYPES, Lane, first_failure, outside
from runtime.manifest import CalTaskKind, ModelGeneration, SubmodelContract
from runtime.status import Failure, failed

__all__ = ["Inputs", "Request", "RequestRefused", "check", "outcome", "program"]

SEQUENCE_MAX = 2**31 - 1
BF16_EXPONENT = np.uint16(0x7F80)  # all ones: infinite, or no number


class RequestRefused(ValueError):
    """A request that cannot be; no CalRT call was made for it.

    check: its number in §6.3, 0 where the model has no such kind of call. found, allowed: for the client."""

    def __init__(self, check: int, found: str, allowed: str) -> None:
        self.check, self.found, self.allowed = check, found, allowed
        super().__init__(f"check {check} of §6.3: {found}; allowed: {allowed}")


@frozen(eq=False)
class Request:
    """A call as the client wants it; nothing is known to be right yet.

    seq_ids: its sequences; there must be one. past_len: tokens that the sequence has. values: [token_count] ids, or
    [token_count, hidden] embeddings as BF16 bits in uint16, also flat. positions: [token_count], or None: past_len on.
    """

    kind: CalTaskKind
    seq_ids: tuple[int, ...]
    past_len: int
    token_count: int
    values: Any
    positions: Any = None


@frozen(eq=False)
class Inputs:
    """What `check` let pass. values: flat, of the input tensor's type; positions: [count] S32. Both are copies."""

    contract: SubmodelContract
    sequence: int
    past_len: int
    count: int
    values: NDArray[Any]
    positions: NDArray[np.int32]

    @property
    def target_len(self) -> int:
        """Tokens of the sequence after the call."""
        return self.past_len + self.count


# -- checks 1 to 6 -----------------------------------------------------------------------------------------------------
def check(request: Request, generation: ModelGeneration) -> Inputs:
    """The request's inputs for the device, copied. Raises RequestRefused for the first check that does not hold."""
    contract = _contract(request.kind, generation)
    count = _integer(1, "token_count", request.token_count)
    past = _integer(2, "past_len", request.past_len)
    if count < 1:
        raise RequestRefused(1, f"token_count is {count}", "at least 1")
    if past < 0 or past + count > contract.max_seq:
        found = f"past_len {past} and token_count {count} make {past + count}"
        raise RequestRefused(2, found, f"past_len from 0, and together at most max_seq, {contract.max_seq}")
    sequence = _sequence(request.seq_ids)
    width = prod(contract.token_or_embed.shape[2:])  # elements of one token: 1, or the hidden size
    _check_length("values", request.values, (count, width))
    if request.positions is not None:
        _check_length("positions", request.positions, (count, 1))
    values = _values(contract, request.values)
    positions = _positions(request.positions, past, count)
    _check_room(contract, count, width)
    _check_content(contract, values, positions, past)
    typed = HOST_TYPES[contract.token_or_embed.dtype]
    return Inputs(contract, sequence, past, count, values.astype(typed, copy=False), positions.astype(np.int32))


def _contract(kind: CalTaskKind, generation: ModelGeneration) -> SubmodelContract:
    if kind not in generation.submodels:
        raise RequestRefused(0, f"the call is {kind.name}", ", ".join(k.name for k in generation.submodels))
    return generation.submodels[kind]


def _integer(number: int, name: str, value: Any) -> int:
    """As Python's int, which does not overflow."""
    try:
        return index(value)
    except TypeError:
        raise RequestRefused(number, f"{name} is of type {type(value).__name__}", "an integer") from None


def _sequence(seq_ids: tuple[int, ...]) -> int:
    if len(seq_ids) != 1:
        raise RequestRefused(3, f"{len(seq_ids)} sequences", "1 sequence in a call (batch 1)")
    sequence = _integer(3, "the sequence", seq_ids[0])
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise RequestRefused(3, f"sequence {sequence}", f"0 to {SEQUENCE_MAX}")
    return sequence


def _check_length(name: str, given: Any, wanted: tuple[int, int]) -> None:
    """Before anything is copied, so that an endless list costs nothing. wanted: (tokens, elements of each)."""
    count, width = wanted
    shapes = {(count,)} if width == 1 else {(count, width), (count * width,)}
    allowed = f"an array of {' or '.join(str(list(shape)) for shape in sorted(shapes))}"
    try:
        found = given.shape if isinstance(given, np.ndarray) else (len(given),)
    except TypeError:
        raise RequestRefused(4, f"{name} is {type(given).__name__}", allowed) from None
    if found not in shapes:
        raise RequestRefused(4, f"{name} has the shape {list(found)}", allowed)


def _check_room(contract: SubmodelContract, count: int, width: int) -> None:
    """Check 6: the slices are in their tensors, and the bytes too."""
    for tensor, elements in ((contract.token_or_embed, count * width), (contract.position, count)):
        if problem := outside(tensor, 0, elements):
            allowed = f"{prod(tensor.shape)} elements of {tensor.name} ({tensor.byte_size} bytes)"
            raise RequestRefused(6, f"{count} tokens: {problem}", allowed)


def _values(contract: SubmodelContract, given: Any) -> NDArray[Any]:
    """A flat copy of the token ids, of any integer type, or of the embeddings (check 5)."""
    if contract.token_or_embed.dtype is PrimitiveType.S32:
        return _integers("values", given)
    wanted = np.dtype(HOST_TYPES[contract.token_or_embed.dtype])
    if not isinstance(given, np.ndarray) or given.dtype != wanted:
        found = given.dtype if isinstance(given, np.ndarray) else type(given).__name__
        raise RequestRefused(5, f"embeddings are {found}", f"an array of {wanted}, the bits of BF16")
    return given.reshape(-1).copy()


def _positions(given: Any, past: int, count: int) -> NDArray[Any]:
    return np.arange(past, past + count) if given is None else _integers("positions", given)


def _integers(name: str, given: Any) -> NDArray[Any]:
    """A copy, of any integer type."""
    try:
        numbers = np.array(given)
    except (ValueError, OverflowError) as error:
        raise RequestRefused(5, f"{name} is no array of numbers: {error}", "one row of integers") from None
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise RequestRefused(5, f"{name} is {numbers.dtype} {list(numbers.shape)}", "one row of integers")
    return numbers


def _check_content(contract: SubmodelContract, values: NDArray[Any], positions: NDArray[Any], past: int) -> None:
    if contract.token_or_embed.dtype is PrimitiveType.S32:
        for i in _where((values < 0) | (values >= contract.vocabulary)):
            raise RequestRefused(6, f"token {values[i]} at {i}", f"0 to {contract.vocabulary - 1}")
    else:
        for i in _where((values & BF16_EXPONENT) == BF16_EXPONENT):
            raise RequestRefused(6, f"element {i} of the embeddings is infinite or no number", "finite values")
    for i in _where(positions != np.arange(past, past + len(positions))):
        raise RequestRefused(6, f"position {positions[i]} at {i}", f"{past + i}: the positions go on from past_len")


def _where(wrong: NDArray[np.bool_]) -> list[int]:
    """The first place, if there is one."""
    places: list[int] = np.flatnonzero(wrong)[:1].tolist()
    return places


# -- checks 7 and 8 ----------------------------------------------------------------------------------------------------
def program(lane: Lane, inputs: Inputs) -> Failure | None:
    """Programs the lane for this call; None when all of it succeeded (FI02, FI03). A failure without a code is ours:
    the lane is of another submodel than the one that was checked, or a slice is outside of its tensor."""
    if lane.contract != inputs.contract:
        checked, found = inputs.contract.exact_name, lane.contract.exact_name
        return Failure("prepare", text=f"checked for {checked} of another model; the lane is of {found}")
    return first_failure(_programming(lane, inputs))


def _programming(lane: Lane, inputs: Inputs) -> Iterator[Failure | None]:
    """One step after the other; whoever asks no further makes no further call."""
    c, sizes = lane.contract, (inputs.values.size, inputs.count)
    tensors = tuple(zip((c.token_or_embed, c.position), sizes, strict=True))
    for tensor, size in tensors:
        if problem := outside(tensor, 0, size):
            yield Failure(f"copy to {tensor.name}", text=problem)
    lane.host_input.reshape(-1)[: sizes[0]] = inputs.values
    lane.host_position.reshape(-1)[: sizes[1]] = inputs.positions
    library, buffer = lane.library, lane.input
    yield failed(f"bind sequence {inputs.sequence}", buffer.bind_sequence(inputs.sequence), library)
    for tensor, size in tensors:
        yield lane.slice(tensor, 0, size)
    for csr, value in ((c.csr_cur_seq, inputs.count), (c.csr_total_seq, inputs.target_len)):
        yield failed(f"set CSR {csr}", buffer.set_csr(csr, value), library)


def outcome(failure: Failure | None) -> str:
    """What the protocol observes of a `prepare`: a check of ours, which has no code, concerns this request alone."""
    if failure is None:
        return "ok"
    return observed("prepare", failure.code) if failure.code else "request"
