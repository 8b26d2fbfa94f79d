"""The committed pictures: which there are, which are stale, and how they are made anew.

One folder per rulebook under `rendered/`, and an index. A picture is current when its file carries the hash of the DOT
text of today; a file that no picture belongs to is surplus.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from checker.cli import load
from diagrams.counterexample import counterexample_picture, refute
from diagrams.dot import to_dot
from diagrams.joint import joint_pictures
from diagrams.picture import Picture
from diagrams.render import hash_in, hash_of, to_svg
from diagrams.tables import table_picture
from machines import abi
from machines.rulebook import Rulebook

__all__ = ["EXHIBITS", "RENDERED", "Exhibit", "drawings", "index", "problems", "write"]

RENDERED = Path(__file__).parent / "rendered"
INDEX = "README.md"


@frozen
class Exhibit:
    """A rulebook whose pictures are committed. refuted: its runs whose counterexample is drawn too (small ones)."""

    target: str
    refuted: tuple[str, ...] = ()


EXHIBITS = (
    Exhibit(
        "machines.protocol:RULEBOOK",
        refuted=(
            "exit without process_exit_stops_dma",
            "exit, Busy may have started",
            "rebuild-golden without leftover_harmless",
            "reuse without reset_clears_kv",
        ),
    ),
    Exhibit("examples.two_phase_commit:RULEBOOK"),
    Exhibit("examples.ewd840:RULEBOOK"),
)


def pictures_of(book: Rulebook, refuted: Sequence[str] = ()) -> Iterator[Picture]:
    """Everything about one rulebook: its tables, the joint protocol, counterexamples of the named runs."""
    yield from map(table_picture, book.tables)
    yield from joint_pictures(book)
    for run in refuted:  # in Python: small runs end sooner than a compiler does, and every machine has it
        yield counterexample_picture(refute(book, run, engine="python"))


def call_order() -> Iterator[Picture]:
    """The order of calls on each handle of the device: the pages that a vendor can sign."""
    yield from map(table_picture, abi.TABLES)


def drawings(exhibits: Sequence[Exhibit] = EXHIBITS) -> dict[str, Picture]:
    """Every committed picture by its path below the folder: first the call order."""
    found = {f"abi/{picture.name}.svg": picture for picture in call_order()}
    for exhibit in exhibits:
        book = load(exhibit.target)
        for picture in pictures_of(book, exhibit.refuted):
            found[f"{book.name}/{picture.name}.svg"] = picture
    return found


def problems(pictures: Mapping[str, Picture], folder: Path = RENDERED) -> list[str]:
    """What is missing, stale or surplus in the folder, one line each; empty when all is current."""
    found = []
    for path, picture in pictures.items():
        file = folder / path
        if not file.exists():
            found.append(f"missing: {path}")
        elif hash_in(file.read_text(encoding="utf-8")) != hash_of(to_dot(picture)):
            found.append(f"stale: {path}")
    found += [f"surplus: {path}" for path in _present(folder) if path not in pictures]
    readme = folder / INDEX
    if not readme.exists() or readme.read_text(encoding="utf-8") != index(pictures):
        found.append(f"stale: {INDEX}")
    return found


def write(pictures: Mapping[str, Picture], folder: Path = RENDERED) -> list[str]:
    """Draw what is missing or stale, delete what is surplus; says what it did. Current files are left alone."""
    todo = problems(pictures, folder)
    for problem in todo:
        kind, _, path = problem.partition(": ")
        if kind == "surplus":
            (folder / path).unlink()
        elif path != INDEX:
            dot = to_dot(pictures[path])
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(to_svg(dot, pinned=pictures[path].pinned), encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).write_text(index(pictures), encoding="utf-8")
    return todo


def index(pictures: Mapping[str, Picture]) -> str:
    """A page that lists the pictures by rulebook."""
    text = ["# Pictures", "", "Made from the rulebooks by `make diagrams`; a test fails when one is stale."]
    folder = ""
    for path, picture in pictures.items():
        if (parent := path.partition("/")[0]) != folder:
            folder = parent
            text += ["", f"## {folder}", ""]
        text.append(f"- [{picture.title}]({path})")
    return "\n".join(text) + "\n"


def _present(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder).as_posix()) for file in folder.rglob("*.svg"))
