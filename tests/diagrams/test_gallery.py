"""The committed pictures are those of the rulebooks of today: judged by the hash of the DOT text in each SVG."""

import subprocess
import sys
from pathlib import Path

import diagrams_toy
import pytest
from attrs import evolve

from diagrams import gallery
from diagrams.dot import to_dot
from diagrams.render import hash_in, hash_of
from diagrams.tables import table_picture
from machines.table import Row

ROOT = Path(__file__).parents[2]


def test_committed_pictures_are_current(committed):
    assert gallery.problems(committed) == [], "run `make diagrams` and commit diagrams/rendered"


def test_every_kind_of_picture_is_committed(committed):
    names = [path.partition("/")[2] for path in committed]
    for kind in ("table-", "joint.svg", "joint-", "counterexample-"):
        assert any(n.startswith(kind) for n in names), f"no picture {kind}*"


# -- negative controls, on a folder of our own ----------------------------------------------------------------------
@pytest.fixture
def pictures():
    book = diagrams_toy.RULEBOOK
    return {f"toy/{p.name}.svg": p for p in gallery.pictures_of(book, ["lie", "hang"])}


@pytest.fixture
def folder(tmp_path, pictures):
    gallery.write(pictures, tmp_path)
    assert gallery.problems(pictures, tmp_path) == []
    return tmp_path


JOB = diagrams_toy.JOB
WAITING, RUNNING, DONE, FAILED = list(diagrams_toy.Job)[1:]
CHANGES = {
    "event": [*JOB.rows[:1], evolve(JOB.rows[1], event="begin"), *JOB.rows[2:]],
    "section": [*JOB.rows[:1], evolve(JOB.rows[1], cites="§9"), *JOB.rows[2:]],
    "target": [*JOB.rows[:3], Row(WAITING, "fail", FAILED, "§1.4"), Row(RUNNING, "fail", DONE, "§1.4"), JOB.rows[4]],
    "no row": [*JOB.rows[:3], Row(WAITING, "fail", FAILED, "§1.4"), JOB.rows[4]],
    "reason": [*JOB.rows[:4], evolve(JOB.rows[4], why="it has failed")],
    "not ignored": JOB.rows[:4],
}


@pytest.mark.parametrize("rows", CHANGES.values(), ids=CHANGES)
def test_a_changed_row_makes_its_table_stale(folder, pictures, rows):
    pictures["toy/table-job.svg"] = table_picture(evolve(JOB, rows=rows))
    assert gallery.problems(pictures, folder) == ["stale: toy/table-job.svg"]


def test_a_changed_guard_makes_its_page_stale(folder, pictures):
    book = diagrams_toy.RULEBOOK
    rule = book.rule("client.arrive")
    changed = book.replace(evolve(rule, guard=rule.guard & (diagrams_toy.shop == diagrams_toy.Shop.Open)))
    now = {f"toy/{p.name}.svg": p for p in gallery.pictures_of(changed)}
    assert [p for p in gallery.problems(now, folder) if p.startswith("stale: toy")] == ["stale: toy/joint-client.svg"]


def test_missing_and_surplus_pictures_are_named(folder, pictures):
    (folder / "toy/joint.svg").rename(folder / "toy/old.svg")
    assert gallery.problems(pictures, folder) == ["missing: toy/joint.svg", "surplus: toy/old.svg"]


def test_a_picture_without_a_hash_is_stale(folder, pictures):
    file = folder / "toy/joint.svg"
    file.write_text(file.read_text().replace("dot-sha256", "sha"))
    assert gallery.problems(pictures, folder) == ["stale: toy/joint.svg"]


def test_bytes_of_the_drawing_do_not_matter(folder, pictures):
    file = folder / "toy/joint.svg"
    file.write_text(file.read_text().replace("Arial", "Another"))
    assert gallery.problems(pictures, folder) == []


def test_an_old_index_is_stale(folder, pictures):
    (folder / gallery.INDEX).write_text("old")
    assert gallery.problems(pictures, folder) == [f"stale: {gallery.INDEX}"]


def test_write_repairs_what_is_not_current_and_nothing_else(folder, pictures):
    kept = (folder / "toy/table-job.svg").stat().st_mtime_ns
    (folder / "toy/joint.svg").unlink()
    (folder / "toy/old.svg").write_text("<svg/>")
    assert gallery.write(pictures, folder) == ["missing: toy/joint.svg", "surplus: toy/old.svg"]
    assert gallery.problems(pictures, folder) == []
    assert (folder / "toy/table-job.svg").stat().st_mtime_ns == kept


def test_every_file_carries_the_hash_of_its_text(folder, pictures):
    for path, picture in pictures.items():
        assert hash_in((folder / path).read_text()) == hash_of(to_dot(picture))


# -- the text depends on nothing but the rulebook -------------------------------------------------------------------
PRINT_HASHES = """
import sys
sys.path.insert(0, "tests/diagrams")
from checker.cli import load
from diagrams import gallery
from diagrams.dot import to_dot
from diagrams.render import hash_of
for picture in gallery.call_order():
    print(picture.name, hash_of(to_dot(picture)))
for exhibit in (*gallery.EXHIBITS, gallery.Exhibit("diagrams_toy:RULEBOOK", ("lie", "hang"))):
    refuted = exhibit.refuted if "toy" in exhibit.target else ()
    for picture in gallery.pictures_of(load(exhibit.target), refuted):
        print(picture.name, hash_of(to_dot(picture)))
"""


def test_text_is_the_same_in_another_process(committed):
    first, second = (
        subprocess.run(
            [sys.executable, "-c", PRINT_HASHES],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for seed in ("1", "2")
    )
    assert first == second
    assert {f"{p.name} {hash_of(to_dot(p))}" for p in committed.values() if not p.pinned} <= set(first)
