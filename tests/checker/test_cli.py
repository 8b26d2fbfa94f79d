"""The command as its user meets it: exit codes, one clear line for bad input, no traceback, and never PROVED."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest

import checker.campaign
import checker.cli
from checker import exits
from checker.cli import EPILOG, _plan, command, load, parse_scope, run
from checker.exits import Exit
from checker.result import Verdict
from machines.expr import Param, State

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

SMALL_MACHINE = """
from machines.expr import Domain, Param
from machines.rulebook import Actor, Invariant, Rule, Rulebook, variable

TOP = Param("top", default=3, lo=1, hi=9)
count = variable("count", Domain(TOP.expr))
UP = Actor("up")
RULEBOOK = Rulebook(
    "counter", [UP], [TOP], [], [count],
    [Rule("up", UP, count.ref < TOP.expr, then={count.ref: count.ref + 1}), RESET],
    properties=[Invariant("small", "It stays small.", holds=count.ref <= 9)],
)
"""
GOOD = SMALL_MACHINE.replace("RESET", 'Rule("reset", UP, count.ref == TOP.expr, then={count.ref: 0})')
BAD = SMALL_MACHINE.replace("RESET", 'Rule("reset", Actor("ghost"), then={count.ref: 0, UP: 1})').replace(", UP: 1", "")
HUGE = """
import pathlib
from machines.expr import Domain, Sort
from machines.rulebook import Actor, Rule, Rulebook, variable

cell = Sort("cell", 9)
n = variable("n", Domain(9), sort=cell)
A = Actor("a")
RULEBOOK = Rulebook("huge", [A], [], [cell], [n], [
    Rule("up", A, cell.n < 9, over=(cell.index,), then={cell.n: cell.n + 1}),
    Rule("down", A, cell.n > 0, over=(cell.index,), then={cell.n: cell.n - 1}),
])
pathlib.Path("imported").touch()
"""

HUGE_LIVE = HUGE.replace("Rulebook,", "LeadsTo, Rulebook,").replace(
    "\n])", '\n], properties=[LeadsTo("falls", "It falls.", when=cell.at(0).n == 9, then=cell.at(0).n == 0)])'
)

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Write:
    """Writes a module into the (then current) directory; the name that imports it is the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = re.sub(r"\W", "_", f"user_{request.node.name}")

    def write(source: str) -> str:
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        return name

    return write


def failed(capsys: pytest.CaptureFixture[str], args: list[str], expected: Exit) -> list[str]:
    """Run, expect a failure with this exit code, and return the lines on stderr."""
    assert run(args) is expected
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert "PROVED" not in out.replace("NOT PROVED", "")
    return err.splitlines()


# -- good input ------------------------------------------------------------------------------------------------------
def test_a_rulebook_in_the_current_directory(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    name = write(GOOD)
    assert run([f"{name}:RULEBOOK", "--engine", "python"]) is Exit.PROVED
    assert capsys.readouterr().out.splitlines()[-1].startswith("PROVED: 4 properties hold over 4 states of 1 run")


def test_scope(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    name = write(GOOD)
    assert run([f"{name}:RULEBOOK", "--scope", "top=9", "--engine", "python", "--quiet"]) is Exit.PROVED
    assert "10 states" in capsys.readouterr().out


def test_runs_and_reports(write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = write((HERE / "door.py").read_text(encoding="utf-8"))
    args = [f"{name}:RULEBOOK", "--engine", "python", "--json", "out.json", "--junit", "out.xml"]
    assert run(args) is Exit.PROVED
    data = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [r["name"] for r in data["runs"]] == ["small", "careless", "large"]
    assert ElementTree.parse(tmp_path / "out.xml").getroot().tag == "testsuites"
    capsys.readouterr()
    assert (
        run([f"{name}:RULEBOOK", "--run", "small", "--tier", "nightly", "--engine", "python", "--json"]) is Exit.PROVED
    )
    out, err = capsys.readouterr()
    assert json.loads(out)["selection"] == "part of the campaign"
    assert "coverage:" in err
    assert run([f"{name}:RULEBOOK", "--list"]) is Exit.PROVED
    assert "careless" in capsys.readouterr().out


def test_refuted(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    name = write((HERE / "door.py").read_text(encoding="utf-8"))
    assert run([f"{name}:RULEBOOK", "--scope", "manner=Careless", "--engine", "python"]) is Exit.REFUTED
    out = capsys.readouterr().out
    assert "2  slam" in out
    assert out.splitlines()[-2:] == ["REFUTED (exit 2)", "  run scope: violated: intact (2 steps)"]


def test_stop_ends_at_the_first_finding(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    name = write((HERE / "door.py").read_text(encoding="utf-8"))
    scope = ["--scope", "manner=Careless", "--scope", "size=3", "--no-liveness", "--engine", "python", "--json"]
    whole, stopped = (
        (run([f"{name}:RULEBOOK", *scope, *more]), json.loads(capsys.readouterr().out)["runs"][0])
        for more in ([], ["--stop"])
    )
    assert whole[0] is stopped[0] is Exit.REFUTED
    assert stopped[1]["states"] < whole[1]["states"]
    assert stopped[1]["stopped"] == "stopped at the first finding"


@needs_cc
def test_both_engines_say_the_same(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    name = write((HERE / "door.py").read_text(encoding="utf-8"))
    said = []
    for engine in ("c", "python"):
        assert run([f"{name}:RULEBOOK", "--tier", "nightly", "--engine", engine, "--json"]) is Exit.PROVED
        data = json.loads(capsys.readouterr().out)
        for r in data["runs"]:
            assert r.pop("engine") == engine
            for measured in ("seconds", "compile_seconds", "memory_mb"):
                r.pop(measured)
        said.append((data["runs"], data["properties"], data["coverage"]))
    assert said[0] == said[1]


# -- the rulebook ----------------------------------------------------------------------------------------------------
def test_a_wrong_rulebook_names_every_problem(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    source = GOOD.replace("count.ref <= 9", "count.ref.next <= 9").replace('Rule("reset", UP,', 'Rule("up", UP,')
    lines = failed(capsys, [f"{write(source)}:RULEBOOK"], Exit.BAD_RULEBOOK)
    assert lines == [
        "check-states: rulebook counter: rule up is declared 2 times",
        "check-states: rulebook counter: property small reads the next value of count; only step properties may",
    ]


def test_a_wrong_expression_says_where(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    name = write(GOOD.replace("count.ref < TOP.expr,", "count.ref < TOP.expr and count.ref < 9,"))
    (line,) = failed(capsys, [f"{name}:RULEBOOK"], Exit.BAD_RULEBOOK)
    assert "has no truth value while it is being built: use & | ~" in line
    assert re.search(r"\(.*\.py:\d+\)$", line)


def test_a_rulebook_that_is_wrong_in_one_scope_only(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    source = GOOD.replace("from machines.expr import", "from machines.expr import Sort,").replace(
        "[TOP], [], [count]", "[TOP], [cell], [count, n]"
    )
    source = source.replace("UP =", 'cell = Sort("cell", TOP.expr)\nn = variable("n", Domain(1), sort=cell)\nUP =')
    source = source.replace("holds=count.ref <= 9", "holds=cell.at(2).n == 0")
    name = write(source)
    assert run([f"{name}:RULEBOOK", "--engine", "python", "--quiet"]) is Exit.PROVED
    capsys.readouterr()
    (line,) = failed(capsys, [f"{name}:RULEBOOK", "--scope", "top=1"], Exit.BAD_RULEBOOK)
    assert line.endswith("in scope (top=1): cell.n: element 2 is out of range; the scope has 1")


# -- finding the rulebook --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("class Own(BaseException): pass\nraise Own('mine')", "Own: mine"),
    ],
)
def test_an_import_that_fails(write: Write, capsys: pytest.CaptureFixture[str], source: str, said: str) -> None:
    name = write(source)
    (line,) = failed(capsys, [f"{name}:RULEBOOK"], Exit.NOT_FOUND)
    assert line.startswith(f"check-states: cannot import {name}: {said}")


def test_no_such_module(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = failed(capsys, ["no_such_module:RULEBOOK"], Exit.NOT_FOUND)
    assert "cannot import no_such_module: ModuleNotFoundError" in line


def test_no_such_attribute(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    name = write(GOOD)
    (line,) = failed(capsys, [f"{name}:RULES"], Exit.NOT_FOUND)
    assert line == f"check-states: module {name} has no 'RULES'; its rulebooks are: RULEBOOK"


def test_not_a_rulebook(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    name = write(GOOD)
    (line,) = failed(capsys, [f"{name}:UP"], Exit.NOT_FOUND)
    assert line == f"check-states: {name}:UP is a Actor, not a Rulebook; its rulebooks are: RULEBOOK"


# -- usage -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--nonsense"], "--nonsense"),
        (["--engine", "fortran"], "'fortran' is not one of 'auto', 'c', 'python'"),
        (["--limit-seconds", "nan"], "nan is not a number of seconds"),
        (["--limit-seconds", "inf"], "inf is not a number of seconds"),
        (["--json", "-", "--junit", "-"], "cannot both have stdout"),
        (["--limit-states", "0"], "0 is not in the range x>=1"),
        (["--run", "x*"], "no run is named 'x*'; door has small, careless, large, huge"),
        (["--scope", "size"], "--scope 'size' is not K=V"),
        (["--scope", "floors=1"], "unknown parameter 'floors'; allowed are size, manner"),
        (["--scope", "size=7"], "size=7 is out of range; allowed are 1..3"),
        (["--scope", "size=two"], "size=two is not a number; allowed are 1..3"),
        (["--scope", "manner=Rude"], "manner=Rude: allowed are Careful, Careless"),
        (["--scope", "size=1", "--run", "small"], "--scope is a run of its own"),
        (["--no-liveness"], "--no-liveness belongs to --scope"),
        (["--json", "door:RULEBOOK"], "--json takes a FILE, and 'door:RULEBOOK' looks like a rulebook"),
    ],
)
def test_bad_usage(write: Write, capsys: pytest.CaptureFixture[str], args: list[str], said: str) -> None:
    name = write((HERE / "door.py").read_text(encoding="utf-8"))
    lines = failed(capsys, [f"{name}:RULEBOOK", *args], Exit.USAGE)
    assert said in " ".join(lines)
    assert len(lines) == 1


def test_a_target_without_a_colon(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = failed(capsys, ["examples.two_phase_commit"], Exit.USAGE)
    assert "'examples.two_phase_commit' is not MODULE:RULEBOOK, such as machines.protocol:RULEBOOK" in line


class Policy(State):
    Exit, Rebuild = range(2)


def test_scope_values() -> None:
    params = [Param("policy", Policy.Exit, choices=Policy), Param("flag", 0), Param("jobs", 1, 1, 3)]
    assert parse_scope(params, ["policy=Rebuild", "flag=true", "jobs=2"]) == {"policy": 1, "flag": 1, "jobs": 2}
    assert parse_scope(params, ["flag=False"]) == {"flag": 0}
    for policy in ("policy=rebuild", "policy=REBUILD", "policy=1"):
        assert parse_scope(params, [policy]) == {"policy": 1}
    for wrong in ("jobs=true", "policy=2", "policy=build"):
        with pytest.raises(click.UsageError):
            parse_scope(params, [wrong])


# -- limits, engines, reports ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("engine", ["python", pytest.param("c", marks=needs_cc)])
@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (["--limit-states", "2000"], "limit of 2,000 states"),
        (["--limit-seconds", "0.2"], "limit of 0.2 s"),
        (["--limit-memory-mb", "1"], "limit of 1 MB"),
    ],
)
def test_limits(write: Write, capsys: pytest.CaptureFixture[str], engine: str, limit: list[str], said: str) -> None:
    name = write(HUGE)
    assert run([f"{name}:RULEBOOK", "--engine", engine, *limit]) is Exit.UNDETERMINED
    out = capsys.readouterr().out
    assert "UNDETERMINED (exit 3)" in out
    assert f"  run default: {said}" in out
    assert "PROVED" not in out


def test_a_demanded_c_engine_without_a_compiler(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    (line,) = failed(capsys, [f"{write(GOOD)}:RULEBOOK", "--engine", "c", "--quiet"], Exit.NO_ENGINE)
    assert "no C compiler: 'no-such-compiler' is not on PATH" in line


def test_a_compiler_that_fails(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'error: no room on the disk' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    name = write(GOOD)
    (line,) = failed(capsys, [f"{name}:RULEBOOK", "--engine", "c", "--quiet"], Exit.NO_ENGINE)
    assert line.endswith("broken-cc failed: error: no room on the disk")
    for quiet in ([], ["--quiet"]):
        assert run([f"{name}:RULEBOOK", *quiet]) is Exit.PROVED
        assert "note: the Python engine ran, because there is no C engine" in capsys.readouterr().out


def test_a_report_that_cannot_be_written(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    args = [f"{write(GOOD)}:RULEBOOK", "--engine", "python", "--quiet", "--junit", "no/such/folder/out.xml"]
    assert run(args) is Exit.NOT_WRITTEN
    assert capsys.readouterr().err == "check-states: cannot write no/such/folder/out.xml: No such file or directory\n"


def test_memory_exhausted_before_any_run(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*args: Any, **more: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(checker.cli, "plan_campaign", no_memory)
    lines = failed(capsys, [f"{write(GOOD)}:RULEBOOK"], Exit.UNDETERMINED)
    assert lines == ["check-states: UNDETERMINED: memory exhausted"]


def test_an_interrupted_import_is_no_missing_module(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    lines = failed(capsys, [f"{write('raise KeyboardInterrupt')}:RULEBOOK"], Exit.INTERRUPTED)
    assert lines[-1] == "check-states: interrupted: nothing is proved"


def test_a_function_of_the_users_that_raises(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    source = (
        SMALL_MACHINE.replace("import Domain, Param", "import Domain, Map, Param, Sort")
        .replace(
            "UP =",
            'cell = Sort("cell", 1)\nn = variable("n", Domain(1), sort=cell)\n'
            'bad = Map("bad", cell, cell, lambda i, v: {}["gone"])\nUP =',
        )
        .replace("[], [count]", "[cell], [count, n]")
        .replace("RESET", 'Rule("r", UP, bad.of().n == 0, over=(cell.index,), then={count.ref: 0})],\n    maps=[bad')
    )
    (line,) = failed(capsys, [f"{write(source)}:RULEBOOK"], Exit.BAD_RULEBOOK)
    assert "KeyError: 'gone'" in line


def test_whatever_is_raised_while_a_run_is_built(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checker.campaign, "build", lambda scope: {}["gone"])
    (line,) = failed(capsys, [f"{write(GOOD)}:RULEBOOK"], Exit.BAD_RULEBOOK)
    assert line == "check-states: rulebook counter in run default: it cannot be built: KeyError: 'gone'"


def test_junit_to_stdout_is_well_formed_whatever_the_names(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    name = write(GOOD.replace("It stays small.", r"It \x01 stays <small>."))
    assert run([f"{name}:RULEBOOK", "--engine", "python", "--limit-states", "1", "--junit", "-"]) is Exit.UNDETERMINED
    out, err = capsys.readouterr()
    said = [e.text for e in ElementTree.fromstring(out.encode()).iter("error")]
    assert "It \ufffd stays <small>." in said
    assert "UNDETERMINED (exit 3)" in err


# -- streams, in a process of its own --------------------------------------------------------------------------------
def in_shell(folder: Path, redirected: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -m checker "$@" {redirected}', sys.executable, *args],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("redirected", "args", "said"),
    [
        (">/dev/full", [], "cannot write: [Errno 28] No space left on device"),
        (">/dev/full", ["--json"], "cannot write: [Errno 28] No space left on device"),
        (">/dev/full", ["--help"], "cannot write: [Errno 28] No space left on device"),
        (">&-", [], "cannot write: stdout is closed"),
    ],
)
def test_a_stdout_that_takes_nothing(tmp_path: Path, redirected: str, args: list[str], said: str) -> None:
    (tmp_path / "good.py").write_text(GOOD, encoding="utf-8")
    done = in_shell(tmp_path, redirected, "good:RULEBOOK", "--engine", "python", "--quiet", *args)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (Exit.NOT_WRITTEN, f"check-states: {said}")
    assert "Traceback" not in done.stderr


def test_a_reader_that_left_is_no_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD, encoding="utf-8")
    read, write_ = os.pipe()
    os.close(read)
    try:
        args = [sys.executable, "-m", "checker", "good:RULEBOOK", "--list"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(args, cwd=tmp_path, env=environment, stdout=write_, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write_)
    assert (done.returncode, done.stderr) == (Exit.NOT_WRITTEN, b"")


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/null"])
def test_without_stderr_the_verdict_is_the_same(tmp_path: Path, redirected: str) -> None:
    (tmp_path / "good.py").write_text(GOOD, encoding="utf-8")
    done = in_shell(tmp_path, redirected, "good:RULEBOOK", "--engine", "python")
    assert done.returncode == Exit.PROVED
    assert "PROVED" in done.stdout


def test_a_terminal_without_the_letters(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD.replace("It stays", "Größe stays"), encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = in_shell(tmp_path, "", "good:RULEBOOK", "--engine", "python", **ascii_only)
    assert (done.returncode, "Gr??e stays" in done.stdout) == (Exit.PROVED, True)
    done = in_shell(tmp_path, "", "good:RULEBOOK", "--engine", "python", "--json", **ascii_only)
    assert "Größe stays small." in [p["sentence"] for p in json.loads(done.stdout)["properties"]]


def test_ctrl_c_before_anything_is_imported(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    done = in_shell(tmp_path, "", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, f"check-states: {Exit.INTERRUPTED.about}\n")


# -- Ctrl-C, in a process of its own ---------------------------------------------------------------------------------
def processes_below(folder: Path) -> list[str]:
    """Programs that run from below this folder."""
    found = []
    for link in Path("/proc").glob("[0-9]*/exe"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


@pytest.mark.skipif(not Path("/proc/self/exe").exists(), reason="needs /proc to see child processes")
@pytest.mark.parametrize("engine", ["python", pytest.param("c", marks=needs_cc), pytest.param("graph", marks=needs_cc)])
@pytest.mark.parametrize(
    ("sent", "exit_", "said"),
    [
        (signal.SIGINT, Exit.INTERRUPTED, "interrupted: nothing is proved"),
        (signal.SIGTERM, Exit.TERMINATED, "terminated: nothing is proved"),
    ],
)
def test_ctrl_c_and_sigterm(tmp_path: Path, engine: str, sent: signal.Signals, exit_: Exit, said: str) -> None:
    (tmp_path / "huge.py").write_text(HUGE if engine != "graph" else HUGE_LIVE, encoding="utf-8")
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-m", "checker", "huge:RULEBOOK", "--engine", "python" if engine == "python" else "c"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache), "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: (tmp_path / "imported").exists(), child)
        if engine != "python":
            until(lambda: any("calexec" in p and "new-" not in p for p in processes_below(cache)), child)
        time.sleep(0.5)
        assert bool(list(temporary.iterdir())) is (engine == "graph")
        child.send_signal(sent)
        out, err = child.communicate(timeout=30)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == exit_
    assert err.splitlines()[-1] == f"check-states: {said}"
    assert list(temporary.iterdir()) == []
    assert "Traceback" not in out + err
    assert "PROVED" not in out
    assert processes_below(cache) == []


def test_sigterm_while_the_compiler_hangs(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD, encoding="utf-8")
    hanging = tmp_path / "cc"
    hanging.write_text('#!/bin/sh\ncase "$1" in --version) exit;; esac\ntouch compiling; sleep 88\n')
    hanging.chmod(0o755)
    cache = tmp_path / "cache"
    child = subprocess.Popen(
        [sys.executable, "-m", "checker", "good:RULEBOOK"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache), "CC": str(hanging)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: (tmp_path / "compiling").exists(), child)
        child.terminate()
        _, err = child.communicate(timeout=20)
    finally:
        child.kill()
        child.communicate()
    assert (child.returncode, err.splitlines()[-1]) == (143, "check-states: terminated: nothing is proved")
    assert list((cache / "calexec").iterdir()) == []


def until(condition: Callable[[], bool], child: subprocess.Popen[str], seconds: float = 60.0) -> None:
    """Wait for the condition, as long as the child goes on."""
    end = time.monotonic() + seconds
    while not condition():
        assert child.poll() is None, f"it ended by itself: {child.communicate()}"
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


# -- help and docs ---------------------------------------------------------------------------------------------------
def test_help_names_every_option_example_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) is Exit.PROVED
    out = capsys.readouterr().out
    for code in Exit:
        assert f"{code.value:<4} {code.about}" in out
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.opts[-1] in out
    assert "check-states my_package.my_module:RULEBOOK" in out


def examples() -> list[str]:
    """The command lines of the help and of the document, without what they are good for."""
    text = (ROOT / "docs" / "check-states.md").read_text(encoding="utf-8")
    lines = [line.strip() for line in (EPILOG + text.split("```")[1]).splitlines()]
    found = [re.split(r"  +", line)[0] for line in lines if line.startswith("check-states")]
    return [example for example in found if " replay " not in example]  # another command's


@pytest.mark.parametrize("example", sorted(set(examples())))
def test_the_documented_examples_select_something(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is parsed and its runs are selected; nothing is searched."""
    monkeypatch.setattr(checker.campaign, "_task", lambda book, r: checker.campaign.Task(r, None))  # type: ignore[arg-type]
    args = [a.replace("my_package.my_module", "examples.two_phase_commit") for a in shlex.split(example)[1:]]
    given = command.make_context("check-states", args).params
    plan = _plan(load(given["target"]), given["scope"], given["runs"], given["tier"], given["no_liveness"])
    assert plan.tasks


def test_the_check_of_the_examples_finds_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(examples()) >= 10
    with pytest.raises(
        click.UsageError, match=r"^no run is named 'exit-\*'; the nearest of the \d+ of calexec are"
    ) as e:
        _plan(load("machines.protocol:RULEBOOK"), (), ("exit-*",), "fast", False)
    assert "exit 1 job" in str(e.value)
    assert str(e.value).count(",") == 7


def test_the_documented_exit_codes_are_those_of_the_command() -> None:
    text = (ROOT / "docs" / "check-states.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| (\d+) \| (.*) \|$", text, flags=re.MULTILINE)
    assert documented == [(str(e.value), e.about) for e in Exit]
    assert exits.table() in EPILOG


def test_exit_codes_of_verdicts() -> None:
    assert {v.name: v.exit_code for v in Verdict} == {"PROVED": 0, "REFUTED": 2, "UNDETERMINED": 3}
    assert all(Exit[v.name] == v.exit_code for v in Verdict)
    assert len({e.value for e in Exit}) == len(Exit)


def test_a_rule_whose_name_has_two_lines(write: Write) -> None:
    name = write(GOOD.replace('Rule("up"', r'''Rule("up\n x'\""'''))
    assert run([f"{name}:RULEBOOK", "--engine", "python", "--quiet"]) is Exit.PROVED
