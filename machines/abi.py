"""The order in which CalRT's calls may be made, per handle: the page a vendor can sign.

Theory. Each kind of handle is a machine, and each call that *succeeded* is an event of it. A call that is impossible in
the handle's state is a programming error: the shim's debug build refuses it before CalRT sees it, and the simulator
records it as a violation. A call that returned an error moves nothing, whatever it may have started: that doubt is the
protocol's (the job's), not the handle's.

Two events are not calls: `retire` moves an input when its output's `Wait()` has returned success, and `orphan` moves
whatever was in flight when a reset of the device succeeded. What is Orphaned is never used again (§5.1-8): it can only
be asked and destroyed.
"""

from machines.expr import State
from machines.table import Ignore, Row, Table

__all__ = ["DEVICE", "INPUT", "OUTPUT", "TABLES", "DeviceHandle", "InputHandle", "OutputHandle"]


class DeviceHandle(State):
    Closed, Open, Configured = range(3)


class InputHandle(State):
    """Retired: the device is done with it and its slices are still set."""

    Absent, Empty, Mapped, Sliced, Programmed, InFlight, Retired, Orphaned = range(8)


class OutputHandle(State):
    """Waited: `Wait()` returned success; Known: and its status has been read (§6.5)."""

    Absent, Empty, Mapped, Sliced, InFlight, Waited, Known, Orphaned = range(8)


D, I, O = DeviceHandle, InputHandle, OutputHandle  # noqa: E741

DEVICE = Table(
    "abi_device",
    DeviceHandle,
    initial=D.Closed,
    final={D.Closed},
    pseudo={D.Closed},
    cites="§5.1-1",
    about="VirtualDevice",
    rows=[
        Row(D.Closed, "open", D.Open),
        Row(D.Open, "configure", D.Configured, cites="§9.2"),
        Ignore((D.Open, D.Configured), "enable_parallel", why="a mode, not a state (§14)"),
        Ignore(D.Configured, "infer", why="the buffers' tables say what moves"),
        Ignore((D.Open, D.Configured), "reset_ccu", why="the configuration is kept"),
        Row((D.Open, D.Configured), "reset_configuration", D.Open, cites="§14"),
        Row((D.Open, D.Configured), "reset", D.Open, cites="§14"),
        Row((D.Open, D.Configured), "close", D.Closed),
    ],
)

INPUT = Table(
    "abi_input",
    InputHandle,
    initial=I.Absent,
    final={I.Absent},
    pseudo={I.Absent},
    cites="§6.3",
    about="CalrtInputBuf",
    rows=[
        Row(I.Absent, "create", I.Empty),
        Row((I.Empty, I.Mapped), "map_buf", I.Mapped, cites="§6.3-8"),
        Row((I.Mapped, I.Sliced, I.Retired), "slice_tensor", I.Sliced, cites="§6.3-6"),
        Row((I.Mapped, I.Sliced, I.Programmed, I.Retired), "set_csr", I.Programmed, cites="§6.3-7"),
        Ignore(
            (I.Mapped, I.Sliced, I.Programmed, I.Retired), "bind_sequence", why="a value of the handle, not a state"
        ),
        Row(I.Programmed, "infer", I.InFlight, cites="§6.4"),
        Row(I.InFlight, "retire", I.Retired, cites="§6.5"),
        Row(I.InFlight, "orphan", I.Orphaned, cites="§14"),
        Row((I.Mapped, I.Sliced, I.Programmed, I.Retired), "undo_slice", I.Mapped, cites="FI15"),
        Row((I.Empty, I.Mapped, I.Sliced, I.Programmed, I.Retired, I.Orphaned), "destroy", I.Absent),
    ],
)

OUTPUT = Table(
    "abi_output",
    OutputHandle,
    initial=O.Absent,
    final={O.Absent},
    pseudo={O.Absent},
    cites="§6.5",
    about="CalrtOutputBuf",
    rows=[
        Row(O.Absent, "create", O.Empty),
        Row((O.Empty, O.Mapped), "map_buf", O.Mapped, cites="§6.3-8"),
        Row((O.Mapped, O.Sliced), "slice_tensor", O.Sliced, cites="§6.3-6"),
        Row((O.Mapped, O.Sliced, O.Known), "infer", O.InFlight, cites="§6.4"),
        Row(O.InFlight, "wait", O.Waited, cites="§6.5"),
        Ignore(O.Orphaned, "wait", why="a completion that comes after a reset changes nothing (FI14)"),
        Row(O.InFlight, "orphan", O.Orphaned, cites="§14"),
        Ignore(O.InFlight, "get_status", why="the job is still running"),
        Row(O.Waited, "get_status", O.Known, cites="§6.5"),
        Ignore((O.Known, O.Orphaned), "get_status", why="it has been read"),
        Ignore((O.Known, O.Orphaned), "tensor_size", why="a question"),
        Row((O.Mapped, O.Sliced, O.Known), "undo_slice", O.Mapped, cites="FI15"),
        Row((O.Empty, O.Mapped, O.Sliced, O.Waited, O.Known, O.Orphaned), "destroy", O.Absent),
    ],
)

TABLES = (DEVICE, INPUT, OUTPUT)
