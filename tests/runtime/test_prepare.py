"""§6.3: what is refused before any CalRT call, in the order of the checks; how a lane is programmed (FI02, FI03)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from attrs import evolve, frozen
from pools import DECODE, EMBEDS, IDS, Bench, bench_of, model_of

from machines.errors import CODES, ErrorClass, classify
from runtime.calrt import Library
from runtime.lane import Lane, outside
from runtime.manifest import CalTaskKind
from runtime.prepare import RequestRefused, check, outcome, program
from runtime.status import Failure

MAX_SEQ, VOCABULARY, HIDDEN = 256, 512, 64  # of tiny


@frozen(eq=False)
class Asked:
    task: CalTaskKind = IDS
    seq_id: Any = 0
    past_len: Any = 0
    values: Any = (1, 2, 3)


TINY = model_of("tiny")


@pytest.fixture
def bench(library: Library) -> Iterator[Bench]:
    with bench_of(library) as bench:
        yield bench


def refused(request: Asked, **batch: Any) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        check(request, TINY, **batch)
    return caught.value


# -- checks 1 to 6 --
def rows(count: int, hidden: int = HIDDEN, dtype: Any = np.uint16) -> np.ndarray[Any, Any]:
    return np.full((count, hidden), 0x3F80, dtype)


NAN, INFINITE = rows(3), rows(3)
NAN[2, 63], INFINITE[0, 0] = 0x7FC1, 0xFF80

REFUSED = [
    (Asked(CalTaskKind.Vision), {}, 0, "the call is Vision", "PrefillIds, PrefillEmbeds, Decode"),
    (Asked(values=[]), {}, 1, "0 tokens", "at least 1"),
    (Asked(EMBEDS, values=rows(0)), {}, 1, "0 tokens", "at least 1"),
    (Asked(past_len=254), {}, 2, "past_len 254 and 3 tokens make 257", "max_seq, 256"),
    (Asked(past_len=-1), {}, 2, "past_len -1", "from 0"),
    (Asked(past_len=2**64 - 3), {}, 2, "make 18446744073709551616", "256"),
    (Asked(past_len=2**32 - 3), {}, 2, "make 4294967296", "256"),
    (Asked(past_len=np.uint64(2**64 - 1)), {}, 2, "make 18446744073709551618", "256"),
    (Asked(past_len=np.int32(2**31 - 1)), {}, 2, "make 2147483650", "256"),
    (Asked(past_len=1.0), {}, 2, "past_len is of type float", "an integer"),
    (Asked(values=range(257)), {}, 2, "257 tokens make 257", "256"),
    (Asked(), {"seq_count": 2}, 3, "2 sequences", "1 sequence"),
    (Asked(), {"seq_count": 0}, 3, "0 sequences", "1 sequence"),
    (Asked(seq_id=-1), {}, 3, "seq_id -1", "0 to 2147483647"),
    (Asked(seq_id=2**31), {}, 3, "seq_id 2147483648", "0 to 2147483647"),
    (Asked(seq_id=None), {}, 3, "seq_id is of type NoneType", "an integer"),
    (Asked(values=None), {}, 4, "values is NoneType", "an array"),
    (Asked(values=iter([1])), {}, 4, "values is list_iterator", "an array"),
    (Asked(), {"positions": [0, 1]}, 4, "2 positions for 3 tokens", "as many as tokens"),
    (Asked(), {"positions": 5}, 4, "positions is int", "an array"),
    (Asked(EMBEDS, values=rows(3, 63)), {}, 4, "the shape [3, 63]", "[tokens, 64] BF16"),
    (Asked(EMBEDS, values=rows(3).reshape(-1)), {}, 4, "the shape [192]", "[tokens, 64] BF16"),
    (Asked(values=[[1], [2]]), {}, 4, "the shape [2, 1]", "[tokens] S32"),
    (Asked(values=[1.0, 2.0]), {}, 5, "elements of type float64", "[tokens] S32"),
    (Asked(values=[True, False]), {}, 5, "elements of type bool", "[tokens] S32"),
    (Asked(values="abc"), {}, 4, "the shape []", "[tokens] S32"),
    (Asked(values=[1, 2**64]), {}, 5, "elements of type object", "[tokens] S32"),
    (Asked(values=[[1], [2, 3]]), {}, 5, "what is no array", "[tokens] S32"),
    (Asked(EMBEDS, values=rows(3, dtype=np.float32)), {}, 5, "elements of type float32", "as uint16"),
    (Asked(EMBEDS, values=rows(3, dtype=np.int16)), {}, 5, "elements of type int16", "as uint16"),
    (Asked(), {"positions": [0.0, 1.0, 2.0]}, 5, "elements of type float64", "[tokens] S32"),
    (Asked(DECODE, values=[1, 2]), {}, 6, "2 tokens: elements 0 to 2 are outside of 1", "1 elements of input_ids"),
    (Asked(values=[0, 512]), {}, 6, "token 512 at 1", "0 to 511"),
    (Asked(values=[0, -1]), {}, 6, "token -1 at 1", "0 to 511"),
    (Asked(values=[2**32]), {}, 6, "token 4294967296 at 0", "0 to 511"),
    (Asked(values=np.array([2**64 - 1], np.uint64)), {}, 6, "token 18446744073709551615 at 0", "0 to 511"),
    (Asked(EMBEDS, values=NAN), {}, 6, "element 191 of the embeddings is infinite or no number", "finite"),
    (Asked(EMBEDS, values=INFINITE), {}, 6, "element 0 of the embeddings is infinite", "finite"),
    (Asked(past_len=5), {"positions": [5, 6, 8]}, 6, "position 8 at 2", "7: the positions go on"),
    (Asked(past_len=5), {"positions": [0, 1, 2]}, 6, "position 0 at 0", "5: the positions go on"),
]


@pytest.mark.parametrize(("request_", "batch", "number", "found", "allowed"), REFUSED)
def test_what_cannot_be_is_refused(
    request_: Asked, batch: dict[str, Any], number: int, found: str, allowed: str
) -> None:
    refusal = refused(request_, **batch)
    assert refusal.check == number
    assert found in refusal.found
    assert allowed in refusal.allowed
    assert str(refusal) == f"check {number} of §6.3: {refusal.found}; allowed: {refusal.allowed}"


def test_the_checks_are_made_in_the_order_of_the_specification() -> None:
    """A request in which everything is wrong, repaired one check after the other."""
    wrong = Asked(CalTaskKind.Vision, seq_id=-1, past_len=300, values=[])
    batch: dict[str, Any] = {"seq_count": 2, "positions": [0.5]}
    repairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"task": DECODE}, {}),
        ({"values": [1.5, 999.5]}, {}),
        ({"past_len": 0}, {}),
        ({"seq_id": 0}, {"seq_count": 1}),
        ({}, {"positions": [0.5, 1.5]}),
        ({"values": [1, 999]}, {"positions": [0, 2]}),
        ({"values": [999]}, {"positions": [2]}),
        ({"values": [1]}, {}),
    ]
    seen = []
    for fields, more in repairs:
        seen.append(refused(wrong, **batch).check)
        wrong, batch = evolve(wrong, **fields), {**batch, **more}
    assert seen == [0, 1, 2, 3, 4, 5, 6, 6]
    assert refused(wrong, **batch).check == 6  # the position
    assert check(wrong, TINY, **{**batch, "positions": [0]}) is TINY.submodels[DECODE]


@pytest.mark.parametrize(
    ("request_", "batch"),
    [
        (Asked(past_len=253), {}),
        (Asked(values=range(256)), {}),
        (Asked(seq_id=2**31 - 1), {}),
        (Asked(values=np.array([0, 511], np.int64)), {"positions": np.array([0, 1], np.uint8)}),
        (Asked(EMBEDS, values=rows(256)), {}),
        (Asked(DECODE, past_len=np.uint32(255), values=np.array([511], np.int32)), {"positions": (255,)}),
    ],
)
def test_what_can_be_passes_up_to_the_limit(request_: Asked, batch: dict[str, Any]) -> None:
    assert check(request_, TINY, **batch) is TINY.submodels[request_.task]


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 127, 128, 1024, 4095, 4096, 40959, 40960])
def test_the_lengths_of_the_specification(length: int) -> None:
    """§13.1: 40960 and one decode more are refused."""
    model = model_of("qwen3-tile16")
    check(Asked(values=np.zeros(length, np.int32)), model)
    decode = Asked(DECODE, past_len=length, values=[0])
    if length < 40960:
        check(decode, model)
    else:
        with pytest.raises(RequestRefused, match="past_len 40960 and 1 tokens make 40961"):
            check(decode, model)


@pytest.mark.parametrize(
    ("offset", "elements", "inside"),
    [
        (0, 256, True), (0, 257, False), (1, 256, False), (255, 1, True), (256, 0, True), (256, 1, False),
        (-1, 1, False), (0, -1, False), (2**64, 1, False), (2**64 - 1, 2, False), (1, 2**64 - 1, False),
    ],
)  # fmt: skip
def test_a_slice_is_inside_of_its_tensor(offset: int, elements: int, inside: bool) -> None:
    assert (outside(TINY.submodels[IDS].token_or_embed, offset, elements) == "") is inside


def test_a_slice_is_inside_of_the_tensors_bytes_too() -> None:
    """FI03: ByteSize and shape are both looked at, whatever a manifest says."""
    short = evolve(TINY.submodels[IDS].token_or_embed, byte_size=1023)
    assert outside(short, 0, 255) == ""
    assert outside(short, 0, 256) == "256 elements of 4 bytes at 0 are outside of 1023 bytes"


# -- checks 7 and 8 --
PROGRAMMED = [
    ("bind_sequence", ""), ("slice_tensor", "input_ids"), ("slice_tensor", "position_ids"), ("set_csr", "cur_seq"),
    ("set_csr", "total_seq"),
]  # fmt: skip


def test_a_lane_is_programmed_in_this_order(bench: Bench) -> None:
    lane = bench.built(1).lease().lane(IDS)
    before = len(bench.calls())
    assert program(lane, 4, [7, 8, 9], 20) is None
    assert bench.calls()[before:] == PROGRAMMED
    assert [(c.a, c.b) for c in bench.sim.trace()[before + 1 : before + 3]] == [(0, 3), (0, 3)]
    assert [c.a for c in bench.sim.trace()[before + 3 :]] == [3, 23]
    assert lane.host_input[0, :3].tolist() == [7, 8, 9]
    assert lane.host_position[0, :3].tolist() == [20, 21, 22]
    assert lane.sliced == ["input_ids", "position_ids"]


@pytest.mark.shows("S03")
@pytest.mark.parametrize(("call", "nth", "made"), [
    ("bind_sequence", 1, 1), ("slice_tensor", 1, 2), ("slice_tensor", 2, 3), ("set_csr", 1, 4), ("set_csr", 2, 5),
])  # fmt: skip
@pytest.mark.parametrize("code", [1, 4, 14, 15, 17, 21, 24, 28, 29, 99, -5])
def test_the_first_code_that_is_not_success_ends_it(bench: Bench, call: str, nth: int, made: int, code: int) -> None:
    """FI02, and every call that can fail: nothing is called after it, and the slices of before can be undone."""
    pool = bench.built(1)
    lease = pool.lease()
    before = len(bench.calls())
    bench.sim.fault(call, "return", code, nth=nth)
    failure = program(lease.lane(IDS), 0, [1, 2], 0)
    assert failure is not None
    assert failure.code == code
    assert failure.known == classify(code)
    assert bench.calls()[before:] == PROGRAMMED[:made]
    assert failure.stage == ("bind sequence 0", "slice input_ids", "slice position_ids", "set CSR cur_seq",
                             "set CSR total_seq")[made - 1]  # fmt: skip
    assert pool.give_back(lease) is None
    assert pool.counts().free == 1


def test_an_exception_in_calrt_is_a_failure_with_its_text(bench: Bench) -> None:
    lane = bench.built(1).lease().lane(IDS)
    bench.sim.fault("set_csr", "throw", 0)
    failure = program(lane, 0, [1], 0)
    assert failure is not None
    assert failure.known.name == "ShimException"
    assert failure.text


def test_a_csr_that_does_not_exist_is_seen_and_nothing_is_submitted(bench: Bench) -> None:
    """FI02. The code is the device's own, and not planned."""
    lane = bench.built(1).lease().lane(IDS)
    wrong = evolve(lane.contract, csr_total_seq="total_sequence")
    lane.contract = wrong
    failure = program(lane, 0, [1], 0)
    assert failure is not None
    assert failure.stage == "set CSR total_sequence"
    assert failure.code != 0
    assert "infer" not in {call for call, _ in bench.calls()}


@pytest.mark.parametrize("tensor", ["token_or_embed", "position"])
@pytest.mark.parametrize("kind", [IDS, EMBEDS, DECODE])
def test_a_slice_of_one_element_too_many_never_reaches_calrt(bench: Bench, kind: CalTaskKind, tensor: str) -> None:
    """FI03."""
    lane = bench.built(1).lease().lane(kind)
    contract = getattr(lane.contract, tensor)
    elements = int(np.prod(contract.shape))
    before = len(bench.calls())
    failure = lane.slice(contract, 0, elements + 1)
    assert failure == Failure(f"slice {contract.name}", 0, f"elements 0 to {elements + 1} are outside of {elements}")
    assert (bench.calls()[before:], lane.sliced) == ([], [])
    assert lane.slice(contract, 0, elements) is None


UNFIT = [
    (IDS, [0] * 257, 0, "257 tokens are over max_seq"),
    (IDS, [0], 256, "past_len 256 and 1 tokens are over max_seq, 256"),
    (IDS, [0], -1, "past_len -1"),
    (IDS, rows(2), 0, "the shape [2, 64]"),
    (IDS, 5, 0, "the shape []"),
    (DECODE, [1, 2], 0, "outside of 1"),
    (EMBEDS, [1, 2], 0, "the shape [2]"),
    (EMBEDS, rows(2, dtype=np.float32), 0, "float32"),
]


@pytest.mark.parametrize(("kind", "values", "past", "text"), UNFIT)
def test_values_that_do_not_fit_the_lane_never_reach_calrt(
    bench: Bench, kind: CalTaskKind, values: Any, past: int, text: str
) -> None:
    """They may have been checked for the model of an earlier generation."""
    lane = bench.built(1).lease().lane(kind)
    before = len(bench.calls())
    failure = program(lane, 0, values, past)
    assert failure is not None
    assert (failure.code, outcome(failure)) == (0, "request")
    assert text in str(failure)
    assert bench.calls()[before:] == []
    assert not lane.host_input.any()


def test_what_is_not_sliceable_is_passed_whole_and_never_sliced(bench: Bench) -> None:
    """A manifest may say so of a Decode."""
    lane: Lane = bench.built(1).lease().lane(DECODE)
    c = lane.contract
    fixed = [evolve(t, sliceable=False) for t in (c.token_or_embed, c.position)]
    lane.contract = evolve(c, token_or_embed=fixed[0], position=fixed[1])
    before = len(bench.calls())
    assert program(lane, 0, [1], 0) is None
    assert bench.calls()[before:] == [PROGRAMMED[0], *PROGRAMMED[3:]]
    assert lane.undo() is None
    assert bench.calls()[before + 3 :] == []
    part = lane.slice(evolve(fixed[0], shape=(1, 2), byte_size=8), 0, 1)
    assert part is not None
    assert "not sliceable" in part.text


def test_ids_embeddings_and_decode_give_the_rows_of_the_oracle(bench: Bench) -> None:
    """And a slot serves all kinds, one after the other, on a sequence that goes on."""
    lease = bench.built(1).lease()
    expected = bench.oracle.sequence()
    embeddings = np.arange(5 * HIDDEN, dtype=np.uint16).reshape(5, HIDDEN)
    calls = [(IDS, np.arange(17, dtype=np.int64)), (EMBEDS, embeddings), (DECODE, np.array([511]))]
    past = 0
    for kind, values in calls:
        row = bench.call(lease, kind, 3, values, past)
        past += len(values)
        if kind is EMBEDS:
            expected.extend_embeds(values)
        else:
            expected.extend(values.tolist())
        assert np.array_equal(row, expected.row()), kind
        assert lease.lane(kind).undo() is None


# -- what it means --
@pytest.mark.parametrize("code", [*CODES[1:], classify(-1), classify(4711)], ids=lambda c: str(c.number))
def test_what_the_protocol_observes(code: Any) -> None:
    """Each class as it is called, but that a programming error is treated like the request's, and an unknown code like
    the device's (§8)."""
    like = {ErrorClass.Programming: ErrorClass.Request, ErrorClass.Unknown: ErrorClass.Device}
    assert outcome(Failure("slice", code.number)) == like.get(code.kind, code.kind).name.lower()


def test_success_and_our_own_checks_are_told_apart() -> None:
    """A failure without a code must never be taken for code 0, success."""
    assert outcome(None) == "ok"
    assert outcome(Failure("slice input_ids", 0, "outside")) == "request"
