"""The C engine: a model compiled to a program of its own, run as a child process. Same meaning as `checker.explore`.

Theory. `Program(model)` writes C (`codegen`), compiles it with the system's compiler and keeps the result in a cache,
keyed by everything that went into it. `explore` runs the program; it explores without remembering parents, and only
when it found something runs again, as far as the last finding, to get the traces. The program is a child process:
whatever happens to it (killed, out of memory) ends in an `Exploration` that says it is not complete, or in a
`NativeError`; it never outlives us, since it ends as soon as nobody reads its progress.

    result = Program(model).explore(limits=Limits(memory_mb=4000))
    mutants = Program(model, variants=[{7: weaker}, ...])   # one compilation
    mutants.explore(variant=0)
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, evolve, field, frozen

from checker import codegen
from checker.codegen import NO_INSTANCE, CodegenError, NativeError, Variant
from checker.graph import Array, Graph
from checker.model import Model, StateTuple
from checker.result import Exploration, Finding, Limits, Progress, ProgressCallback, TraceStep

__all__ = ["CodegenError", "CompilerError", "NativeError", "Program", "Variant", "compiler", "explore"]

FLAGS = ("-O1",)  # measured on the protocol: -O2 takes twice as long to compile and searches no faster
CACHE_MB = 256
COMPILE_SECONDS = 120.0  # a compiler that takes longer hangs: the protocol takes a few seconds
STALE_SECONDS = 3600.0  # what a killed compilation left in the cache is nobody's after that
MEGABYTE = 1_000_000
NO_LIMIT = 2**63
PLAIN, TRACE, DUMP, GRAPH = range(4)  # search.c's modes
STOPS = ("-", "first", "states", "seconds", "memory", "exhausted", "numbers")  # why search.c ends


class CompilerError(NativeError):
    """There is no C compiler, or it failed: one line with its first complaint."""


# -- compiling ----------------------------------------------------------------------------------------------------
def compiler() -> list[str]:
    """The C compiler's command: $CC, or cc. Raises CompilerError when there is none."""
    try:
        command = shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError as e:
        raise CompilerError(f"CC={os.environ['CC']} is not a command: {str(e).lower()}") from e
    if shutil.which(command[0]) is None:
        name = repr(command[0])
        raise CompilerError(f"no C compiler: {name} is not on PATH; install one, set CC, or use the Python engine")
    return command


@functools.lru_cache(maxsize=8)
def _compiler_version(command: tuple[str, ...]) -> str:
    return _call([*command, "--version"])[1]


def _call(command: Sequence[str]) -> tuple[int, str, str]:
    """Run the compiler to its end: exit code, stdout, stderr. Raises CompilerError when it does not end."""
    try:
        started = _start(command)
    except OSError as e:
        raise CompilerError(f"cannot run {command[0]}: {e.strerror}") from e
    with _to_its_end(started) as child:
        try:
            out, err = child.communicate(timeout=COMPILE_SECONDS)
        except subprocess.TimeoutExpired as e:
            raise CompilerError(f"{command[0]} did not end within {COMPILE_SECONDS:g} s") from e
    return child.returncode, out, err


def cache_directory() -> Path:
    """Where compiled programs are kept: `calexec` under $XDG_CACHE_HOME or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "calexec"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _compiled(source: str, flags: Sequence[str]) -> Path:
    """The program's file, from the cache or new. Its name holds the key and the content's digest: a file whose content
    does not match its name is not used but made anew."""
    command = compiler()
    identity = "\0".join([source, *command, *flags, _compiler_version(tuple(command))])
    key = _digest(identity.encode())
    directory = cache_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob(f"{key}-*"):
            if path.name == f"{key}-{_digest(path.read_bytes())}":
                os.utime(path)
                return path
            path.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix="new-") as scratch:
            made = _compile(source, [*command, *flags], Path(scratch))
            final = directory / f"{key}-{_digest(made.read_bytes())}"
            os.replace(made, final)  # atomic: another process sees all of it or nothing
    except OSError as e:
        raise NativeError(f"cannot keep compiled programs in {directory}: {e.strerror or e}") from e
    _bound_cache(directory, keep=final)
    return final


def _compile(source: str, command: list[str], scratch: Path) -> Path:
    text, made = scratch / "model.c", scratch / "model"
    text.write_text(source, encoding="utf-8")
    command = [*command, "-std=gnu11", "-w", "-o", str(made), str(text)]
    code, _, complaint = _call(command)
    if code or not made.exists():
        lines = [line for line in complaint.splitlines() if line.strip()]
        ended = f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
        first = next((line for line in lines if "error" in line), lines[0] if lines else ended)
        raise CompilerError(f"{command[0]} failed: {first.replace(str(text), 'model.c').strip()}")
    return made


def _bound_cache(directory: Path, keep: Path) -> None:
    """Remove what killed compilations left, and the programs that were not used for longest while the cache is too
    large."""
    for left in directory.glob("new-*"):
        with suppress(OSError):  # another process removed it
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left)
    files = []
    for path in directory.glob("*-*"):
        try:
            if path.is_file() and path != keep:
                files.append((path.stat().st_mtime, path.stat().st_size, path))
        except FileNotFoundError:
            continue  # another process removed it
    room = CACHE_MB * MEGABYTE - keep.stat().st_size
    for _, size, path in sorted(files, reverse=True):
        room -= size
        if room < 0:
            path.unlink(missing_ok=True)


# -- children -----------------------------------------------------------------------------------------------------
_children: set[subprocess.Popen[str]] = set()


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    """Its own process group: Ctrl-C reaches us, and we end it."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        process_group=0,
    )


@contextmanager
def _to_its_end(started: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """The running child; killed with all that it started when we leave early."""
    with started as child:
        _children.add(child)
        try:
            yield child
        finally:
            _kill(child)
            _children.discard(child)


def _kill(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:  # once it was waited for, the number may be another process's
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def end_children() -> None:
    """Kill every compiler and engine that runs now. The threads that wait for them go on, with an error."""
    for child in list(_children):
        _kill(child)


# -- running ------------------------------------------------------------------------------------------------------
@frozen
class _Ask:
    """One run of the program."""

    mode: int
    variant: int | None
    limits: Limits
    stop_at_first: bool = False
    expansions: int = NO_LIMIT
    directory: str = ""

    def arguments(self) -> list[str]:
        bound = self.limits
        return [
            str(self.mode),
            str(0 if self.variant is None else self.variant + 1),
            str(NO_LIMIT if bound.states is None else bound.states),
            str(-1.0 if bound.seconds is None else bound.seconds),
            str(0 if bound.memory_mb is None else max(1, bound.memory_mb * MEGABYTE)),
            str(int(self.stop_at_first)),
            str(self.expansions),
            self.directory,
        ]


@frozen
class _Found:
    """A finding as the program reports it: property number, kind, two numbers that depend on the kind, the instance
    that fired (-1 when the state itself is wrong), the number of the state."""

    prop: int
    kind: int
    index: int
    value: int
    instance: int
    at: int


@define
class _Answer:
    """What one run printed. numbers: its lists, by their first word; done: states, transitions, depth, seconds, bytes,
    which limit was hit; last: the last progress line; killed: how it was ended, if it was."""

    found: list[_Found] = field(factory=list)
    traces: dict[int, list[int]] = field(factory=dict)
    numbers: dict[str, list[int]] = field(factory=dict)
    done: list[str] = field(factory=list)
    last: Progress = field(factory=lambda: Progress(0, 0, 0, 0, 0.0, 0.0))
    killed: str = ""

    @property
    def seconds(self) -> float:
        return float(self.done[3]) if self.done else self.last.seconds

    @property
    def peak_mb(self) -> float:
        return int(self.done[4]) / MEGABYTE if self.done else self.last.memory_mb

    def stopped(self, limits: Limits) -> str:
        """Why the run is not complete; empty when it is."""
        if not self.done:
            return self.killed
        return {
            "-": "",
            "first": "stopped at the first finding",
            "states": f"limit of {limits.states:,} states" if limits.states is not None else "",
            "seconds": f"limit of {limits.seconds:g} s" if limits.seconds is not None else "",
            "memory": f"limit of {limits.memory_mb} MB",
            "exhausted": f"no more memory after {self.peak_mb:.0f} MB",
            "numbers": "limit of 4,294,967,295 numbered states",
        }[self.done[5]]


def _read(lines: Iterable[str], progress: ProgressCallback | None) -> _Answer:
    """Read what the program prints, until it ends."""
    answer = _Answer()
    for line in lines:
        before = answer.last
        try:
            _read_line(answer, line)
        except (ValueError, TypeError, IndexError) as e:
            raise NativeError(f"the C engine printed what is none of its lines: {line.strip()[:60]!r}") from e
        if progress and answer.last is not before:
            progress(answer.last)
    return answer


def _read_line(answer: _Answer, line: str) -> None:
    word, *rest = line.split()
    match word:
        case "progress":
            level, states, frontier, transitions = map(int, rest[:4])
            answer.last = Progress(level, states, frontier, transitions, float(rest[4]), int(rest[5]) / MEGABYTE)
        case "finding":
            answer.found.append(_Found(*map(int, rest)))
        case "trace":
            answer.traces[int(rest[0])] = [int(n) for n in rest[1:]]
        case "done":
            _, _, _, _, _ = *map(int, rest[:3]), float(rest[3]), int(rest[4])
            if rest[5] not in STOPS:
                raise ValueError(line)
            answer.done = rest
        case _:
            answer.numbers[word] = [int(n) for n in rest]


class Program:
    """A model, and variants of it, as one compiled program. Raises NativeError (CompilerError, CodegenError).

    variants: each says which instances are replaced (number -> instance), or is a whole model with the same variables
    and instances. A mapping leaves receptiveness as it is in the model; a whole model brings its own.
    """

    def __init__(self, model: Model, variants: Sequence[Variant] = (), *, flags: Sequence[str] = FLAGS) -> None:
        started = time.monotonic()
        self.model, self.variants, self.flags = model, tuple(variants), tuple(flags)
        self.layout = codegen.Layout.of(model.slots)
        self._props = codegen.property_ids(model)
        self._source = codegen.source(model, self.variants)
        self.path = _compiled(self._source, self.flags)
        self.compile_seconds = time.monotonic() - started

    def explore(
        self,
        *,
        limits: Limits | None = None,
        stop_at_first: bool = False,
        progress: ProgressCallback | None = None,
        variant: int | None = None,
        traces: bool = True,
    ) -> Exploration:
        """Explore every reachable state of the model, or of its k-th variant. traces: findings have their steps."""
        bound = limits or Limits()
        first = self._run(_Ask(PLAIN, variant, bound, stop_at_first), progress)
        result = self._exploration(first, bound, variant)
        if not traces or not first.found:
            return result
        last = max(f.at for f in first.found)
        again = self._run(_Ask(TRACE, variant, Limits(memory_mb=bound.memory_mb), expansions=last + 1), None)
        first.traces = again.traces
        return evolve(
            result,
            findings=self._findings(first, variant),
            seconds=result.seconds + again.seconds,
            memory_mb=max(first.peak_mb, again.peak_mb),
        )

    def graph(
        self,
        *,
        limits: Limits | None = None,
        progress: ProgressCallback | None = None,
        variant: int | None = None,
    ) -> tuple[Exploration, Graph]:
        """Explore and keep every state and step."""
        bound = limits or Limits()
        with tempfile.TemporaryDirectory(prefix="calexec-") as directory:
            answer = self._run(_Ask(GRAPH, variant, bound, directory=directory), progress)
            if answer.killed:
                raise NativeError(f"the graph could not be made: {answer.killed}")
            return self._exploration(answer, bound, variant), self._read_graph(Path(directory), variant)

    def reachable(self, variant: int | None = None, *, limits: Limits | None = None) -> Array:
        """The reachable states, packed (n, words) uint64, sorted: equal arrays mean equal sets. Raises NativeError when
        a limit is hit, since part of a set can be compared with nothing."""
        bound = limits or Limits()
        with tempfile.TemporaryDirectory(prefix="calexec-") as directory:
            answer = self._run(_Ask(DUMP, variant, bound, directory=directory), None)
            if stopped := answer.stopped(bound):
                raise NativeError(f"the reachable states are not all known: {stopped}")
            keys = self._read_keys(Path(directory))
        return keys[np.lexsort(keys.T[::-1])]

    def unpack(self, keys: Array) -> Array:
        """Packed states (n, words) as (n, slots) small unsigned ints."""
        small = np.uint8 if all(f.bits <= 8 for f in self.layout.fields) else np.uint16
        states = np.zeros((len(keys), len(self.layout.fields)), dtype=small)
        for n, f in enumerate(self.layout.fields):
            if f.bits:
                states[:, n] = (keys[:, f.word] >> np.uint64(f.shift)) & np.uint64(f.mask)
        return states

    # -- the child ----------------------------------------------------------------------------------------------
    def _run(self, ask: _Ask, progress: ProgressCallback | None) -> _Answer:
        if ask.variant is not None and not 0 <= ask.variant < len(self.variants):
            raise NativeError(f"there is no variant {ask.variant}; the program has {len(self.variants)}")
        with _to_its_end(self._spawn(ask)) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            answer = _read(child.stdout, progress)
            complaint = child.stderr.read().strip()
            code = child.wait()
        if code == 0 and answer.done:
            return answer
        if -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            answer.killed = f"the C engine was killed by {signal.Signals(-code).name}"
            return answer
        what = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise NativeError(f"the C engine {what}: {complaint or 'no reason given'}")

    def _spawn(self, ask: _Ask) -> subprocess.Popen[str]:
        for last_try in (False, True):
            try:
                return _start([str(self.path), *ask.arguments()])
            except OSError as e:
                if last_try or not isinstance(e, FileNotFoundError):
                    raise NativeError(f"cannot run {self.path}: {e.strerror}") from e
                self.path = _compiled(self._source, self.flags)  # another process made room in the cache
        raise AssertionError("unreachable")

    # -- from numbers to results --------------------------------------------------------------------------------
    def _exploration(self, answer: _Answer, limits: Limits, variant: int | None) -> Exploration:
        model = self.model
        stopped = answer.stopped(limits)
        states, transitions, depth = (
            map(int, answer.done[:3])
            if answer.done
            else (answer.last.states, answer.last.transitions, answer.last.level)
        )
        return Exploration(
            engine="c",
            states=states,
            transitions=transitions,
            depth=depth,
            fired=tuple(answer.numbers.get("fired", [0] * len(model.instances))),
            cells=frozenset(model.cells[n] for n in answer.numbers.get("cells", ())),
            reached=frozenset(model.sometimes[n].prop.id for n in answer.numbers.get("seen", ())),
            findings=self._findings(answer, variant),
            complete=not stopped,
            stopped=stopped,
            seconds=answer.seconds,
            memory_mb=answer.peak_mb,
            compile_seconds=self.compile_seconds,
        )

    def _findings(self, answer: _Answer, variant: int | None) -> dict[str, Finding]:
        model = self._model(variant)
        out = {}
        for f in answer.found:
            name = self._props[f.prop]
            out[name] = Finding(name, _detail(model, f), self._trace(model, answer.traces.get(f.prop, [])))
        return out

    def _model(self, variant: int | None) -> Model:
        return self.model if variant is None else codegen.as_model(self.model, self.variants[variant], variant)

    def _trace(self, model: Model, numbers: list[int]) -> tuple[TraceStep, ...]:
        """From groups of (instance, slot values), the last step first."""
        width = 1 + len(model.slots)
        groups = [numbers[n : n + width] for n in range(0, len(numbers), width)]
        return tuple(_step(model, instance, tuple(state)) for instance, *state in reversed(groups))

    def _read_keys(self, directory: Path) -> Array:
        return np.fromfile(directory / "states", dtype=np.uint64).reshape(-1, self.layout.words)

    def _read_graph(self, directory: Path, variant: int | None) -> Graph:
        def numbers(name: str, kind: type[np.unsignedinteger[Any]]) -> Array:
            return np.fromfile(directory / name, dtype=kind)

        parent_instance = numbers("parent_instances", np.uint16).astype(np.int64)
        parent = numbers("parents", np.uint32).astype(np.int64)
        initial = parent_instance == NO_INSTANCE
        parent[initial] = parent_instance[initial] = -1
        return Graph(
            model=self._model(variant),
            states=self.unpack(self._read_keys(directory)),
            source=numbers("sources", np.uint32),
            target=numbers("targets", np.uint32),
            instance=numbers("instances", np.uint16),
            parent=parent,
            parent_instance=parent_instance,
        )


def _step(model: Model, instance: int, state: StateTuple) -> TraceStep:
    if instance < 0:
        return TraceStep("", "", state)
    fired = model.instances[instance]
    return TraceStep(fired.name, fired.rule.id, state)


def _detail(model: Model, f: _Found) -> str:
    """The sentence of a finding: the same words as the reference engine's."""
    match f.kind:
        case 0:
            return "no rule is enabled and this is not a legal end"
        case 1:
            slot = model.slots[f.index]
            return f"{slot.name} leaves 0..{slot.hi}: {f.value}"
        case 2:
            step = model.instances[f.instance].steps[f.index]
            return f"{model.slots[step.slot].name} takes {step.event} in {[s.name for s in step.table.states][f.value]}"
        case 3:
            return f"{model.pending[f.index].name} is taken by {f.value} rules"
        case 4:
            return model.invariants[f.index].name
        case _:
            return model.steps[f.index].name


def explore(
    model: Model,
    *,
    limits: Limits | None = None,
    stop_at_first: bool = False,
    progress: ProgressCallback | None = None,
    traces: bool = True,
) -> Exploration:
    """Compile and explore: `checker.explore.explore`, in C. Raises NativeError."""
    return Program(model).explore(limits=limits, stop_at_first=stop_at_first, progress=progress, traces=traces)
