"""The judge's rules against the executor's: two compilers of one rulebook, written apart, must say the same.

Expected is what `runtime.compiled` does, which a test of its own holds against the checker's model.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from executing import ALL_GOOD, READY_S, executing

from checker.conform.judge import refusal_of
from machines.law import Law
from machines.protocol import RULEBOOK
from machines.protocol.host import WAITS
from runtime.calrt import Library
from runtime.compiled import IllegalTransition, Program, Rejected
from runtime.config import POLICIES, Config

JOBS, SEQUENCES = ((1, 1), (2, 2), (3, 1)), (1, 2)


def parameters(policy: str) -> dict[str, int]:
    return Config(
        manifest="none", policy=policy, jobs_max=4, sequences_max=2, switches=True, facts=ALL_GOOD
    ).parameters()  # fmt: skip


def drawn(law: Law, rng: random.Random) -> dict[str, Any]:
    """A state of two sequences and three jobs; most of it is nothing that can be reached."""

    def values(sort: str) -> dict[str, int]:
        found = {}
        for v in law.variables[sort]:
            high = 1 if v.domain.enum is None else len(v.domain.enum) - 1
            found[v.name] = rng.randint(0, high)
        return found

    return values("") | {
        "job": [{"element": key, **values("job")} for key in JOBS],
        "seq": [{"element": key, **values("seq")} for key in SEQUENCES],
    }  # fmt: skip


def executors(program: Program, state: dict[str, Any], rule: str, key: Any) -> dict[str, Any] | None:
    """The state after the rule in the executor's reading; None: it is not possible."""
    s = program.with_values(state)
    elements = {(sort.name, e.key): e for sort in RULEBOOK.sorts for e in getattr(s, f"{sort.name}_elements")}
    for (sort, name), e in elements.items():
        if sort == "job":
            e.seq_of = elements["seq", name[-1]]
    compiled = program.rules[rule]
    try:
        fired = compiled.fire(s, elements.get((compiled.sort, key)))
    except (IllegalTransition, Rejected):
        return None
    return program.values_of(s) if fired else None


def by_key(law: Law, state: dict[str, Any]) -> Any:
    """Elements as in the beginning may be there, or not."""
    first = {sort: dict(zip((v.name for v in law.variables[sort]), values, strict=True)) for sort, values in
             law._first.items()}  # fmt: skip
    shared = {v.name: int(state[v.name]) for v in law.variables[""]}
    elements = {
        (sort, e["element"]): {k: int(v) for k, v in e.items() if k != "element"} for sort in ("job", "seq")
        for e in state[sort] if {k: v for k, v in e.items() if k != "element"} != first[sort]
    }  # fmt: skip
    return shared, elements


@pytest.mark.parametrize("policy", list(POLICIES))
def test_each_rule_in_states_of_any_kind(policy: str) -> None:
    values = parameters(policy)
    law, program = Law(RULEBOOK, values, WAITS), Program(RULEBOOK, values)
    program.rules |= {rule.id: program.compiled(rule) for rule in WAITS}
    assert set(law.rules) == set(program.rules)
    rng, fired = random.Random(policy), set()
    for _ in range(12):
        state = drawn(law, rng)
        for name, lawful in law.rules.items():
            key = rng.choice(JOBS if lawful.sort == "job" else SEQUENCES) if lawful.sort else None
            expected = executors(program, state, name, key)
            books = law.books(state)
            refusal = law.fire(books, lawful, key)
            if refusal is not None and refusal.kind == "range":
                continue  # the executor's reading has no ranges
            assert (refusal is None) == (expected is not None), f"{name} of {key}: {refusal}"
            if expected is not None:
                fired.add(name)
                assert by_key(law, law.state(books)) == by_key(law, expected), name
    assert len(fired) > 15


@pytest.mark.parametrize("places", [30, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_steps_that_change_places_are_allowed_just_where_the_rulebook_allows_it(library: Library, places: int) -> None:
    """Two neighbours, each with the other's number and time: of two jobs that have nothing to do with each other that
    is another history that might have been, and must not be refused. Which these are the executor's reading says."""
    with executing(library, inflight=2) as b:
        handles = [b.enqueue(n, [1, 2, 3]) for n in range(6)]
        handles[3].cancel()
        for handle in handles:
            handle.wait_until(b.executor.engine.now_us() + int(READY_S * 1e6))
        b.executor.close()
        records = json.loads(json.dumps(list(b.executor.journal.records())))
    program = Program(RULEBOOK, records[0]["parameters"])
    program.rules |= {rule.id: program.compiled(rule) for rule in WAITS}
    verdicts = []
    every = range(1, len(records) - 2)
    for at in random.Random(1).sample(every, min(places, len(every))):
        one, two = records[at], records[at + 1]
        new = [one | {k: two[k] for k in ("rule", "element", "observed")}, two | {
            k: one[k] for k in ("rule", "element", "observed")}]  # fmt: skip
        changed = [*records[:at], *new, *records[at + 2 :]]
        said = refusal_of(changed, chain=False)
        assert (said == "") == possible(program, changed), f"{one['rule']} and {two['rule']}: {said}"
        verdicts.append(said == "")
    assert 3 < sum(verdicts) < len(verdicts) - 3, "both occur"


def possible(program: Program, records: list[dict[str, Any]]) -> bool:
    """Whether the executor's reading takes all of these steps and comes to the same end."""
    s, known = program.shared(), {}

    def element(sort: str, key: Any) -> Any:
        if (sort, key) not in known:
            e = known[sort, key] = program.element(sort)
            e.key = key
            if sort == "job":
                e.seq_of = element("seq", key[-1])
            getattr(s, f"{sort}_elements")[e] = None
        return known[sort, key]

    for step in records[1:-1]:
        compiled = program.rules[step["rule"]]
        key = tuple(step["element"]) if isinstance(step["element"], list) else step["element"]
        try:
            if not compiled.fire(s, element(compiled.sort, key) if compiled.sort else None):
                return False
        except (IllegalTransition, Rejected):
            return False
        if step["rule"] == "records.forget":
            del s.job_elements[known.pop((compiled.sort, key))]
    law = Law(RULEBOOK, records[0]["parameters"])
    return bool(by_key(law, program.values_of(s)) == by_key(law, records[-1]["state"]))
