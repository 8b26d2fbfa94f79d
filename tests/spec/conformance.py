"""docs/conformance.md: for each line of the specification what shows it, and whether that is all of it.

Theory. Evidence is what the repository already has: tests that claim a line (`claims.py`), and properties of the
rulebook that cite it, which `make check-states` proves in the declared scopes. A property speaks of the protocol, not
of the running executor, so it stands beside tests and never alone. From the claims and from what the line itself says
(`requirements.py`) its state follows; a line without a claim that does not say why is a problem, and so is a claim of
what cannot be shown. `python -m tests.spec.conformance` writes the page, or says what is wrong and writes nothing.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from enum import Enum
from pathlib import Path

import pytest
from attrs import frozen

from machines.protocol import RULEBOOK
from machines.rulebook import Property, Sometimes
from tests.spec.claims import FAST, KEY, Claim
from tests.spec.failures import FAILURES
from tests.spec.mutations import MUTATIONS, Mutation
from tests.spec.requirements import GROUPS, Group, Requirement, claimable, rows, shows_property

__all__ = ["DOCUMENT", "ROOT", "Evidence", "State", "collected", "evidence_of", "page", "problems", "state_of"]

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "conformance.md"
COMMAND = "python -m tests.spec.conformance"


INTRODUCTION = f"""\
# What shows each line of the specification

GENERATED from tests/spec/requirements.py and the tests' own claims by `{COMMAND}`. Do not edit: a test compares.

A line of the specification has an id. Tests claim ids (`@pytest.mark.shows("FI05")`), and `pytest --shows FI05` runs
them. *Proved* and *reached* are properties of the rulebook: `make check-states` proves them in its scopes, of the
protocol and not of the running executor, so they stand beside tests and never alone. *Red when* says what the
executor does when one line of that file is made wrong on purpose; then the tests of that row fail
(`tests/spec/mutations.py`). *fast* is `make test`, *nightly* `make nightly`. All of it is on the simulated device.

What needs 24 h, real hardware, Phase B or the vendor's SDK is not shown, and a test that claims it is an error;
*instead* is what comes near. What a line *depends on* are vendor facts: nothing here shows them, an unknown one
counts as the worst case (but Busy: FI05), and `calexec vendor-probe` asks the device.

"""


class State(Enum):
    SHOWN = "shown"
    NIGHTLY = "shown nightly only"
    PART = "in part"
    NOT = "not shown"


@frozen
class Evidence:
    """What shows one line: claims of tests, and properties of the rulebook."""

    claims: tuple[Claim, ...] = ()
    properties: tuple[Property, ...] = ()


def evidence_of(
    row: Requirement, claims: Iterable[Claim], properties: Iterable[Property] = RULEBOOK.properties
) -> Evidence:
    return Evidence(
        tuple(c for c in claims if c.id in row.ids), tuple(p for p in properties if shows_property(row, p))
    )  # fmt: skip


def state_of(row: Requirement, evidence: Evidence) -> State:
    """Of a line without problems. Nightly only: some of what it demands is shown by no fast test."""
    if row.needs:
        return State.NOT
    if row.missing:
        return State.PART
    fast = {c.id for c in evidence.claims if c.tier == FAST}
    return State.SHOWN if fast.issuperset(row.ids) else State.NIGHTLY


def problems(claims: Iterable[Claim], groups: Iterable[Group] = GROUPS) -> list[str]:
    """Each line that is neither shown nor said not to be; and claims that must not be."""
    claims, groups, found = list(claims), list(groups), []
    known = claimable(groups)
    found += [f"{c.test} claims {c.id}, which is not declared" for c in claims if c.id not in {*known, *FAILURES}]
    for row in rows(groups):
        claimed = {c.id for c in claims if c.id in row.ids}
        if row.needs:
            found += [f"{n} is claimed, and needs {', '.join(row.needs)}" for n in sorted(claimed)]
        else:
            found += [f"{n} is claimed by no test, and nothing says why" for n in row.ids if n not in claimed]
    found += [f"{number} is in no test's name" for number in FAILURES if number not in {c.id for c in claims}]
    return found


# -- the page ----------------------------------------------------------------------------------------------------------
def page(claims: Iterable[Claim], groups: Iterable[Group] = GROUPS) -> str:
    """docs/conformance.md."""
    return "\n".join(_lines(list(claims), list(groups))) + "\n"


def _lines(claims: list[Claim], groups: list[Group]) -> Iterator[str]:
    yield from INTRODUCTION.splitlines()
    yield from _counts(claims, groups)
    for group in groups:
        yield from ("", f"## {group.title} ({group.cites})", "")
        yield from _head("id", "line", "what it demands", "shown by", "tier", "state")
        yield from (_row(row, evidence_of(row, claims)) for row in group.rows)
    yield from (
        "",
        "## Failures in the field",
        "",
        "Each is a test's name (`test_f01_...`), with its negative control.",
        "",
    )
    yield from _head("number", "what must happen", "shown by", "tier")
    for number, says in FAILURES.items():
        mine = tuple(c for c in claims if c.id == number)
        cited = [p for p in RULEBOOK.properties if p.cites == number]
        yield _cells(number, says, "<br>".join([_tests(mine), *_proved(cited)]), _tiers(mine))


def _counts(claims: list[Claim], groups: list[Group]) -> Iterator[str]:
    yield from _head("", *(s.value for s in State), "lines")
    total = [0] * (len(State) + 1)
    for group in groups:
        states = [state_of(row, evidence_of(row, claims)) for row in group.rows]
        numbers = [*(states.count(s) for s in State), len(states)]
        total = [a + b for a, b in zip(total, numbers, strict=True)]
        yield _cells(f"{group.title} ({group.cites})", *map(str, numbers))
    yield _cells("**all**", *(f"**{n}**" for n in total))


def _row(row: Requirement, evidence: Evidence) -> str:
    state = state_of(row, evidence)
    shown = [_tests(evidence.claims, row), *_proved(evidence.properties)]
    if mutations := [m for m in MUTATIONS if m.row == row.id]:
        shown.append("red when: " + "; ".join(_mutation(m) for m in mutations))
    if row.facts:
        shown.append("depends on: " + ", ".join(f"`{f}`" for f in row.facts))
    if row.instead:
        shown.append(f"instead: {row.instead}")
    reason = f": needs {', '.join(row.needs)}" if row.needs else f": {row.missing}" if row.missing else ""
    return _cells(
        row.id, row.line, row.says, "<br>".join(filter(None, shown)), _tiers(evidence.claims), state.value + reason
    )


def _proved(properties: Iterable[Property]) -> Iterator[str]:
    """What must be possible is reached; what must hold is proved."""
    for word, wanted in (("proved", False), ("reached", True)):
        if names := [f"`{p.id}`" for p in properties if isinstance(p, Sometimes) is wanted]:
            yield f"{word}: {', '.join(names)}"


def _mutation(mutation: Mutation) -> str:
    return f"{mutation.wrong} ({mutation.file}{', nightly' if mutation.nightly else ''})"


def _tests(claims: Iterable[Claim], row: Requirement | None = None) -> str:
    """By file; with the parts that a test shows, where the line has parts."""
    tests: dict[tuple[str, str], list[str]] = {}
    for c in sorted(claims):
        parts = tests.setdefault((c.file, c.test), [])
        if row and row.parts and (part := c.id.removeprefix(f"{row.id}.")) not in parts:
            parts.append(part)
    files: dict[str, list[str]] = {}
    for (file, test), parts in sorted(tests.items()):
        files.setdefault(file, []).append(f"`{test.removeprefix('test_')}`" + f" ({', '.join(parts)})" * bool(parts))
    return "<br>".join(f"[{Path(f).stem}](../{f}): {', '.join(names)}" for f, names in files.items())


def _tiers(claims: Iterable[Claim]) -> str:
    return " + ".join(sorted({c.tier for c in claims}))


def _head(*titles: str) -> tuple[str, str]:
    return _cells(*titles), f"|{' --- |' * len(titles)}"


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# -- the claims --------------------------------------------------------------------------------------------------------
@frozen
class _Catcher:
    """Keeps what a collection claims."""

    found: list[Claim]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.found.extend(session.config.stash[KEY])


def collected() -> list[Claim]:
    """The claims of every test, by a collection of its own. Raises RuntimeError when the tests cannot be collected."""
    catcher, said = _Catcher([]), io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = pytest.main(["--collect-only", "-p", "no:cacheprovider", str(ROOT / "tests")], plugins=[catcher])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"the tests cannot be collected:\n{said.getvalue()[-3000:]}")
    return catcher.found


def main() -> int:
    try:
        claims = collected()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    if found := problems(claims):
        print("\n".join(found), file=sys.stderr)
        return 1
    DOCUMENT.write_text(page(claims), encoding="utf-8")
    print(f"wrote {DOCUMENT.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
