"""F48, F49 as whoever stops `calexec run` meets them: signals and exit codes, in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from driver import driving
from executing import executing
from moments import until

from runtime.calrt import Library
from runtime.executor import DeviceExecutor
from runtime.exits import Exit
from runtime.run import close

HERE = Path(__file__).parent
SLOW = {"close_ms": 60_000, "execution_ms": 60_000, "stuck_ms": 60_000}
LATEST_S = 30.0

# `calexec run` in which one call never returns from its nth time on; says where it is, and how many were answered.
COMMAND = """
import sys, threading
sys.path[:0] = [sys.argv[1]]
from driver import Driver
from runtime import executor
from runtime.calrt import Library
from runtime.cli import run

executor.LATEST_S = 0.5
library = Library.load()
driver, handles, enqueue = Driver(library), [], executor.DeviceExecutor.enqueue

def kept(self, request):
    driver.hold(*sys.argv[2:])  # the golden run is over
    handles.append(enqueue(self, request))
    return handles[-1]

def tell():
    for what, there in (("stuck", lambda: driver.held), ("closing", lambda: "close" in names())):
        while not there():
            threading.Event().wait(0.01)
        print(what, flush=True)

def names():
    return [t.name for t in threading.enumerate()]

library.call, executor.DeviceExecutor.enqueue = driver, kept
threading.Thread(target=tell, daemon=True).start()
code = run(["run", "--limit", "1", "--tokens", "1", "--clients", "1"])
print("answered", sum(h.done() for h in handles), "of", len(handles), flush=True)
sys.exit(code)
"""


def command(*stuck: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", COMMAND, str(HERE), *stuck]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE.parents[1])


def test_f49_a_close_that_hangs_has_an_exit_code(library: Library) -> None:
    process = command("output_release")
    said, complained = process.communicate(timeout=LATEST_S)
    assert process.returncode == Exit.ABANDONED, complained
    assert "answered 1 of 1" in said
    assert "Traceback" not in complained


def test_f49_control_without_a_hang(library: Library) -> None:
    process = command()
    said, complained = process.communicate(timeout=LATEST_S)
    assert process.returncode == Exit.OK, complained
    assert "answered 1 of 1" in said


def test_f48_ctrl_c_and_again_while_it_is_closing(library: Library) -> None:
    process = command("output_wait")
    assert process.stdout
    assert process.stdout.readline() == "stuck\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "closing\n"
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=LATEST_S)
    assert process.returncode == Exit.INTERRUPTED, complained
    assert complained.splitlines()[-1] == "calexec: interrupted"
    assert "Traceback" not in complained
    assert "answered 1 of 1" in said


def check_interrupted(executor: DeviceExecutor, handle: object) -> None:
    """Ctrl-C while `calexec run` closes: it ends at once, and the job is answered."""
    main = threading.main_thread().ident
    assert main

    def press() -> None:
        until(executor._closer.locked)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=press).start()
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        close(executor)
    assert time.monotonic() - began_s < SLOW["close_ms"] / 1000 / 2, "it does not wait for the graceful end"
    assert handle.done(), "the job is answered"  # type: ignore[attr-defined]


def test_f48_an_interrupted_close_answers_everybody(library: Library) -> None:
    with driving(library) as d, executing(library, **SLOW) as b:
        d.hold("output_wait")
        check_interrupted(b.executor, b.enqueue(1, [1, 2, 3]))


def test_f48_control_a_close_that_is_only_interrupted(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with driving(library) as d, executing(library, **SLOW) as b:
        d.hold("output_wait")
        handle = b.enqueue(1, [1, 2, 3])
        with monkeypatch.context() as patch:
            patch.setattr(DeviceExecutor, "abandon", lambda executor: None)
            with pytest.raises(AssertionError, match="answered"):
                check_interrupted(b.executor, handle)
        b.executor.abandon()
