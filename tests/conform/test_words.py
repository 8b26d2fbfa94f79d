"""What the calls of an effect say: their order is the specification's, and what their codes mean is §8's."""

from __future__ import annotations

from typing import Any

import pytest

from checker.conform.handles import EITHER, EVENTS, Handles
from checker.conform.words import PARTS, Call, classes, language_of, word
from machines.abi import TABLES
from machines.errors import CODES, observed
from machines.protocol.effects import EFFECTS

OK, DONE, RAISED = 0, 2, 3


def calls(text: str, handle: int = 1, **more: Any) -> list[Call]:
    """`apply=1 infer=17`: names with their results; 0 where there is none."""
    found = []
    for i, part in enumerate(text.split()):
        name, _, result = part.partition("=")
        made = Call(i, name, 1, handle, 0, 0, 0, "", int(result or 0), 10 * i, 10 * i + 5)
        found.append(made._replace(**more))
    return found


def said(effect: str, text: str, has_ended: bool = False) -> set[str]:
    """What may be observed; nothing: the calls are not in their order."""
    made = calls(text)
    return set(classes(effect, made, has_ended)) if language_of(effect, word(made)) else set()


PREPARED = "bind_sequence slice_tensor slice_tensor set_csr set_csr"
JOB = f"can_allocate=1 apply=1 {PREPARED} infer wait get_status=2 tensor_size apply=1 undo_slice undo_slice"


@pytest.mark.parametrize(
    ("effect", "made", "may"),
    [
        ("reserve", "can_allocate=1 apply=1", {"ok"}),  # §7: first canAllocate(1), then one Apply
        ("reserve", "can_allocate=0 apply=1", {"ok"}),  # a token that fits into what it has (F27)
        ("reserve", "can_allocate=0", {"refused"}),
        ("reserve", "can_allocate=1 apply=0", {"refused"}),
        ("reserve", "can_allocate=1 apply=-1", {"failed"}),
        ("reserve", "apply=1", set()),
        ("reserve", "can_allocate=1 apply=1 apply=1", set()),
        ("prepare", PREPARED, {"ok"}),  # §6.3
        ("prepare", "bind_sequence slice_tensor=14", {"request"}),
        ("prepare", "bind_sequence slice_tensor=24", {"device"}),
        ("prepare", "bind_sequence=16", {"lifecycle"}),
        ("prepare", "slice_tensor bind_sequence", set()),
        ("prepare", "bind_sequence slice_tensor=14 set_csr", set()),  # FI02: the first failure ends it
        ("infer", "infer", {"ok"}),
        ("infer", "infer=17", {"busy"}),  # FI05
        ("infer", "", set()),
        ("infer", "infer infer", set()),  # §6.4: one call
        ("wait", "wait get_status=2", {"ok"}),  # §6.5: success is both
        ("wait", "wait get_status=2 tensor_size", set()),
        ("convert", "tensor_size", {"valid", "invalid"}),  # the logits may be no numbers (FI10)
        ("convert", "tensor_size=14", {"invalid"}),
        ("convert", "", set()),
        ("wait", "wait get_status=3", {"exception"}),  # FI08
        ("wait", "wait=13", {"timeout"}),  # FI07
        ("wait", "wait=28", {"error"}),
        ("wait", "get_status=2 wait", set()),  # §6.5: first Wait
        ("wait", "wait=28 get_status=2", set()),
        ("commit", "apply=1", {"ok"}),
        ("commit", "apply=0", {"failed"}),  # S02
        ("undo", "undo_slice undo_slice", {"ok"}),
        ("undo", "undo_slice=14 undo_slice", {"failed"}),  # FI15
        ("remove", "apply=1", {"ok"}),
        ("reset", "reset_ccu", {"ok"}),
        ("reset", "reset=25", {"failed"}),
        ("reset", "reset_ccu=8", {"compatibility"}),
        ("reset", "", set()),
        ("configure", "configure create_kv tokens_per_unit=16 units_total=64 create_input create_output map_buf",
         {"ok", "artifact", "failed"}),
        ("configure", "configure=12", {"artifact"}),
        ("configure", "create_kv configure", set()),
        ("golden", f"{JOB} {JOB} apply=1", {"passed", "failed"}),  # §9.2
        ("golden", f"{JOB} can_allocate=1 apply=0", {"failed"}),
        ("golden", f"{JOB} can_allocate=1 apply=1 bind_sequence=4", {"artifact"}),
        ("golden", "infer wait", set()),
    ],
)  # fmt: skip
def test_the_calls_of_an_effect(effect: str, made: str, may: set[str]) -> None:
    assert said(effect, made) == may


@pytest.mark.parametrize("number", [c.number for c in CODES if c.number])
def test_each_code_means_what_the_table_of_8_says(number: int) -> None:
    assert said("infer", f"infer={number}") == {observed("infer", number)}
    assert said("wait", f"wait={number}") == {observed("wait", number)}
    assert said("prepare", f"bind_sequence={number}") == {observed("prepare", number)}


def test_what_a_generation_that_ended_makes_of_it() -> None:
    assert said("commit", "apply=1", has_ended=True) == {"ok", "failed"}
    assert said("commit", "apply=1") == {"ok"}, "control"


def test_every_effect_and_every_event_has_its_calls() -> None:
    assert {effect.name for effect in EFFECTS} == set(PARTS)
    events = {event for _, event in EVENTS.values()} | set(EITHER.values()) | {"infer", "retire", "orphan"}
    assert {event for table in TABLES for event in table.events} == events


# -- handles -----------------------------------------------------------------------------------------------------------
def judged(*made: tuple[str, int]) -> str:
    """What is wrong with these calls, each of a handle; of `infer` the output is handle 3."""
    handles = Handles(complete=True)
    for i, (name, handle) in enumerate((("open", 1), ("configure", 1), *made)):
        result = DONE if name == "get_status" else OK
        other = {"infer": 3, "create_input": 1, "create_output": 1}.get(name, 0)
        call = Call(i, name, 1, handle, other, 0, 0, "", result, 10 * i, 10 * i + 5)
        if wrong := handles.began(call):
            return wrong
    return ""


IN, OUT = [("create_input", 2), ("map_buf", 2)], [("create_output", 3), ("map_buf", 3)]
ONE = [("bind_sequence", 2), ("slice_tensor", 2), ("set_csr", 2), ("infer", 2), ("wait", 3), ("get_status", 3)]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ([*IN, *OUT, *ONE, ("undo_slice", 2), *ONE], ""),
        ([*IN, *OUT, *ONE[:4], ("reset_ccu", 1), ("wait", 3)], ""),  # FI14: late, and it changes nothing
        ([*IN, *OUT, *ONE[:4], ("reset_ccu", 1), ("infer", 2)], "abi_input Orphaned"),  # §5.1-8
        ([*IN, *OUT, *ONE[:4], ("slice_tensor", 2)], "abi_input InFlight"),  # §5.1-4
        ([*IN, *OUT, *ONE[:4], ("destroy", 3)], "abi_output InFlight"),
        ([*IN, *OUT, *ONE[:2], ("infer", 2)], "abi_input Sliced"),  # the CSRs are not set
        ([*IN, ("wait", 3)], "not there"),
        ([*IN, ("infer", 2)], "abi_input Mapped"),
        ([*IN, *OUT, ("destroy", 2), ("map_buf", 2)], "not there"),
    ],
)
def test_the_order_of_the_abi(made: list[tuple[str, int]], says: str) -> None:
    found = judged(*made)
    assert says in found if says else found == ""
