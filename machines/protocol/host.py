"""What the host waits for, as guards: rules that change nothing. They are not part of the rulebook that is explored; a
waiter parks on them like on any other."""

from machines.device import DeviceState
from machines.protocol.actors import CLIENT
from machines.protocol.variables import device, serving, shutdown
from machines.rulebook import Rule
from machines.shutdown import ShutdownState

_ended = (device == DeviceState.Failed) | (shutdown == ShutdownState.Closed)

ENDED = Rule("host.ended", CLIENT, _ended, about="Failed or Closed: nothing more happens")
SETTLED = Rule("host.settled", CLIENT, _ended | (device == DeviceState.Ready), about="start-up is over, well or not")
CLOSED = Rule("host.closed", CLIENT, shutdown == ShutdownState.Closed, about="closed, and the device not Failed")
READY = Rule("host.ready", CLIENT, serving, about="jobs are served")
