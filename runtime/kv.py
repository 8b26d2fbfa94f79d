"""KvCoordinator (§7): what the device's KV holds, as far as it is known, and every call into KvManager.

Theory. CalRT's KvManager has one verb, Apply(sequence, length): afterwards there is room for so many tokens, or it said
no and gave no reason. So a reservation is an Apply of the length that a job will reach, before it is submitted; the
commit is the same Apply once more when the job is done, as the product always did (its trace is the test); a rollback
is an Apply of the old length, and 0 frees. Nothing here waits and nothing repeats: a "no" goes back to the admission
rules, which let the next one try when something has been freed or a back-off has passed (S01, F31).

`canAllocate(1)` is asked before every reservation. Its "no" is final only where a new unit is needed: a token that
still fits in the units that its sequence holds must not wait for another sequence to end (F27).

What is written down is shadow state beside the rulebook: per sequence the committed length, the room, and whether it
is in doubt. Which sequence may be used is the rulebook's to say. KvManager is called by one thread at a time, and the
lock for that is the only one in the executor that is held over a call of CalRT; the records have another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from attrs import define, field, frozen

from runtime.calrt import Kv
from runtime.names import plain
from runtime.status import Failure, Status, StatusKind, failed

__all__ = ["NOT_SUPPORTED", "KvCoordinator", "KvSize", "not_supported"]

SEQUENCE_ID_MAX = 2**31 - 1  # KvSeqId is an int32; llama's -1 means all of them, which is not a sequence

# llama's operations on a sequence that CalRT cannot do (§3): a pattern of the name, and why.
NOT_SUPPORTED = {
    "seq_cp": "KV belongs to one sequence, and CalRT cannot copy it",
    "seq_keep": "sequences are removed one by one",
    "seq_add": "CalRT cannot move KV to other positions",
    "seq_div": "CalRT cannot move KV to other positions",
    "state_*": "CalRT can neither read nor write the device's KV",
}


def not_supported(operation: str) -> Status:
    """The status of an operation that there is not: §3 forbids to do nothing and call it success."""
    name = plain(operation)
    why = [reason for pattern, reason in NOT_SUPPORTED.items() if fnmatchcase(operation, pattern)]
    return Status(kind=StatusKind.NOT_SUPPORTED, stage=name, text=why[0] if why else "there is no such operation")


@frozen
class KvSize:
    """The device's KV. It is handed out in units of so many tokens."""

    tokens_per_unit: int
    units: int

    @property
    def tokens(self) -> int:
        return self.tokens_per_unit * self.units

    def units_of(self, tokens: int) -> int:
        """Units that hold so many tokens of one sequence."""
        return -(-tokens // self.tokens_per_unit)

    @staticmethod
    def of(kv: Kv) -> KvSize | Failure:
        """What KvManager says of itself."""
        answers = []
        for stage, ask in (("KV tokens per unit", kv.tokens_per_unit), ("KV units", kv.units_total)):
            code, value = ask()
            if failure := failed(stage, code, kv.library):
                return failure
            if value < 1:
                return Failure(stage, 0, f"CalRT says {value}; expected at least 1")
            answers.append(value)
        return KvSize(*answers)


@define
class _Entry:
    """One sequence. committed: tokens of completed jobs. room: tokens that the last Apply granted, 0 if not known."""

    committed: int = 0
    room: int = 0
    in_doubt: bool = False

    @property
    def held(self) -> bool:
        return self.in_doubt or self.committed > 0 or self.room > 0


@define(eq=False)
class KvCoordinator:
    """The KV of one generation, on KvManager `kv`, which its owner releases after `retire()`.

    max_seq: the longest sequence in tokens. sequences_max: parameter `kv` of the rulebook, where a sequence that holds
    anything holds one unit. All methods are thread-safe. None raises for what CalRT does or for a number out of range.
    """

    kv: Kv
    size: KvSize
    max_seq: int
    sequences_max: int
    _entries: dict[int, _Entry] = field(factory=dict, init=False)
    _retired: bool = field(default=False, init=False)
    _calls: Any = field(factory=threading.Lock, init=False)  # held over a call into KvManager
    _records: Any = field(factory=threading.Lock, init=False)  # never

    # -- the effects ---------------------------------------------------------------------------------------------------
    def reserve(self, sequence: int, target: int) -> tuple[bool, Failure | None]:
        """Room for `target` tokens in all, before a job is submitted: (whether it was granted, what failed).

        canAllocate(1), then at most one Apply. "No" is not a failure: the sequence is as it was. After a failure it is
        in doubt."""
        stage = f"reserve {target} tokens for sequence {sequence}"
        with self._calls:
            if wrong := self._must_not_call(sequence, target):
                return False, Failure(stage, 0, wrong)
            code, unit_is_free = self.kv.can_allocate(1)
            if failure := failed(f"{stage}: canAllocate(1)", code, self.kv.library):
                self.mark_unknown(sequence)
                return False, failure
            if not unit_is_free and self._needs_a_unit(sequence, target):
                return False, None
            granted, failure = self._apply(stage, sequence, target, lambda entry: None)
            if failure:
                self.mark_unknown(sequence)
            return granted, failure

    def unreserve(self, sequence: int, old: int) -> Failure | None:
        """Back to the `old` length; the job was never submitted. After a failure the sequence is in doubt."""
        stage = f"go back to {old} tokens of sequence {sequence}"
        return self._must(stage, sequence, old, lambda entry: None)

    def commit(self, sequence: int, target: int) -> Failure | None:
        """The job is done: the sequence is `target` tokens long. After a failure it is in doubt, and its length is
        what it was (S02: this used to abort the process)."""

        def committed(entry: _Entry) -> None:
            entry.committed = target

        return self._must(f"commit {target} tokens of sequence {sequence}", sequence, target, committed)

    def remove(self, sequence: int) -> Failure | None:
        """Frees the sequence, and forgets it; but for doubt, which only a new generation ends. After a failure it is in
        doubt."""

        def forgotten(entry: _Entry) -> None:
            entry.committed = 0

        return self._must(f"free sequence {sequence}", sequence, 0, forgotten)

    # -- the records ---------------------------------------------------------------------------------------------------
    def length(self, sequence: int) -> int:
        """Committed tokens."""
        with self._records:
            return self._entries[sequence].committed if sequence in self._entries else 0

    def mark_unknown(self, sequence: int) -> None:
        """What the device holds for it is not known any more (§7): its job failed, or is still running somewhere."""
        with self._records:
            if not self._retired:
                self._entry(sequence).in_doubt = True

    def impossible(self, target: int) -> str | None:
        """Why no sequence can ever have this length, in words; None if one can (F29)."""
        if not 1 <= target <= self.max_seq:
            return f"a sequence of {target} tokens; allowed are 1 to {self.max_seq}, max_seq"
        if target > self.size.tokens:
            return f"a sequence of {target} tokens; all KV of the device holds {self.size.tokens}"
        return None

    def mismatch(self, sequence: int, past_len: int) -> str | None:
        """Why a job cannot go on after `past_len` tokens, in words; None if it can. The client knows its sequence by
        another number, so it is not named."""
        with self._records:
            entry = self._entries.get(sequence, _Entry())
            if entry.in_doubt:
                return "the sequence is in doubt; only a new generation ends that"
            if entry.committed != past_len:
                return f"past_len is {past_len}; the sequence has {entry.committed} committed tokens"
            return None

    def retire(self) -> None:
        """The generation ends: everything is forgotten, and CalRT is not called any more. A call that is under way
        changes nothing when it returns. Never blocks behind one."""
        with self._records:
            self._retired = True
            self._entries.clear()

    def abstract(self) -> dict[str, int]:
        """The rulebook's variables, when no call is under way."""
        with self._records:
            held = sum(entry.held for entry in self._entries.values())
            return {"kv_free": self.sequences_max - held, "lost_kv": sum(e.in_doubt for e in self._entries.values())}

    # -- how -----------------------------------------------------------------------------------------------------------
    def _must_not_call(self, sequence: int, target: int) -> str | None:
        """Why, in words. `_calls` is held."""
        if self._retired:
            return "the generation of this KV has ended"
        if not 0 <= sequence <= SEQUENCE_ID_MAX:
            return f"allowed are sequences 0 to {SEQUENCE_ID_MAX}"
        return self.impossible(target) if target else None

    def _must(self, stage: str, sequence: int, target: int, then: Callable[[_Entry], None]) -> Failure | None:
        """An Apply that is not allowed to be refused."""
        with self._calls:
            wrong = self._must_not_call(sequence, target)
            refusal = Failure(stage, 0, wrong) if wrong else None
            granted, failure = (False, refusal) if refusal else self._apply(stage, sequence, target, then)
            if granted:
                return None
            self.mark_unknown(sequence)
            return failure or Failure(stage, 0, "refused, and CalRT gives no reason")

    def _apply(
        self, stage: str, sequence: int, target: int, then: Callable[[_Entry], None]
    ) -> tuple[bool, Failure | None]:
        code, granted = self.kv.apply(sequence, target)
        failure = failed(stage, code, self.kv.library)
        with self._records:
            if self._retired:
                return False, failure or Failure(stage, 0, "the generation of this KV ended meanwhile")
            entry = self._entry(sequence)
            if failure:
                entry.room = 0
            elif granted:
                entry.room = target
                then(entry)
            if not entry.held:
                del self._entries[sequence]
        return granted and not failure, failure

    def _entry(self, sequence: int) -> _Entry:
        return self._entries.setdefault(sequence, _Entry())

    def _needs_a_unit(self, sequence: int, target: int) -> bool:
        with self._records:
            entry = self._entries.get(sequence, _Entry())
            return self.size.units_of(target) > self.size.units_of(entry.room)
