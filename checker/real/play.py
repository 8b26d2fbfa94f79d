"""A run from its first choice to its last, and what is printed of one that failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

from checker.real.run import Run
from checker.real.scenario import Scenario
from checker.real.truth import Violated
from runtime.calrt import Library
from runtime.simulator import Simulator

__all__ = ["choices", "chosen", "play", "running"]

NUMBERS = range(11, 64)  # of devices; those before are for tests that name one
SHOWN = 25  # of the last moves


@contextmanager
def running(scenario: Scenario, library: Library | None = None) -> Iterator[Run]:
    """A run at its first choice: the device is Ready. Raises Violated for what goes wrong, with the run as code."""
    library = library or Library.load()
    run = Run(scenario, library, _unused(library))
    library.call = run.door  # type: ignore[method-assign]
    try:
        run.start()
        yield run
    except Exception as error:
        what = str(error) if isinstance(error, Violated) else f"{type(error).__name__}: {error}"
        raise Violated(f"{what}\n{_lately(run)}\n{as_code(run)}") from error
    finally:
        del library.call
        run.scrap()


def play(scenario: Scenario, choices: Iterable[int] = (), library: Library | None = None) -> Run:
    """The whole run, which is over then. Raises Violated."""
    with running(scenario, library) as run:
        for choice in choices:
            run.step(choice)
        run.end()
    return run


def chosen(seed: int, length: int) -> Sequence[int]:
    """Choices drawn by a seed."""
    return choices(Random(seed).randbytes(length))


def choices(drawn: bytes) -> list[int]:
    """A choice for each byte: half of them 0, some any move, some one of the last, which are faults."""
    return [0 if byte < 128 else byte - 127 if byte < 216 else 215 - byte for byte in drawn]


def as_code(run: Run) -> str:
    """What makes the same run again, with `from checker.real import *`."""
    return f"play({run.scenario!r}, {run.choices!r})"


def _lately(run: Run) -> str:
    numbered = list(enumerate(run.moves_made, 1))
    return "\n".join(f"  {n}. {text}" for n, text in numbered[-SHOWN:])


def _unused(library: Library) -> Simulator:
    if sim := Simulator.unused(library, NUMBERS):
        return sim
    raise RuntimeError("every simulated device is open")
