"""The C engine beyond what it finds: limits, variants, packing, its cache, and what can go wrong around it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve

from checker import native
from checker.codegen import CodegenError, Layout
from checker.explore import explore
from checker.model import Instance, Model, build
from checker.native import CompilerError, NativeError, Program
from checker.result import Limits, Progress
from examples import two_phase_commit
from machines.expr import TRUE, Domain, Param, Sort
from machines.rulebook import Actor, Invariant, Rule, Rulebook, variable
from tests.checker.test_engines_agree import differences

PEOPLE = Actor("people")


def commit(managers: int) -> Model:
    return build(two_phase_commit.RULEBOOK.scope({"managers": managers}))


@pytest.fixture(scope="module")
def large() -> Program:
    """1,745,408 states: long enough to be disturbed."""
    return Program(commit(8))


def chain(hi: int = 65535, length: int = 12) -> Rulebook:
    """Wide counters, each of which moves once the one before it has: long states, few of them. The last rule leaves the
    range of a variable that has only one value."""
    lengths = Param("length", length, 1, 40)
    link = Sort("link", lengths.expr)
    variables = [
        variable("x", Domain(hi), hi - 2, sort=link),
        variable("none", Domain(0)),
        variable("done", Domain.boolean()),
    ]
    none, done = variables[1].ref, variables[2].ref
    return Rulebook(
        "chain",
        [PEOPLE],
        [lengths],
        [link],
        variables,
        [
            Rule("first", PEOPLE, link.at(0).x < hi, then={link.at(0).x: link.at(0).x + 1}),
            *(
                Rule(f"link{n}", PEOPLE, (before == hi) & (x < hi), then={x: x + 1})
                for n, before, x in ((n, link.at(n - 1).x, link.at(n).x) for n in range(1, length))
            ),
            Rule("end", PEOPLE, link.at(length - 1).x == hi, then={done: True, none: none + 0}),
            Rule("leave", PEOPLE, done, then={none: none + 1}),
        ],
        properties=[Invariant("late", "The last has not moved", holds=link.at(length - 1).x < hi)],
        legal_end=TRUE,
    )


# -- packing --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("length", [1, 3, 4, 12])
def test_states_of_any_width_and_variables_of_one_value(length: int) -> None:
    model = build(chain(length=length).scope())
    program = Program(model, flags=("-O0",))
    assert program.layout.words == 1 + (length * 16 + 1 > 63) + (length >= 8) + (length >= 12)
    ours, theirs = explore(model), program.explore()
    assert differences(ours, theirs) == []
    assert ours.states == 2 * length + 2
    assert ours.findings["range"].detail == "none leaves 0..0: 1"


def test_a_slot_is_packed_where_it_fits() -> None:
    layout = Layout.of(build(chain(length=4).scope()).slots)
    assert [(f.word, f.shift, f.bits) for f in layout.fields] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 16), (0, 17, 16), (0, 33, 16), (1, 0, 16),
    ]  # fmt: skip


def test_a_variable_that_is_too_wide_is_named() -> None:
    with pytest.raises(CodegenError, match=r"variable link0\.x has range 0\.\.65536; allowed are 0\.\.65535 at most"):
        Layout.of([evolve(slot, hi=65536) for slot in build(chain(hi=2, length=1).scope()).slots[-1:]])


def test_reachable_states_are_those_of_the_reference_engine() -> None:
    model = commit(3)
    program = Program(model)
    order: list[tuple[int, ...]] = []
    explore(model, order=order)
    keys = program.reachable()
    assert sorted(map(tuple, program.unpack(keys).tolist())) == sorted(order)
    assert keys.tolist() == sorted(keys.tolist())


# -- limits ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("states", [1, 7, 100, 287, 288])
def test_limit_on_states_stops_where_the_reference_engine_stops(states: int) -> None:
    limits = Limits(states=states)
    ours, theirs = explore(commit(3), limits=limits), Program(commit(3)).explore(limits=limits)
    assert differences(ours, theirs) == []
    assert theirs.complete == (states == 288)


def test_limit_on_time(large: Program) -> None:
    result = large.explore(limits=Limits(seconds=0.01))
    assert (result.complete, result.stopped) == (False, "limit of 0.01 s")
    assert result.states < 1_745_408


def test_limit_on_memory_is_never_passed(large: Program) -> None:
    result = large.explore(limits=Limits(memory_mb=5))
    assert (result.complete, result.stopped) == (False, "limit of 5 MB")
    assert 1 < result.memory_mb <= 5
    assert result.states < 1_745_408


def test_no_room_for_the_first_state(large: Program) -> None:
    tiny = evolve(Limits(), memory_mb=0)
    result = large.explore(limits=tiny)
    assert (result.complete, result.stopped) == (False, "limit of 0 MB")


def test_stop_at_first_agrees() -> None:
    model = build(chain().scope())
    ours, theirs = explore(model, stop_at_first=True), Program(model).explore(stop_at_first=True)
    assert differences(ours, theirs) == []
    assert theirs.stopped == "stopped at the first finding"
    assert list(theirs.findings) == ["late"]


def test_without_traces_the_findings_are_the_same() -> None:
    program = Program(build(chain().scope()))
    bare, full = program.explore(traces=False), program.explore()
    assert {(f.prop, f.detail) for f in bare.findings.values()} == {(f.prop, f.detail) for f in full.findings.values()}
    assert all(f.trace == () for f in bare.findings.values())


def test_progress_is_told_while_it_runs(large: Program) -> None:
    told: list[Progress] = []
    result = large.explore(progress=told.append)
    # The counts of an earlier table, which was copied when it grew, not doubled in place.
    assert (result.states, result.transitions, result.depth) == (1_745_408, 18_507_777, 25)
    assert told[0].states == 1
    assert told == sorted(told, key=lambda p: (p.seconds, p.states))
    assert all(p.states <= result.states and p.memory_mb <= result.memory_mb for p in told)


# -- variants -------------------------------------------------------------------------------------------------------
def weakened(model: Model) -> list[Instance]:
    """Each instance with its guard gone, then each with its updates gone."""
    return [evolve(i, guard=TRUE) for i in model.instances] + [evolve(i, updates=()) for i in model.instances]


def replaced(model: Model, inst: Instance) -> Model:
    return evolve(model, instances=tuple(inst if i.number == inst.number else i for i in model.instances))


def test_variants_equal_models_built_apart() -> None:
    """One compilation; each variant explores as the model that has it, and the model itself stays as it was."""
    model = commit(2)
    mutants = weakened(model)
    program = Program(model, [{m.number: m} for m in mutants])
    assert differences(explore(model), program.explore()) == []
    changed = 0
    for k, mutant in enumerate(mutants):
        apart = replaced(model, mutant)
        ours, theirs = explore(apart), program.explore(variant=k)
        assert differences(ours, theirs) == []
        order: list[tuple[int, ...]] = []
        explore(apart, order=order)
        assert program.unpack(program.reachable(k)).tolist() == sorted(map(list, order), key=program.layout.pack)
        changed += not np.array_equal(program.reachable(k), program.reachable())
    assert 0 < changed < len(mutants)


def test_whole_models_as_variants() -> None:
    model = commit(2)
    mutants = [replaced(model, m) for m in weakened(model)[:3]]
    program = Program(model, mutants)
    for k, mutant in enumerate(mutants):
        assert differences(explore(mutant), program.explore(variant=k)) == []


def test_reachable_sets_can_be_compared_only_when_complete(large: Program) -> None:
    with pytest.raises(NativeError, match=r"the reachable states are not all known: limit of 100 states"):
        large.reachable(limits=Limits(states=100))


def test_variants_that_are_none_are_refused() -> None:
    model = commit(2)
    with pytest.raises(CodegenError, match=r"variant 0 replaces instance 1 by number 0; allowed are equal numbers"):
        Program(model, [{1: model.instances[0]}])
    with pytest.raises(CodegenError, match=r"variant 0 has other variables than the model"):
        Program(model, [commit(3)])
    with pytest.raises(NativeError, match=r"there is no variant 3; the program has 0"):
        Program(model).explore(variant=3)


# -- the compiler and the cache -------------------------------------------------------------------------------------
@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "calexec"


def script(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompilerError, match=r"^no C compiler: 'no-such-compiler' is not on PATH; install one"):
        Program(commit(1))


def test_a_compiler_that_fails_is_quoted_in_one_line(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaint = 'echo "In file x:" >&2; echo "model.c:1: error: no such thing" >&2; echo "more" >&2; exit 1'
    monkeypatch.setenv("CC", script(tmp_path / "cc", complaint))
    with pytest.raises(CompilerError) as e:
        Program(commit(1))
    assert str(e.value) == f"{tmp_path / 'cc'} failed: model.c:1: error: no such thing"
    assert list(empty_cache.iterdir()) == []


def test_cc_that_is_no_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc '")
    with pytest.raises(CompilerError, match=r"^CC=gcc ' is not a command: no closing quotation$"):
        Program(commit(1))


def test_a_complaint_that_is_no_text(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", script(tmp_path / "cc", "printf 'error: \\377\\376\\n' >&2; printf '\\377'; exit 1"))
    with pytest.raises(CompilerError, match=r"failed: error: \ufffd\ufffd$"):
        Program(commit(1))


def test_a_compiler_that_hangs_is_ended_with_its_children(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'case "$1" in --version) exit;; esac\nsleep 77 & echo $! >{tmp_path}/pid; wait'
    monkeypatch.setenv("CC", script(tmp_path / "cc", text))
    monkeypatch.setattr(native, "COMPILE_SECONDS", 1.0)
    with pytest.raises(CompilerError, match=r"cc did not end within 1 s$"):
        Program(commit(1))
    assert list(empty_cache.iterdir()) == []
    assert ended(int((tmp_path / "pid").read_text()))


def ended(pid: int, seconds: float = 10.0) -> bool:
    """Whether the process ends within the time; a zombie that nobody waits for has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_a_killed_compiler_is_named(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", script(tmp_path / "cc", "kill -9 $$"))
    with pytest.raises(CompilerError, match=r"cc failed: ended by SIGKILL$"):
        Program(commit(1))


@pytest.mark.parametrize(
    "printed", ["hello", "finding 1 2", "progress 1", "done 1 1 1 1.0", "done 1 1 1 1.0 1 maybe", "\\377\\376", "\\n"]
)
def test_a_program_that_prints_nonsense(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    program = f"#!/bin/sh\nprintf '{printed} x\\n'\n"
    (tmp_path / "program").write_text(program)
    cc = f'while [ $# -gt 1 ]; do [ "$1" = -o ] && cp {tmp_path}/program "$2" && chmod +x "$2"; shift; done; exit 0'
    monkeypatch.setenv("CC", script(tmp_path / "cc", cc))
    with pytest.raises(NativeError, match=r"^the C engine printed what is none of its lines: "):
        Program(commit(1)).explore()


def test_what_killed_compilations_left_is_removed_when_it_is_old(empty_cache: Path) -> None:
    for name, age in (("new-old", 2 * native.STALE_SECONDS), ("new-young", 0.0)):
        (empty_cache / name).mkdir(parents=True)
        (empty_cache / name / "model.c").write_text("")
        os.utime(empty_cache / name, (time.time() - age,) * 2)
    program = Program(commit(1), flags=("-O0",))
    assert set(empty_cache.iterdir()) == {program.path, empty_cache / "new-young"}


def test_a_compiled_program_is_kept(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Program(commit(1), flags=("-O0",))
    monkeypatch.setattr(native, "_compile", lambda *_: pytest.fail("compiled again"))
    assert Program(commit(1), flags=("-O0",)).path == first.path
    assert list(empty_cache.iterdir()) == [first.path]


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\necho done 1 1 1 1 1 -\n"])
def test_a_damaged_program_is_made_anew(empty_cache: Path, content: bytes) -> None:
    first = Program(commit(1), flags=("-O0",))
    first.path.write_bytes(content)
    again = Program(commit(1), flags=("-O0",))
    assert again.explore().states == explore(commit(1)).states
    assert again.path.read_bytes() != content


def test_a_removed_program_is_made_anew(empty_cache: Path) -> None:
    program = Program(commit(1), flags=("-O0",))
    program.path.unlink()
    assert program.explore().states == explore(commit(1)).states


def test_the_cache_is_bounded(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [Program(commit(n), flags=("-O0",)) for n in (1, 2)]
    monkeypatch.setattr(native, "CACHE_MB", (programs[0].path.stat().st_size * 5 // 2) / native.MEGABYTE)
    os.utime(programs[1].path, (1, 1))  # used longest ago
    newest = Program(commit(3), flags=("-O0",))
    assert set(empty_cache.iterdir()) == {programs[0].path, newest.path}


def test_two_compile_at_once(empty_cache: Path) -> None:
    programs: list[Program] = []
    threads = [threading.Thread(target=lambda: programs.append(Program(commit(1), flags=("-O0",)))) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {p.explore().states for p in programs} == {explore(commit(1)).states}


def test_no_place_for_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(NativeError, match=r"^cannot keep compiled programs in .*: Not a directory$"):
        Program(commit(1))


# -- the child ------------------------------------------------------------------------------------------------------
@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Every program that is started."""
    started: list[subprocess.Popen[str]] = []
    real = Program._spawn

    def spawn(self: Program, ask: native._Ask) -> subprocess.Popen[str]:
        started.append(real(self, ask))
        return started[-1]

    monkeypatch.setattr(Program, "_spawn", spawn)
    return started


def test_a_killed_child_is_undetermined(large: Program, children: list[subprocess.Popen[str]]) -> None:
    result = large.explore(progress=lambda _: children[-1].kill())
    assert (result.complete, result.stopped) == (False, "the C engine was killed by SIGKILL")
    assert result.findings == {}


def test_a_crash_is_one_line(large: Program, children: list[subprocess.Popen[str]]) -> None:
    with pytest.raises(NativeError, match=r"^the C engine was ended by SIGSEGV: no reason given$"):
        large.explore(progress=lambda _: children[-1].send_signal(signal.SIGSEGV))


def test_when_we_are_interrupted_the_child_ends(large: Program, children: list[subprocess.Popen[str]]) -> None:
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        large.explore(progress=interrupt)
    assert children[-1].returncode == -signal.SIGKILL


def test_no_place_for_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(commit(2))
    real = native._Ask.arguments
    monkeypatch.setattr(native._Ask, "arguments", lambda ask: [*real(ask)[:-1], "/no/such/place"])
    with pytest.raises(NativeError, match=r"^the C engine ended with exit code 70: cannot create a file for the graph"):
        program.graph()


ORPHAN = """
import sys
from checker.native import Program
from tests.checker.test_native import commit
program, real = Program(commit(8)), Program._spawn
def spawn(self, ask):
    child = real(self, ask)
    print(child.pid, flush=True)
    return child
Program._spawn = spawn
while True:
    program.explore(traces=False)
"""


def test_no_orphan_when_we_are_killed(large: Program) -> None:
    """We are killed without a chance to end the child: it ends by itself, since nobody reads its progress."""
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as us:
        assert us.stdout is not None
        pid = int(us.stdout.readline())
        us.kill()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} is still there")
