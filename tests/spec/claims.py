"""`@pytest.mark.shows("FI05", ...)`: which lines of the specification a test shows. A pytest plugin.

Theory. A claim must be about a line that there is and that can be shown; otherwise the collection ends with an error
that names the known ones. A test that is skipped or expected to fail shows nothing: one that says so beforehand does
not count, and one that skips while it runs fails. `--shows FI05` runs what claims that id, `--shows PR5` also what
claims a part of it. (PYTEST_DONT_REWRITE: nothing is asserted here.)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from attrs import frozen

from tests.spec.failures import FAILURES
from tests.spec.requirements import claimable

__all__ = ["FAST", "FILES", "KEY", "NIGHTLY", "Claim", "claims_of"]

FAST, NIGHTLY = "fast", "nightly"
NO_EVIDENCE = ("skip", "skipif", "xfail")
FAILURE = re.compile(r"_f(\d\d)(?=_)")


@frozen(order=True)
class Claim:
    """A test function says that it shows `id` (of requirements.py, or a field failure's number) when `tier` is run."""

    id: str
    file: str
    test: str
    tier: str


# Of the config: every claim of what was collected, and the files that were.
KEY, FILES = pytest.StashKey[list[Claim]](), pytest.StashKey[frozenset[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shows", metavar="ID", help="run only tests that claim to show this line (docs/conformance.md)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "shows(id, ...): lines of the specification that the test shows")


@pytest.hookimpl(tryfirst=True)  # before anything is deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wrong = sorted({problem for item in items for problem in _problems(item)})
    if wrong:
        raise pytest.UsageError("\n".join(wrong))
    config.stash[KEY], config.stash[FILES] = claims_of(items), frozenset(item.path for item in items)
    if wanted := config.getoption("--shows"):
        _select(config, items, wanted)


def claims_of(items: Iterable[pytest.Item]) -> list[Claim]:
    """Each claim once, however many parameters a test has; those of skipped and xfailed tests are none."""
    return sorted({claim for item in items if not _shows_nothing(item) for claim in _claims(item)})


def _claims(item: pytest.Item) -> Iterator[Claim]:
    file = item.path.relative_to(item.config.rootpath).as_posix()
    test = getattr(item, "originalname", item.name)
    tier = NIGHTLY if item.get_closest_marker("nightly") else FAST
    for name in (*_ids(item), *_failures(test)):
        yield Claim(name, file, test, tier)


def _ids(item: pytest.Item) -> list[str]:
    return [name for mark in item.iter_markers("shows") for name in mark.args]


def _failures(test: str) -> list[str]:
    """Field failures are named in the test's name; a negative control shows nothing by itself."""
    return [] if "control" in test else [f"F{number}" for number in FAILURE.findall(test)]


def _shows_nothing(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in NO_EVIDENCE)


def _problems(item: pytest.Item) -> Iterator[str]:
    known, where = claimable(), item.nodeid.split("[")[0]
    for mark in item.iter_markers("shows"):
        if not mark.args or mark.kwargs:
            yield f"{where}: shows takes ids alone, at least one"
        for name in mark.args:
            if name not in known:
                yield f"{where} claims {name!r}; {_known(name, known)}"
            elif known[name].needs:
                yield f"{where} claims {name}, which nobody can show here: it needs {', '.join(known[name].needs)}"
    for name in _failures(getattr(item, "originalname", item.name)):
        if name not in FAILURES:
            yield f"{where} is named after {name}; known are {', '.join(FAILURES)} (tests/spec/failures.py)"


def _known(name: object, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"{f'did you mean {near[0]}? ' if near else ''}known are {', '.join(known)} (tests/spec/requirements.py)"


def _select(config: pytest.Config, items: list[pytest.Item], wanted: str) -> None:
    known = {*claimable(), *FAILURES}
    names = {name for name in known if name == wanted or name.startswith(f"{wanted}.")}
    if not names:
        raise pytest.UsageError(f"--shows {wanted}: {_known(wanted, claimable())}")
    kept = [item for item in items if any(claim.id in names for claim in _claims(item))]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield
    if report.skipped and _ids(item) and not _shows_nothing(item):
        report.outcome = "failed"
        report.longrepr = f"it claims to show {', '.join(_ids(item))}, and was skipped: {report.longrepr}"
    return report
