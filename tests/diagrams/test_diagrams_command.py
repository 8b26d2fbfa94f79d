"""`python -m diagrams`: what it writes, and one clear line with its own exit code when it cannot."""

import pytest

from checker.exits import Exit
from diagrams import gallery
from diagrams.__main__ import NOT_DONE, run
from diagrams.render import hash_in, hash_of

TOY = "diagrams_toy:RULEBOOK"


def test_check_is_green_when_all_is_current(capsys, committed, monkeypatch):
    monkeypatch.setattr(gallery, "drawings", lambda exhibits: committed)
    assert run(["--check"]) == 0
    assert "all current" in capsys.readouterr().out


def test_check_names_what_is_stale_and_draws_nothing(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(gallery, "EXHIBITS", (gallery.Exhibit(TOY),))
    monkeypatch.setattr(gallery, "RENDERED", tmp_path)
    assert run(["--check"]) == NOT_DONE
    seen = capsys.readouterr()
    assert "missing: toy/table-job.svg" in seen.out
    assert "run `python -m diagrams`" in seen.err
    assert list(tmp_path.iterdir()) == []
    assert run([]) == 0
    assert run(["--check"]) == 0


@pytest.mark.parametrize("run_name", ["lie", "hang"])
def test_counterexample_writes_svg_and_dot(run_name, tmp_path, capsys):
    svg, dot = tmp_path / "x.svg", tmp_path / "x.dot"
    for file in (svg, dot):
        assert run(["counterexample", TOY, "--run", run_name, "-o", str(file)]) == 0
    assert hash_in(svg.read_text()) == hash_of(dot.read_text())
    assert "counterexample to" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ([TOY, "--run", "nope", "-o", "x.svg"], Exit.USAGE, "no run is named 'nope'; toy has honest, lie, hang"),
        ([TOY, "--run", "h*", "-o", "x.svg"], NOT_DONE, "'h*' names several runs; name one of honest, hang"),
        ([TOY, "--run", "honest", "-o", "x.svg"], NOT_DONE, "honest of toy has no counterexample; it refutes nothing"),
        (
            [TOY, "--run", "lie", "--property", "arrived-ends", "-o", "x.svg"],
            NOT_DONE,
            "run lie of toy has no counterexample to arrived-ends; it refutes done-means-worked",
        ),
        ([TOY, "--run", "lie", "-o", "x.png"], Exit.USAGE, "-o x.png: the file must end in .svg or .dot"),
        ([TOY, "--run", "lie", "-o", "no/such/x.svg"], Exit.NOT_WRITTEN, "cannot write no/such/x.svg: No such file"),
        (["no_such_module:RULEBOOK", "--run", "lie", "-o", "x.svg"], Exit.NOT_FOUND, "cannot import no_such_module"),
    ],
)
def test_bad_input_is_one_clear_line(args, code, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["counterexample", *args]) == code
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
