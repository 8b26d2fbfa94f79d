"""The straight code on the simulated device: every logit is the oracle's (§13.1), whatever the length, tile and input.

The device computes from its own KV and watches every access to memory in flight; the oracle knows neither.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.calbin import sample
from runtime.calrt import Library
from runtime.device_run import greedy, run
from runtime.legacy import Legacy
from runtime.manifest import CalTaskKind, Manifest, load_manifest
from runtime.oracle import Oracle
from runtime.prompts import read_prompts
from runtime.simulator import Simulator
from runtime.straight import DeviceFailed, Refused, Straight

OURS, LEGACY = 20, 21  # devices of these tests
TILES = {"qwen3-tile16": 16, "qwen3-tile8": 8, "qwen3-tile1": 1}
LENGTHS = (1, 2, 15, 16, 17, 127, 128, 1024, 4095, 4096, 40959)  # §13.1
MAX_SEQ = 40960


def manifest_of(model: str) -> Manifest:
    return load_manifest(sample(model).with_suffix(".json"))


def oracle_of(model: str) -> Oracle:
    return Oracle.of_calbin(sample(model))


def bits(logits: NDArray[np.float32]) -> NDArray[np.uint16]:
    """As BF16; that they came from BF16 is checked."""
    wide = logits.view(np.uint32)
    assert not np.any(wide & 0xFFFF)
    return (wide >> 16).astype(np.uint16)


def some_tokens(count: int, seed: int = 0, vocabulary: int = 151_936) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, vocabulary, count).tolist()
    return tokens


@pytest.fixture
def sim(library: Library) -> Iterator[Simulator]:
    """Both devices as new; afterwards no violation may have been seen on either."""
    both = [Simulator.beside(library, n) for n in (OURS, LEGACY)]
    for s in both:
        s.power_cycle()
    yield both[0]
    assert [v for s in both for v in s.violations()] == []


# -- 100 prompts (§13.1) --


@pytest.mark.parametrize(("model", "count"), [("tiny", 40), ("qwen3-tile16", 12)])
def test_100_prompts_give_the_tokens_of_the_oracle_and_of_the_baseline(
    library: Library, sim: Simulator, model: str, count: int
) -> None:
    prompts, manifest = read_prompts(), manifest_of(model)
    with Straight(library, manifest, OURS) as ours, Legacy(library, manifest, LEGACY) as legacy:
        references = {"oracle": oracle_of(model).tokens, "legacy": lambda p, n: greedy(legacy, p, n)}
        results = list(run(ours, prompts, count, references))
    assert [d for _, _, differences in results for d in differences] == []
    assert [tokens for tokens, _, _ in results] == [count] * 100
    assert sim.truth("jobs_completed") == 100 * count


def test_the_target_lengths_of_apply_are_the_baselines(library: Library, sim: Simulator) -> None:
    """§7: the target length is frozen by what the code before did, which asked before infer and again after (S02)."""
    other = Simulator.beside(library, LEGACY)
    for s in (sim, other):
        s.set(trace_limit=1_000_000)
    manifest, prompts = manifest_of("tiny"), read_prompts()
    with Straight(library, manifest, OURS) as ours, Legacy(library, manifest, LEGACY) as legacy:
        for prompt in prompts:
            assert greedy(ours, prompt.tokens, 3) == greedy(legacy, prompt.tokens, 3)
    lengths = {s: [(c.a, c.b, c.result) for c in s.trace() if c.call == "apply"] for s in (sim, other)}
    expected = [[n, n + 1, n + 2, 0] for n in (len(p.tokens) for p in prompts)]
    assert lengths[sim] == [(0, n, 1) for lengths_of_prompt in expected for n in lengths_of_prompt]
    twice = [(0, n, 1) for of_prompt in expected for n in of_prompt for _ in range(2 if n else 1)]
    assert lengths[other] == twice


def test_an_oracle_with_another_seed_differs_at_every_prompt(library: Library, sim: Simulator) -> None:
    """Negative control."""
    oracle = oracle_of("tiny")
    other = Oracle(oracle.seed ^ 1, oracle.vocabulary)
    with Straight(library, manifest_of("tiny"), OURS) as ours:
        results = list(run(ours, read_prompts(), 3, {"other": other.tokens}))
    assert all(differences for _, _, differences in results)


# -- lengths (§13.1) --


@pytest.mark.parametrize("model", TILES)
def test_every_length_gives_the_row_to_the_bit(library: Library, sim: Simulator, model: str) -> None:
    """A prefill of each length and one decode. The whole tile is the oracle's: the row in its place, and decoys."""
    oracle, tile = oracle_of(model), TILES[model]
    with Straight(library, manifest_of(model), OURS) as ours:
        for sequence, length in enumerate(LENGTHS):
            expected, prompt = oracle.sequence(), some_tokens(length, seed=length)
            expected.extend(prompt)
            row = bits(ours.prefill(sequence, prompt))
            assert np.array_equal(row, expected.row()), length
            assert int(np.argmax(ours.logits)) == expected.token()
            written = ours.lane(CalTaskKind.PrefillIds).host_logits
            assert np.array_equal(written, expected.tile(length, tile)), length

            token = expected.token()
            expected.extend([token])
            assert np.array_equal(bits(ours.decode(sequence, token)), expected.row()), length
            assert sim.kv(sequence)[0] == length + 1
            ours.forget(sequence)


@pytest.mark.parametrize("length", [2, 15, 16, 128, 4096])
def test_row_0_of_the_tile_is_not_the_answer(library: Library, sim: Simulator, length: int) -> None:
    """Negative control (S09): every row but (n - 1) % tile is a decoy."""
    with Straight(library, manifest_of("qwen3-tile16"), OURS) as ours:
        ours.prefill(0, some_tokens(length))
        written = ours.lane(CalTaskKind.PrefillIds).host_logits
    right = oracle_of("qwen3-tile16").row(some_tokens(length))
    assert [i for i in range(16) if np.array_equal(written[i], right)] == [(length - 1) % 16]


def test_a_decode_beyond_the_last_position_is_refused(library: Library, sim: Simulator) -> None:
    """§13.1: 40,960 and a decode. By our own check before any CalRT call, and by the device if it were asked."""
    with Straight(library, manifest_of("qwen3-tile16"), OURS) as ours:
        ours.prefill(0, some_tokens(MAX_SEQ))
        calls = len(sim.trace())
        with pytest.raises(Refused, match=r"40960 tokens and 1 more are over max_seq, 40960"):
            ours.decode(0, 1)
        with pytest.raises(Refused, match="takes 1 to 40960 in a call"):
            ours.prefill(1, some_tokens(MAX_SEQ + 1))
        assert len(sim.trace()) == calls
        assert ours.kv.apply(0, MAX_SEQ + 1) == (0, False)
        assert sim.kv(0)[0] == MAX_SEQ


def test_a_prompt_in_pieces_is_the_prompt(library: Library, sim: Simulator) -> None:
    """Prefill on top of what is there, across blocks of KV and rows of the tile."""
    prompt, oracle = some_tokens(700), oracle_of("qwen3-tile8")
    with Straight(library, manifest_of("qwen3-tile8"), OURS) as ours:
        begin = 0
        for size in (1, 127, 128, 129, 3, 312):
            logits = ours.prefill(5, prompt[begin : begin + size])
            begin += size
            assert np.array_equal(bits(logits), oracle.row(prompt[:begin]))
    assert begin == 700


# -- embeddings --


def some_rows(count: int, seed: int = 0) -> NDArray[np.uint16]:
    """Any bit patterns: the device takes embeddings as bytes."""
    return np.random.default_rng(seed).integers(0, 1 << 16, (count, 64), np.uint16)


@pytest.mark.parametrize("count", [1, 17, 300])
def test_embeddings(library: Library, sim: Simulator, count: int) -> None:
    """Ids, embeddings and decodes in one sequence."""
    expected = oracle_of("qwen3-tile16").sequence()
    with Straight(library, manifest_of("qwen3-tile16"), OURS) as ours:
        ours.prefill(0, [1, 2, 3])
        logits = bits(ours.prefill_embeds(0, some_rows(count)))
        expected.extend([1, 2, 3])
        expected.extend_embeds(some_rows(count))
        assert np.array_equal(logits, expected.row())
        expected.extend([expected.token()])
        assert np.array_equal(bits(ours.decode(0, int(np.argmax(ours.logits)))), expected.row())


def test_one_bit_of_an_embedding_changes_the_row(library: Library, sim: Simulator) -> None:
    """Negative control."""
    rows = some_rows(5)
    with Straight(library, manifest_of("qwen3-tile16"), OURS) as ours:
        first = bits(ours.prefill_embeds(0, rows))
        rows[0, 0] ^= 1
        second = bits(ours.prefill_embeds(1, rows))
    assert not np.array_equal(first, second)


# -- two sequences (§13.1) --


def test_two_sequences_alternate_1000_tokens_without_crosstalk(library: Library, sim: Simulator) -> None:
    oracle, prompts = oracle_of("qwen3-tile1"), ([1, 2, 3], [4, 5])
    answers: tuple[list[int], list[int]] = ([], [])
    with Straight(library, manifest_of("qwen3-tile1"), OURS) as ours:
        for sequence in (0, 1):
            answers[sequence].append(int(np.argmax(ours.prefill(sequence, prompts[sequence]))))
        for _ in range(999):
            for sequence in (0, 1):
                answers[sequence].append(int(np.argmax(ours.decode(sequence, answers[sequence][-1]))))
        assert [sim.kv(s)[0] for s in (0, 1)] == [3 + 999, 2 + 999]
    assert list(answers) == [oracle.tokens(p, 1000) for p in prompts]


def test_a_swapped_sequence_is_seen_at_once(library: Library, sim: Simulator) -> None:
    """Negative control: a decode that goes to the other sequence differs from the oracle in that very row."""
    oracle = oracle_of("tiny")
    with Straight(library, manifest_of("tiny"), OURS) as ours:
        for sequence, prompt in enumerate(([1, 2, 3], [4, 5, 6])):
            assert np.array_equal(bits(ours.prefill(sequence, prompt)), oracle.row(prompt))
        swapped = bits(ours.decode(1, 7))
    assert not np.array_equal(swapped, oracle.row([1, 2, 3, 7]))
    assert np.array_equal(swapped, oracle.row([4, 5, 6, 7]))


# -- what cannot be, and what fails --


@pytest.mark.parametrize(
    ("tokens", "message"),
    [([], "0 tokens; .* takes 1 to 256"), ([2**31], "not an S32"), ([-(2**31) - 1], "not an S32")],
)
def test_impossible_tokens_are_refused_without_a_call(
    library: Library, sim: Simulator, tokens: list[int], message: str
) -> None:
    with Straight(library, manifest_of("tiny"), OURS) as ours:
        calls = len(sim.trace())
        with pytest.raises(Refused, match=message):
            ours.prefill(0, tokens)
        assert len(sim.trace()) == calls


@pytest.mark.parametrize("rows", [np.zeros((2, 63), np.uint16), np.zeros((2, 64), np.float32), np.zeros(64, np.uint16)])
def test_impossible_embeddings_are_refused(library: Library, sim: Simulator, rows: NDArray[np.uint16]) -> None:
    with Straight(library, manifest_of("qwen3-tile16"), OURS) as ours, pytest.raises(Refused, match="takes"):
        ours.prefill_embeds(0, rows)


FAULTS = [
    ("infer", "return", 17, "infer: 17 DeviceBusy (Transient)"),
    ("infer", "return", 18, "infer: 18 DeviceUnavailable (Device)"),
    ("infer", "return", 3, "infer: 3 Undocumented3 (Unknown)"),
    ("infer", "throw", 0, "infer: -770001 ShimException (Unknown)"),
    ("infer", "ccu_exception", 0, "DONE_CCU_EXCEPTION"),
    ("infer", "nan", 5, "logits: -770005 ShimNotFinite (Device): calrt_c_logits: element 5 of 512"),
    ("infer", "inf", 511, "logits: -770005 ShimNotFinite (Device): calrt_c_logits: element 511 of 512"),
    ("infer", "short_tensor", 512, "the device wrote 512 bytes; the manifest says 16384"),
    ("wait", "timeout", 0, "wait: 13 Timeout (Transient)"),
    ("wait", "return", 28, "wait: 28 DeviceCrash (Device)"),
    ("apply", "refuse", 0, "apply 3 tokens for sequence 0: refused"),
    ("map_buf", "return", 24, "map input_ids of"),
    ("set_csr", "return", 4, "set CSR cur_seq: 4 IllegalValue (Artifact)"),
    ("slice_tensor", "return", 14, "slice input_ids: 14 OutOfRange (Request)"),
]


@pytest.mark.parametrize(("call", "action", "a", "message"), FAULTS, ids=[f"{f[0]}-{f[1]}-{f[2]}" for f in FAULTS])
def test_every_failure_names_its_stage_and_code(
    library: Library, sim: Simulator, call: str, action: str, a: int, message: str
) -> None:
    """And leaves a device that can be opened again and is right, after nothing but `close`."""
    with Straight(library, manifest_of("tiny"), OURS) as ours:
        sim.fault(call, action, a)
        with pytest.raises(DeviceFailed) as failed:
            ours.prefill(0, [1, 2, 3])
        assert message in str(failed.value)
        assert sim.faults_fired() == 1
        if ours.in_doubt:
            with pytest.raises(Refused, match="only close is left"):
                ours.decode(0, 1)
    with Straight(library, manifest_of("tiny"), OURS) as ours:
        assert np.array_equal(bits(ours.prefill(0, [1, 2, 3])), oracle_of("tiny").row([1, 2, 3]))


def test_one_call_is_these_calls_in_this_order(library: Library, sim: Simulator) -> None:
    """§6.3 to §6.5: both CSRs, slices that are undone (FI15), a status after every Wait; nothing made for one call."""
    with Straight(library, manifest_of("tiny"), OURS) as ours:
        ours.prefill(4, [1, 2, 3])
        before = len(sim.trace())
        ours.prefill(4, [5, 6])
        calls = [(c.call, c.text) for c in sim.trace()[before:]]
    assert calls == [
        ("apply", ""), ("bind_sequence", ""), ("slice_tensor", "input_ids"), ("slice_tensor", "position_ids"),
        ("set_csr", "cur_seq"), ("set_csr", "total_seq"), ("infer", "tiny_prefill"), ("wait", ""), ("get_status", ""),
        ("tensor_size", "logits"), ("undo_slice", "input_ids"), ("undo_slice", "position_ids"),
    ]  # fmt: skip


def test_a_job_that_still_runs_is_ended_by_a_reset_before_its_memory_is_let_go(
    library: Library, sim: Simulator
) -> None:
    """The simulator would see the destroyed handles and the freed memory."""
    sim.set(decode_us=300_000)
    with Straight(library, manifest_of("tiny"), OURS) as ours:
        ours.prefill(0, [1])
        sim.fault("wait", "timeout")
        with pytest.raises(DeviceFailed, match="wait: 13 Timeout"):
            ours.decode(0, 2)
        assert sim.truth("jobs_running") == 1
    assert sim.truth("jobs_running") == 0
    assert [c.result for c in sim.trace() if c.call == "reset"] == [0]


def test_letting_go_of_a_running_job_is_a_violation(library: Library) -> None:
    """Negative control for the one before: without the reset it is seen."""
    device = Simulator.beside(library, OURS)
    device.power_cycle()
    device.set(decode_us=300_000)
    with Straight(library, manifest_of("tiny"), OURS) as ours:
        ours.prefill(0, [1])
        device.fault("wait", "timeout")
        with pytest.raises(DeviceFailed):
            ours.decode(0, 2)
        ours.in_doubt = False
        keep = ours.lane(CalTaskKind.Decode)  # its memory, until the device is done
        ours.close()
    assert device.truth("jobs_running") == 1
    assert "destroyed" in {v.kind for v in device.violations()}
    device.power_cycle()  # ends the job
    assert keep.host_logits.shape == (1, 512)


def test_a_model_without_a_kind_of_call_says_so(library: Library, sim: Simulator) -> None:
    manifest = manifest_of("qwen3-tile16")
    with Straight(library, manifest, OURS) as ours, pytest.raises(Refused, match="no Vision, only PrefillIds"):
        ours.lane(CalTaskKind.Vision)


def test_a_device_that_is_open_elsewhere_is_named(library: Library, sim: Simulator) -> None:
    """And what had been opened by then is let go."""
    manifest = manifest_of("tiny")
    with Straight(library, manifest, OURS) as ours:
        with pytest.raises(DeviceFailed, match=r"open device 20: 2 AlreadyRegistered"):
            Straight(library, manifest, OURS)
        assert len(ours.prefill(0, [1])) == 512


def test_buffers_are_made_once(library: Library, sim: Simulator) -> None:
    with Straight(library, manifest_of("tiny"), OURS) as ours:
        ours.prefill(0, [1])
        ours.decode(0, 2)
        assert sim.truth("buffers_created") == 4
        for token in range(50):
            ours.decode(0, token)
            ours.prefill(0, [token])
        assert sim.truth("buffers_created") == 4
    assert sim.truth("buffers_alive") == 0
