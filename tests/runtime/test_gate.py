"""A gate opens once, for everybody who waits and whoever comes later."""

from __future__ import annotations

import threading

from runtime.gate import Gate

LONG_S = 10.0


def test_nobody_waits_at_an_open_gate() -> None:
    gate = Gate()
    assert not gate.is_open
    gate.open()
    gate.open()
    assert gate.is_open
    assert gate.wait()


def test_who_waits_no_longer_leaves_nothing_behind() -> None:
    gate = Gate()
    assert not gate.wait(0)
    assert not gate.wait(0.001)
    assert gate._waiting == []


def test_everybody_is_let_through() -> None:
    gate, through = Gate(), []
    threads = [threading.Thread(target=lambda: through.append(gate.wait(LONG_S)), daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join(LONG_S)
    assert through == [True] * 20
    assert gate._waiting == []
