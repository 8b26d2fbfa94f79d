"""A journal of `calexec run` under faults is clean; with one line removed, swapped or altered it is not.

The chain sees each of these. What the rulebook and the order of CalRT's calls see without it is counted, with a floor:
of somebody who makes the chain anew they are all there is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from mutating import Records, fork, judges, kind, mutants, places, relinked, verdict

from checker.conform.judge import Judge
from machines.evidence import CHAIN

SAMPLE, FEW = 10, 4  # kinds of lines, in the fast tier
# What nobody can see without the chain: when exactly something was, and the names and numbers that nothing repeats.
INVISIBLE = {
    "alter at_us", "alter begin_us", "alter end_us", "alter begin_ns", "alter end_ns", "alter text", "alter a",
    "alter b", "alter parameters", "swap", "alter thread", "alter other", "alter handle", "alter result", "alter calls",
}  # fmt: skip
ALWAYS = {
    "remove", "repeat", "alter number", "alter rule", "alter element", "alter generation", "alter observed", "alter id",
    "alter call", "alter end", "alter state", "alter journal", "alter begins",
}  # fmt: skip
# Another history that might have been: whichever sequence holds nothing may be discarded, and nothing changes by it.
HARMLESS = {("alter element", "step client.discard")}
FLOOR = 0.6  # of all mutants


def chosen(records: Records, sample: int | None) -> list[int]:
    """A place of each kind of line; or the last ones of some kinds, head and end always among them."""
    rng = random.Random(1)
    at = {of: rng.choice(where) if sample is None else where[-1] for of, where in places(records).items()}
    fixed = {at["journal"], at["end"]}
    others = sorted(set(at.values()) - fixed)
    return sorted(fixed | set(others if sample is None else rng.sample(others, sample)))


def each(records: Records, wanted: Iterable[int], chain: bool) -> Iterator[tuple[int, str, str]]:
    """Of each mutant: where it is, what was done, and why it is refused; "": it is not."""
    rng, wanted = random.Random(2), set(wanted)
    for i, judge in judges(records, chain):
        if i in wanted:
            for name, rest in mutants(records, i, rng):
                yield i, name, verdict(fork(judge), rest)


def by_the_chain(records: Records, wanted: list[int]) -> list[str]:
    """What it did not see."""
    return [f"line {i + 1}, {name}" for i, name, why in each(records, wanted, chain=True) if not why]


def by_meaning(records: Records, wanted: list[int]) -> tuple[Counter[str], Counter[str]]:
    """How many mutants there were, and how many were refused, by what was done."""
    made: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for i, name, why in each(records, wanted, chain=False):
        if (name, kind(records[i])) not in HARMLESS:
            made[name] += 1
            refused[name] += bool(why)
    return made, refused


def missed(made: Counter[str], refused: Counter[str]) -> dict[str, int]:
    return {name: made[name] - refused[name] for name in made if made[name] > refused[name]}


def test_the_journal_is_clean_and_has_several_generations(records: Records) -> None:
    judge = Judge()
    assert verdict(judge, records) == ""
    assert judge.courses[0].generation >= 3
    assert judge.abi is not None
    assert judge.abi.matched > judge.steps
    assert judge.calls == judge.abi.matched + judge.abi.outside, "each call has its rule, or needs none"
    assert {"client.close", "lifecycle.recover", "submitter.infer.ok"} <= set(judge.rules)


def test_each_mutant_of_some_kinds_is_refused(records: Records) -> None:
    assert by_the_chain(records, chosen(records, SAMPLE)) == []


def test_what_the_rulebook_sees_without_the_chain(records: Records) -> None:
    made, refused = by_meaning(records, chosen(records, FEW))
    assert set(missed(made, refused)) <= INVISIBLE
    assert refused.total() >= FLOOR * made.total(), missed(made, refused)


@pytest.mark.nightly
def test_each_mutant_of_every_kind_of_line_is_refused(records: Records) -> None:
    assert len(chosen(records, None)) > 45
    assert by_the_chain(records, chosen(records, None)) == []


@pytest.mark.nightly
def test_what_the_rulebook_sees_of_every_kind_of_line(records: Records) -> None:
    made, refused = by_meaning(records, chosen(records, None))
    assert set(missed(made, refused)) <= INVISIBLE
    assert all(made[name] == refused[name] for name in ALWAYS if made[name])
    assert refused.total() >= FLOOR * made.total(), missed(made, refused)


def test_control_whoever_makes_the_chain_anew_can_move_a_step_in_time(records: Records) -> None:
    """It has no key, and no rule says how long a client thinks."""
    at = next(
        i for i, r in enumerate(records)
        if r.get("rule") == "client.arrive.prefill" and "rule" in records[i + 1]
        and r["at_us"] + 1 < records[i + 1]["at_us"]
    )  # fmt: skip
    moved = [*records[:at], {**records[at], "at_us": records[at]["at_us"] + 1}, *records[at + 1 :]]
    assert "its chain is" in verdict(Judge(), moved)
    assert verdict(Judge(), relinked("", moved)) == ""


def test_control_a_chain_made_anew_saves_no_lie(records: Records) -> None:
    at = next(i for i, r in enumerate(records) if r.get("rule") == "completion.commit.ok")
    lied = [*records[:at], {**records[at], "observed": "failed"}, *records[at + 1 :]]
    assert "it observed 'failed', and the rule takes ok" in verdict(Judge(), relinked("", lied))
    assert CHAIN in lied[0]
