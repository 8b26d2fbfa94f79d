"""KvCoordinator against the simulated device: the same Applies as the baseline, one at a time, and nothing invented.

What must be true comes from the device (its trace, and what it holds) and from the baseline's trace.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest
from attrs import define, field
from card import Card, card_of

from machines.errors import code_named
from machines.protocol.variables import kv_free, lost_kv
from runtime.calbin import sample
from runtime.calrt import Kv, Library
from runtime.kv import KvCoordinator, KvSize, not_supported
from runtime.legacy import Legacy
from runtime.manifest import load_manifest
from runtime.simulator import Simulator
from runtime.status import Failure, StatusKind
from runtime.vendor_probe.rig import Rig

EXCEPTION, CRASH = code_named("ShimException").number, code_named("DeviceCrash").number
BASELINE = 22  # device of the baseline
MAX_SEQ, BLOCK = 256, 128  # of model tiny, of the simulated KV
SEQUENCES_MAX = 4
WAIT_S = 20.0
U64_WRAP = 2**64


def size_of(kv: Kv) -> KvSize:
    size = KvSize.of(kv)
    assert isinstance(size, KvSize)
    return size


@contextmanager
def coordinator_of(library: Library, **settings: int) -> Iterator[tuple[Card, KvCoordinator]]:
    with card_of(library, **settings) as card:
        yield card, KvCoordinator(card.rig.kv, size_of(card.rig.kv), MAX_SEQ, SEQUENCES_MAX)


def kv_calls(sim: Simulator) -> list[tuple[str, int, int]]:
    """(call, a, b) of the calls into KvManager, but for questions about its size."""
    return [(c.call, c.a, c.b) for c in sim.trace() if c.call in ("apply", "can_allocate")]


def since(sim: Simulator, before: int) -> list[tuple[str, int, int]]:
    return kv_calls(sim)[before:]


# -- the baseline's trace ----------------------------------------------------------------------------------------------
def test_the_applies_are_the_baselines(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """§7: the lengths, and their order with infer and Wait, are what the product has today."""
    sim = Simulator.beside(library, BASELINE)
    sim.power_cycle()
    prompt, decodes = [1, 2, 3], 5
    with Legacy(library, load_manifest(sample("tiny").with_suffix(".json")), BASELINE) as legacy:
        legacy.prefill(0, prompt)
        for token in range(decodes):
            legacy.decode(0, token)
    baseline = [(c.call, c.b) for c in sim.trace() if c.call in ("apply", "infer", "wait")]
    assert len(baseline) == 4 * (1 + decodes)

    monkeypatch.setattr(Rig, "reserve", lambda *_: None)  # ours reserves, not the rig
    with coordinator_of(library) as (card, kv):
        for count in (len(prompt), *[1] * decodes):
            past = kv.length(0)
            assert kv.mismatch(0, past) is None
            assert kv.reserve(0, past + count) == (True, None)
            assert card.complete(card.rig.submit(0, past, count)).good
            assert kv.length(0) == past
            assert kv.commit(0, past + count) is None
            assert card.sim.kv(0)[0] == kv.length(0) == past + count
        trace = [c for c in card.sim.trace() if c.call in ("apply", "infer", "wait", "can_allocate")]
        assert [c.call for c in trace[::5]] == ["can_allocate"] * (1 + decodes)
        ours = [(c.call, c.b) for c in trace if c.call != "can_allocate"]
        assert [x for x in ours if x[0] == "apply"] == [x for x in baseline if x[0] == "apply"]
        assert [x[0] for x in ours] == [x[0] for x in baseline]
        assert card.violations() == []


# -- no room -----------------------------------------------------------------------------------------------------------
def test_no_room_is_no_failure_and_makes_one_attempt(library: Library) -> None:
    with coordinator_of(library, kv_units=3) as (card, kv):
        assert kv.size == KvSize(BLOCK, 3)
        for sequence, target in ((0, 200), (1, 100)):  # 2 units and 1: all there are
            assert kv.reserve(sequence, target) == (True, None)
            assert kv.commit(sequence, target) is None
        before, was = len(kv_calls(card.sim)), kv.abstract()
        assert kv.reserve(2, 1) == (False, None)
        assert since(card.sim, before) == [("can_allocate", 1, 0)]
        assert kv.abstract() == was == {"kv_free": SEQUENCES_MAX - 2, "lost_kv": 0}

        assert kv.reserve(1, 129) == (False, None)  # a second unit
        assert since(card.sim, before) == [("can_allocate", 1, 0)] * 2
        assert kv.length(1) == 100

        assert kv.remove(0) is None
        assert kv.reserve(2, 1) == (True, None)
        assert kv.reserve(1, 129) == (True, None)


def test_what_fits_in_its_own_units_waits_for_nobody(library: Library) -> None:
    """F27: two sequences that hold all units between them go on to the end of their units."""
    with coordinator_of(library, kv_units=2) as (card, kv):
        for sequence in (0, 1):
            assert kv.reserve(sequence, 100) == (True, None)
        for sequence in (0, 1):
            assert kv.reserve(sequence, BLOCK) == (True, None)
            assert kv.reserve(sequence, BLOCK + 1) == (False, None)
        assert [call for call, _, _ in kv_calls(card.sim)].count("apply") == 4


@pytest.mark.parametrize(("call", "applies"), [("can_allocate", 0), ("apply", 1)])
def test_a_refusal_changes_nothing(library: Library, call: str, applies: int) -> None:
    """FI04, F31: whichever of the two said no, at most one Apply, and trying again is another's to do."""
    with coordinator_of(library) as (card, kv):
        card.sim.fault(call, "refuse")
        assert kv.reserve(3, 10) == (False, None)
        assert [name for name, _, _ in kv_calls(card.sim)] == ["can_allocate", *["apply"] * applies]
        assert kv.abstract() == {"kv_free": SEQUENCES_MAX, "lost_kv": 0}
        assert kv.mismatch(3, 0) is None
        assert kv.reserve(3, 10) == (True, None)


def test_a_rollback_frees_what_was_reserved(library: Library) -> None:
    with coordinator_of(library) as (card, kv):
        kv.reserve(0, 10)
        assert card.sim.kv(0)[0] == 0
        assert kv.unreserve(0, 0) is None
        assert card.sim.kv(0)[0] == -1
        kv.reserve(1, 5)
        kv.commit(1, 5)
        kv.reserve(1, 9)
        assert kv.unreserve(1, 5) is None
        assert kv_calls(card.sim)[-1] == ("apply", 1, 5)
        assert kv.length(1) == 5
        assert kv.abstract() == {"kv_free": SEQUENCES_MAX - 1, "lost_kv": 0}


# -- failures ----------------------------------------------------------------------------------------------------------
EFFECTS = {
    "unreserve": lambda kv: kv.unreserve(0, 8),
    "commit": lambda kv: kv.commit(0, 9),
    "remove": lambda kv: kv.remove(0),
}
FAULTS = {"refuse": ("refuse", 0), "throw": ("throw", EXCEPTION)}  # -> the code


@pytest.mark.shows("S02")
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_must_not_be_refused_leaves_doubt(library: Library, effect: str, fault: str) -> None:
    """S02: an error comes back, the process lives, and nothing is claimed about the sequence."""
    with coordinator_of(library) as (card, kv):
        kv.reserve(0, 8)
        kv.commit(0, 8)
        kv.reserve(0, 9)
        action, code = FAULTS[fault]
        card.sim.fault("apply", action)
        failure = EFFECTS[effect](kv)
        assert isinstance(failure, Failure)
        assert failure.code == code
        assert "sequence 0" in failure.stage
        assert failure.text
        assert kv.length(0) == 8
        assert kv.abstract() == {"kv_free": SEQUENCES_MAX - 1, "lost_kv": 1}
        assert "in doubt" in (kv.mismatch(0, 8) or "")


@pytest.mark.parametrize("call", ["can_allocate", "apply"])
def test_an_exception_while_reserving_is_a_failure(library: Library, call: str) -> None:
    with coordinator_of(library) as (card, kv):
        card.sim.fault(call, "throw")
        granted, failure = kv.reserve(0, 8)
        assert not granted
        assert failure is not None
        assert (failure.code, kv.length(0)) == (EXCEPTION, 0)
        assert kv.abstract() == {"kv_free": SEQUENCES_MAX - 1, "lost_kv": 1}  # neither granted nor refused


def test_a_sequence_in_doubt_is_counted_once(library: Library) -> None:
    with coordinator_of(library) as (_, kv):
        kv.reserve(0, 8)
        for _ in range(3):
            kv.mark_unknown(0)
        assert kv.remove(0) is None
        assert kv.abstract() == {"kv_free": SEQUENCES_MAX - 1, "lost_kv": 1}  # only a new generation ends the doubt


def test_its_counts_are_variables_of_the_rulebook(library: Library) -> None:
    with coordinator_of(library) as (_, kv):
        assert set(kv.abstract()) == {str(kv_free), str(lost_kv)}


@pytest.mark.parametrize("seed", range(20))
def test_the_books_agree_with_the_device(library: Library, seed: int) -> None:
    """Whatever is done in whatever order, and whoever is refused: what the books call held, the device holds."""
    chance = random.Random(seed)
    with coordinator_of(library, kv_units=4) as (card, kv):
        for _ in range(60):
            sequence = chance.randrange(SEQUENCES_MAX)
            if kv.mismatch(sequence, kv.length(sequence)):
                continue  # in doubt: nobody touches it
            if chance.random() < 0.1:
                card.sim.fault("apply", "refuse")
            past = kv.length(sequence)
            target = min(MAX_SEQ, past + chance.choice((1, 1, 16, 130)))
            if chance.random() < 0.2:
                kv.remove(sequence)
            elif kv.reserve(sequence, target) == (True, None):
                assert card.sim.kv(sequence)[0] != -1
                if chance.random() < 0.3:
                    kv.unreserve(sequence, past)
                else:
                    kv.commit(sequence, target)
            card.sim.faults_clear()
            on_device = {s for s in range(SEQUENCES_MAX) if card.sim.kv(s)[0] != -1}
            books = kv.abstract()
            doubtful = {s for s in range(SEQUENCES_MAX) if kv.mismatch(s, kv.length(s))}
            assert books == {"kv_free": SEQUENCES_MAX - len(on_device | doubtful), "lost_kv": len(doubtful)}


# -- what cannot be ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", [-1, 0, MAX_SEQ + 1, 2**31, 2**32 + 1, U64_WRAP, U64_WRAP + 5])
def test_an_impossible_length_is_said_before_any_call(library: Library, target: int) -> None:
    """F29, §6.3-2: also where 32 or 64 bits would have wrapped to something that fits."""
    with coordinator_of(library) as (card, kv):
        assert f"{target} tokens" in (kv.impossible(target) or "")
        if target:  # Apply(sequence, 0) is a removal
            granted, failure = kv.reserve(0, target)
            assert not granted
            assert failure is not None
            assert failure.code == 0
        assert kv_calls(card.sim) == []


def test_more_than_the_whole_capacity_is_impossible(library: Library) -> None:
    with coordinator_of(library, kv_units=1) as (_, kv):
        assert kv.impossible(BLOCK) is None
        assert f"holds {BLOCK}" in (kv.impossible(BLOCK + 1) or "")
    with coordinator_of(library) as (_, kv):
        assert kv.impossible(1) is None
        assert kv.impossible(MAX_SEQ) is None


@pytest.mark.parametrize("sequence", [-1, 2**31, U64_WRAP])
def test_a_sequence_that_cannot_be(library: Library, sequence: int) -> None:
    with coordinator_of(library) as (card, kv):
        granted, failure = kv.reserve(sequence, 5)
        assert not granted
        assert failure is not None
        assert kv.remove(sequence) is not None
        assert kv_calls(card.sim) == []


def test_a_stale_past_len_is_said(library: Library) -> None:
    with coordinator_of(library) as (_, kv):
        kv.reserve(0, 8)
        kv.commit(0, 8)
        assert kv.mismatch(0, 8) is None
        for wrong in (0, 7, 9, U64_WRAP + 8, -8):
            assert f"past_len is {wrong}; the sequence has 8" in (kv.mismatch(0, wrong) or "")
        assert kv.mismatch(1, 0) is None
        assert "has 0 committed" in (kv.mismatch(1, 1) or "")


@pytest.mark.parametrize("operation", ["seq_cp", "seq_keep", "seq_add", "seq_div", "state_write", "state_read"])
def test_what_there_is_not_says_so(operation: str) -> None:
    """§3: an empty implementation may not pass for success."""
    status = not_supported(operation)
    assert status.kind is StatusKind.NOT_SUPPORTED
    assert status.http == 501
    assert operation in str(status)
    assert status.text != not_supported("no_such").text


# -- threads -----------------------------------------------------------------------------------------------------------
@define(eq=False)
class KvDouble:
    """Says yes, and counts how many threads are inside. hold: an Apply waits for `go`."""

    hold: bool = False
    failure_code: int = 0
    inside: int = 0
    inside_max: int = 0
    applies: int = 0
    entered: Any = field(factory=threading.Event)
    go: Any = field(factory=threading.Event)
    lock: Any = field(factory=threading.Lock)
    library: Any = None

    def _visit(self) -> None:
        with self.lock:
            self.inside += 1
            self.inside_max = max(self.inside, self.inside_max)
        threading.Event().wait(0.001)
        with self.lock:
            self.inside -= 1

    def can_allocate(self, units: int) -> tuple[int, bool]:
        self._visit()
        return 0, True

    def apply(self, sequence: int, length: int) -> tuple[int, bool]:
        self._visit()
        self.applies += 1
        self.entered.set()
        if self.hold:
            assert self.go.wait(WAIT_S)
        return 0, True

    def tokens_per_unit(self) -> tuple[int, int]:
        return self.failure_code, 0

    def units_total(self) -> tuple[int, int]:
        return 0, 4


def coordinated(double: KvDouble) -> KvCoordinator:
    return KvCoordinator(cast(Kv, double), KvSize(BLOCK, 64), MAX_SEQ, 64)


def test_one_thread_at_a_time() -> None:
    double = KvDouble()
    kv = coordinated(double)

    def life(sequence: int) -> None:
        assert kv.reserve(sequence, 5) == (True, None)
        assert kv.commit(sequence, 5) is None
        assert kv.remove(sequence) is None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(life, range(32)))
    assert (double.inside_max, double.applies) == (1, 32 * 3)
    assert kv.abstract() == {"kv_free": 64, "lost_kv": 0}
    assert kv._entries == {}  # F64: nothing grows with the sequences that were


def test_without_the_coordinator_threads_meet() -> None:
    """Negative control: the double sees it."""
    double, together = KvDouble(), threading.Barrier(8)

    def life(sequence: int) -> None:
        together.wait(WAIT_S)
        double.apply(sequence, 5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(life, range(8)))
    assert double.inside_max > 1


def test_after_the_generation_nothing_is_called(library: Library) -> None:
    with coordinator_of(library) as (card, kv):
        kv.reserve(0, 8)
        kv.commit(0, 8)
        kv.retire()
        before = len(kv_calls(card.sim))
        assert kv.length(0) == 0
        granted, failure = kv.reserve(0, 8)
        assert not granted
        for said in (failure, kv.unreserve(0, 0), kv.commit(0, 9), kv.remove(0)):
            assert said is not None
            assert "has ended" in said.text
        kv.mark_unknown(0)
        assert since(card.sim, before) == []
        assert kv.abstract() == {"kv_free": SEQUENCES_MAX, "lost_kv": 0}


def test_a_call_that_hangs_holds_up_no_question_and_comes_back_to_nothing() -> None:
    """A stuck Apply: lengths can be read and the generation can end meanwhile; what it brings back is dropped."""
    double = KvDouble(hold=True)
    kv = coordinated(double)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(kv.commit, 0, 8)
        assert double.entered.wait(WAIT_S)
        assert kv.length(0) == 0
        assert kv.mismatch(0, 0) is None
        kv.retire()
        double.go.set()
        failure = pending.result(WAIT_S)
    assert failure is not None
    assert "ended meanwhile" in failure.text
    assert kv.length(0) == 0
    assert kv.abstract()["kv_free"] == 64


def test_a_kv_without_size_is_a_failure(library: Library) -> None:
    size = KvSize.of(cast(Kv, KvDouble(library=library)))
    assert size == Failure("KV tokens per unit", 0, "CalRT says 0; expected at least 1")
    failed = KvSize.of(cast(Kv, KvDouble(library=library, failure_code=CRASH)))
    assert isinstance(failed, Failure)
    assert failed.code == CRASH


def test_units_of_a_length() -> None:
    size = KvSize(BLOCK, 3)
    assert [size.units_of(n) for n in (0, 1, BLOCK, BLOCK + 1, 2 * BLOCK)] == [0, 1, 1, 2, 2]
    assert size.tokens == 3 * BLOCK
