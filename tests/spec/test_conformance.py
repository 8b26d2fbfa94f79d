"""The ids, the marker and docs/conformance.md: what is claimed is there, can be shown, and is not skipped."""

from __future__ import annotations

import re

import pytest
from attrs import evolve

from machines.errors import ErrorClass
from machines.protocol import RULEBOOK
from machines.protocol.params import FACTS
from runtime.vendor_probe.experiments import EXPERIMENTS, process_exit_stops_dma
from tests.spec import requirements
from tests.spec.claims import FAST, FILES, KEY, NIGHTLY, Claim
from tests.spec.conformance import COMMAND, DOCUMENT, ROOT, State, collected, evidence_of, page, problems, state_of
from tests.spec.failures import FAILURES
from tests.spec.requirements import GROUPS, NEEDS, Group, Requirement, rows

pytest_plugins = ["pytester"]

# How many lines each table or list of the specification has, counted there.
COUNTS = {"§2": 12, "§5.1": 8, "§5.2": 5 + 1, "§8": 8 + 1, "§11": 8, "§12": 15, "§13": 3 + 3 + 3, "§14": 5 + 1}
NUMBERED = {"S": 12, "I": 8, "PR": 8, "FI": 15}
NEVER = {  # what the specification ties to 24 h, to hardware, to Phase B or to the vendor, by hand
    "PR7", "PR8", "§13.2-1", "§13.3-1", "§13.3-3", *(f"§14-{i}" for i in range(1, 7)),
}  # fmt: skip
ROW = Requirement("X1", "line", "It is so.")


@pytest.fixture(scope="module")
def claims(request: pytest.FixtureRequest) -> list[Claim]:
    """Of every test: this session's where it has collected all of them, or those of a collection of its own."""
    stash = request.config.stash
    whole = not any("::" in argument for argument in request.config.args)
    return stash[KEY] if whole and stash[FILES].issuperset((ROOT / "tests").rglob("test_*.py")) else collected()


# -- the data ----------------------------------------------------------------------------------------------------------
def test_each_line_has_an_id() -> None:
    assert {group.cites: len(group.rows) for group in GROUPS} == COUNTS
    names = [row.id for row in rows()]
    assert len(set(names)) == len(names)
    for letters, count in NUMBERED.items():
        width = 2 if letters in ("S", "FI") else 1
        numbered = [name for name in names if re.fullmatch(rf"{letters}\d+", name)]
        assert numbered == [f"{letters}{i:0{width}}" for i in range(1, count + 1)]
    assert all(row.line and row.says.endswith(".") for row in rows())


def test_what_needs_what_is_not_here_is_not_shown() -> None:
    assert {row.id for row in rows() if row.needs} == NEVER
    assert requirements.problems() == []


def test_rows_of_8_are_the_error_classes() -> None:
    names = {row.id for row in rows() if row.id.startswith("§8.")}
    assert names == {f"§8.{kind.name}" for kind in ErrorClass if kind is not ErrorClass.Success} | {"§8.HTTP"}
    (device,) = [row for row in rows() if row.id == "§8.Device"]
    assert device.line == "CalRT 18, 24, 25, 28", "as §8 says it"


def test_every_vendor_fact_is_assumed_somewhere_and_the_probe_asks() -> None:
    assumed = [fact for row in rows() for fact in row.facts]
    assert sorted(assumed) == sorted(fact.name for fact in FACTS)
    assert set(assumed) == {*EXPERIMENTS, process_exit_stops_dma.__name__}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (evolve(ROW, needs=("luck",)), "X1 needs 'luck'; known are 24 h, real hardware"),
        (evolve(ROW, facts=("it_works",)), "X1 assumes 'it_works', no vendor fact"),
        (evolve(ROW, instead="much"), "X1 can be shown, so there is nothing instead"),
        (evolve(ROW, needs=NEEDS[:1], missing="more"), "X1 is not shown, so nothing of it is missing in part"),
    ],
)
def test_control_what_is_wrong_in_the_data(row: Requirement, problem: str) -> None:
    (found,) = requirements.problems([Group("§0", "Made up", (row,))])
    assert found.startswith(problem)
    assert requirements.problems([Group("§0", "Made up", (ROW, ROW))]) == ["X1 is declared twice"]


# -- the gate ----------------------------------------------------------------------------------------------------------
def test_everything_is_shown_or_says_why_not(claims: list[Claim]) -> None:
    assert problems(claims) == []


def test_a_property_never_stands_alone(claims: list[Claim]) -> None:
    """And each that cites a line beginning with FI or §5.1 is about one that there is."""
    shown = {p.id for row in rows() for p in evidence_of(row, claims).properties}
    about = {p.id for p in RULEBOOK.properties if re.match(r"FI|§5\.1-|I\d", p.cites) or re.match(r"I\d", p.id)}
    assert about <= shown
    for row in rows():
        evidence = evidence_of(row, claims)
        assert evidence.claims or not evidence.properties or row.needs, row.id


def claim(name: str, tier: str = FAST) -> Claim:
    return Claim(name, "tests/test_x.py", "test_x", tier)


IN_PARTS = evolve(ROW, parts=("a", "b"))
FIELD = [claim(number) for number in FAILURES]


@pytest.mark.parametrize(
    ("row", "claimed", "found"),
    [
        (ROW, [], ["X1 is claimed by no test, and nothing says why"]),
        (ROW, ["X1"], []),
        (evolve(ROW, missing="half"), [], ["X1 is claimed by no test, and nothing says why"]),
        (evolve(ROW, needs=("24 h",)), [], []),
        (evolve(ROW, needs=("24 h",)), ["X1"], ["X1 is claimed, and needs 24 h"]),
        (IN_PARTS, ["X1.a"], ["X1.b is claimed by no test, and nothing says why"]),
        (IN_PARTS, ["X1.a", "X1.b"], []),
        (IN_PARTS, ["X1", "X1.a", "X1.b"], ["test_x claims X1, which is not declared"]),
    ],
)
def test_control_the_gate(row: Requirement, claimed: list[str], found: list[str]) -> None:
    assert problems([*map(claim, claimed), *FIELD], [Group("§0", "Made up", (row,))]) == found


def test_control_a_field_failure_that_no_test_is_named_after(claims: list[Claim]) -> None:
    assert problems([c for c in claims if c.id != "F31"]) == ["F31 is in no test's name"]


@pytest.mark.parametrize(
    ("row", "claimed", "state"),
    [
        (ROW, [("X1", FAST)], State.SHOWN),
        (ROW, [("X1", NIGHTLY)], State.NIGHTLY),
        (ROW, [("X1", NIGHTLY), ("X1", FAST)], State.SHOWN),
        (evolve(ROW, missing="half"), [("X1", FAST)], State.PART),
        (evolve(ROW, needs=("24 h",)), [], State.NOT),
        (IN_PARTS, [("X1.a", FAST), ("X1.b", NIGHTLY)], State.NIGHTLY),
        (IN_PARTS, [("X1.a", FAST), ("X1.b", FAST)], State.SHOWN),
    ],
)
def test_states(row: Requirement, claimed: list[tuple[str, str]], state: State) -> None:
    assert state_of(row, evidence_of(row, [claim(*c) for c in claimed])) is state


# -- the page ----------------------------------------------------------------------------------------------------------
def test_the_page_is_generated(claims: list[Claim]) -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == page(claims), f"run `{COMMAND}`"


def test_one_claim_less_is_another_page(claims: list[Claim]) -> None:
    """Negative control; and what is counted is what is listed."""
    less = [c for c in claims if c.test != "test_fi05_busy_rolls_back_and_nobody_waits"]
    assert page(less) != page(claims)
    text = page(claims)
    for state in State:
        listed = sum(re.search(rf"\| {state.value}(: [^|]*)? \|$", line) is not None for line in text.splitlines())
        assert listed == sum(state_of(row, evidence_of(row, claims)) is state for row in rows())
    (total,) = re.findall(r"\| \*\*all\*\* \|(.*)\|", text)
    assert [int(n) for n in re.findall(r"\d+", total)][-1] == sum(COUNTS.values())


def test_the_files_that_it_names_are_there(claims: list[Claim]) -> None:
    named = re.findall(r"\]\(\.\./([^)]*)\)", page(claims))
    assert named
    assert all((ROOT / file).is_file() for file in named)


# -- the marker --------------------------------------------------------------------------------------------------------
def run(pytester: pytest.Pytester, body: str, *more: str) -> pytest.RunResult:
    """The plugin over other tests."""
    pytester.makepyfile(test_claims=f"import pytest\nshows = pytest.mark.shows\n{body}")
    return pytester.runpytest_inprocess("-p", "tests.spec.claims", "-p", "no:cacheprovider", *more)


@pytest.mark.parametrize(
    ("claimed", "said"),
    [
        (
            '"FI5"',
            r"test_claims.py::test_it claims 'FI5'; did you mean FI\d5\? known are S01, .*FI15.* \(tests/spec/req",
        ),
        ('"PR5"', r"claims 'PR5'; .*known are .*PR5\.TSAN"),
        ("None", r"claims None; known are S01"),
        ('"PR8"', r"claims PR8, which nobody can show here: it needs Phase B, 24 h"),
        ('"§13.2-1"', r"it needs 24 h, real hardware"),
        ("", r"shows takes ids alone, at least one"),
        ('"FI05", part="a"', r"shows takes ids alone"),
    ],
)
def test_a_wrong_claim_ends_the_collection(pytester: pytest.Pytester, claimed: str, said: str) -> None:
    result = run(pytester, f"@shows({claimed})\ndef test_it(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(said, result.stderr.str() + result.stdout.str())


def test_a_name_of_an_unknown_failure_ends_it_too(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_f99_it(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "is named after F99; known are F01" in result.stderr.str()


SELECTED = """
@shows("FI05")
def test_a(): pass

@shows("PR5.TSAN")
def test_b(): pass

def test_c(): pass
"""


@pytest.mark.parametrize(("wanted", "passed"), [("FI05", 1), ("PR5", 1), ("PR5.TSAN", 1), ("FI06", 0)])
def test_what_claims_an_id_can_be_selected(pytester: pytest.Pytester, wanted: str, passed: int) -> None:
    result = run(pytester, SELECTED, "--shows", wanted)
    result.assert_outcomes(passed=passed, deselected=3 - passed)


def test_what_nobody_knows_cannot_be_selected(pytester: pytest.Pytester) -> None:
    result = run(pytester, SELECTED, "--shows", "FI99")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--shows FI99: " in result.stderr.str()


SKIPPED = """
@shows("FI05")
@pytest.mark.skip
def test_a(): pass

@shows("FI06")
@pytest.mark.xfail
def test_b(): assert False

@shows("FI07")
@pytest.mark.skipif(True, reason="no device")
def test_c(): pass

@shows("FI08")
@pytest.mark.nightly
@pytest.mark.parametrize("i", [1, pytest.param(2, marks=shows("FI09"))])
def test_d(i): pass

@shows("FI10")
def test_e(): pytest.skip("no device")

def test_f(): pytest.skip("no device")
"""
TOLD = """
import pytest
from tests.spec.claims import KEY

def pytest_collection_finish(session):
    for c in session.config.stash[KEY]:
        print("CLAIM", c.id, c.file, c.test, c.tier)
"""


def test_a_skipped_test_shows_nothing(pytester: pytest.Pytester) -> None:
    """Who says so beforehand does not count; who claims and skips while it runs fails."""
    pytester.makeconftest(TOLD)
    pytester.makeini("[pytest]\nmarkers = nightly: later")
    result = run(pytester, SKIPPED, "-s", "--strict-markers")
    claimed = [line.split(maxsplit=1)[1] for line in result.outlines if line.startswith("CLAIM")]
    assert claimed == [
        "FI08 test_claims.py test_d nightly", "FI09 test_claims.py test_d nightly", "FI10 test_claims.py test_e fast",
    ]  # fmt: skip
    result.assert_outcomes(passed=2, skipped=3, xfailed=1, failed=1)
    assert "it claims to show FI10, and was skipped" in result.stdout.str()
