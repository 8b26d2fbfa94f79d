"""What the host waits for, as guards: rules that change nothing. They are not part of the rulebook that is explored; a
waiter parks on them like on any other. And which of the rulebook's own rules lead somewhere: for whoever reports that.
"""

from collections.abc import Iterable
from typing import TypeVar

from machines.device import DeviceState
from machines.expr import State
from machines.protocol.actors import CLIENT
from machines.protocol.variables import device, drained, leftovers, line, serving, shutdown, waits
from machines.rulebook import Rule
from machines.shutdown import ShutdownState

S = TypeVar("S", bound=State)

_ended = (device == DeviceState.Failed) | (shutdown == ShutdownState.Closed)

ENDED = Rule("host.ended", CLIENT, _ended, about="Failed or Closed: nothing more happens")
SETTLED = Rule("host.settled", CLIENT, _ended | (device == DeviceState.Ready), about="start-up is over, well or not")
CLOSED = Rule("host.closed", CLIENT, shutdown == ShutdownState.Closed, about="closed, and the device not Failed")
READY = Rule("host.ready", CLIENT, serving, about="jobs are served")
IDLE = Rule(
    "host.idle", CLIENT, serving & drained & (waits == 0) & (line == 0) & (leftovers == 0),
    about="the device is Ready, and nothing is under way",
)  # fmt: skip
WAITS = (ENDED, SETTLED, CLOSED, READY, IDLE)


def leading(rules: Iterable[Rule], variable: str, *states: S) -> dict[str, S]:
    """Rules with an event that leads the variable into one of these states, by id, each with the state. What the event
    does where it is ignored is not looked at."""
    found: dict[str, S] = {}
    for rule in rules:
        for target, event in rule.fires:
            var = target.args[0]
            if var.name == variable:
                reached = {e.target for e in var.machine.entries.values() if (e.event, e.kind) == (event, "goto")}
                found.update((rule.id, state) for state in states if state in reached)
    return found
