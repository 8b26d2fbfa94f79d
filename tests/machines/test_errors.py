"""§8, held against a second transcription of the specification's table, and total over every int."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines import errors
from machines.errors import CLASSES, CODES, RETURNS, SHIM_CODES, ErrorClass, classify, code_named, observed
from machines.protocol.effects import EFFECTS

# Copied from §8 row by row: (codes, category). "1 ... 14 ... 21 ... 22: Request/Artifact" and so on.
SPECIFIED = {
    "Request": (1, 14, 21, 22),
    "Lifecycle": (2, 7, 16),
    "Artifact": (4, 5, 19, 10, 11, 12),
    "Compatibility": (8, 9, 23),
    "Transient": (13, 17),
    "Device": (18, 24, 25, 28),
    "Programming": (27, 29),
    "Unknown": (15, 20),
}


@pytest.mark.shows("PR1.mapping")
@pytest.mark.parametrize(("name", "numbers"), SPECIFIED.items())
def test_each_row_of_the_specification(name: str, numbers: tuple[int, ...]) -> None:
    assert {classify(n).kind.name for n in numbers} == {name}


def test_what_the_specification_does_not_mention_is_unknown() -> None:
    mentioned = {0}.union(*SPECIFIED.values())
    assert {n for n in range(30) if n not in mentioned} == {3, 6, 26}
    assert {classify(n).kind for n in (3, 6, 26, -1, 30, 2**31 - 1, -(2**31))} == {ErrorClass.Unknown}


@pytest.mark.shows("PR1.mapping")
@given(st.integers())
def test_every_int_has_one_class_and_keeps_its_number(number: int) -> None:
    code = classify(number)
    assert code.number == number
    assert code.kind in ErrorClass
    assert (code.kind is ErrorClass.Success) == (number == 0)
    for effect in RETURNS:
        assert (observed(effect, number) in ("ok", "passed")) == (number == 0), "only 0 is good"


def test_a_reset_is_for_device_errors_only() -> None:
    """§8: no reset for request, lifecycle, artifact, compatibility, transient and programming errors."""
    assert {c.kind.name for c in CLASSES if c.resets} == {"Device", "Unknown"}


@pytest.mark.shows("§8.HTTP.400", "§8.HTTP.504", "§8.HTTP.503", "§8.HTTP.500")
@pytest.mark.parametrize(
    ("number", "http", "grpc"),
    [(14, 400, "INVALID_ARGUMENT"), (13, 504, "DEADLINE_EXCEEDED"), (18, 503, "UNAVAILABLE"), (22, 500, "INTERNAL"),
     (19, 500, "INTERNAL"), (0, 200, "OK")],
)  # fmt: skip
def test_what_a_server_answers(number: int, http: int, grpc: str) -> None:
    assert (classify(number).http, classify(number).grpc) == (http, grpc)


def test_one_grpc_name_has_one_http_status() -> None:
    pairs = {(c.grpc, c.http) for c in (*CODES, *SHIM_CODES)}
    assert len({grpc for grpc, _ in pairs}) == len(pairs)


@pytest.mark.parametrize("effect", ["prepare", "infer", "wait"])
def test_the_protocol_knows_each_return(effect: str) -> None:
    """What a code is observed as is declared by the rulebook for the call, and nothing declared is out of reach."""
    declared = {r.observed for e in EFFECTS if e.name == effect for r in e.returns}
    seen = {observed(effect, n) for n in range(-2, 40)}
    assert seen <= declared
    # A CCU exception is the buffer's status, not a return code.
    assert declared - seen == ({"exception"} if effect == "wait" else set())


def test_busy_is_the_one_submit_that_is_rolled_back() -> None:
    assert {n for n in range(-2, 40) if observed("infer", n) == "busy"} == {17}
    assert {n for n in range(-2, 40) if observed("wait", n) == "timeout"} == {13}


def test_names_are_unique_and_readable() -> None:
    names = [c.name for c in (*CODES, *SHIM_CODES)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Z][A-Za-z0-9]+", n) for n in names)
    assert code_named("DeviceBusy").number == 17
    with pytest.raises(KeyError, match=r"no return code is called 'Busy'; known are CalrtSuccess"):
        code_named("Busy")


def test_the_shims_codes_are_far_from_the_vendors() -> None:
    assert all(c.number < -770000 for c in SHIM_CODES)


def test_a_contradictory_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the check at import."""
    monkeypatch.setattr(errors, "CODES", (*CODES, CODES[3]))
    assert errors._problems() == ("code 3 is declared twice", "name Undocumented3 is declared twice")


def test_no_code_number_is_typed_a_second_time() -> None:
    """`runtime` asks for codes by name or class; numbers above 1 beside a `code` would be a second source."""
    root = Path(__file__).parents[2] / "runtime"
    typed = re.compile(r"\b(?:code|rc)\b\s*(?:==|!=|in)\s*\(?\s*-?\d*[2-9]\d*")
    found = [
        f"{path.name}:{number}"
        for path in sorted(root.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if typed.search(line)
    ]
    assert found == []
    assert typed.search("if code == 17:")
