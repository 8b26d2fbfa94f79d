"""A pool with one buffer into which a device writes: the machine that docs/tutorial.md builds, breaks and repairs."""

from __future__ import annotations

from machines.expr import Domain, Param, Sort, State, count
from machines.rulebook import Actor, Invariant, LeadsTo, Rule, Rulebook, Run, Sometimes, variable
from machines.table import Row, Table


class Buffer(State):
    Free, Leased, Quarantined = range(3)


class Client(State):
    Idle, Waiting, Holding = range(3)


BUFFER = Table(
    "buffer",
    Buffer,
    initial=Buffer.Free,
    rows=[
        Row(Buffer.Free, "lease", Buffer.Leased),
        Row((Buffer.Leased, Buffer.Quarantined), "give_back", Buffer.Free),
        Row(Buffer.Leased, "quarantine", Buffer.Quarantined),
    ],
)

CLIENT = Table(
    "client",
    Client,
    initial=Client.Idle,
    rows=[
        Row(Client.Idle, "ask", Client.Waiting),
        Row(Client.Waiting, "lease", Client.Holding),
        Row(Client.Holding, "finish", Client.Idle),
        Row((Client.Waiting, Client.Holding), "give_up", Client.Idle),
    ],
)

CLIENTS = Param("clients", default=2, lo=1, hi=4, about="how many clients share the buffer")
client = Sort("client", CLIENTS.expr)
VARIABLES = (
    variable("buffer", BUFFER),
    variable("done", Domain.boolean(), about="the device has said that it is done"),
    variable("writing", Domain.boolean(), world=True, about="the device may still write into the buffer"),
    variable("state", CLIENT, sort=client),
)
buffer, done, writing = (v.ref for v in VARIABLES[:3])

USER = Actor("user", environment=True, about="asks when it likes")
POOL = Actor("pool", about="ours: it serves each client fairly")
DEVICE = Actor("device", environment=True, observes=True, about="need never finish")

RULES = (
    Rule("user.ask", USER, client.state == Client.Idle, over=(client.index,), fires={client.state: "ask"}),
    Rule(
        "pool.lease",
        POOL,
        (client.state == Client.Waiting) & (buffer == Buffer.Free),
        over=(client.index,),
        fires={client.state: "lease", buffer: "lease"},
        truth={writing: True},
    ),
    Rule(
        "pool.refuse",
        POOL,
        (client.state == Client.Waiting) & (buffer != Buffer.Free),
        over=(client.index,),
        fires={client.state: "give_up"},
    ),
    Rule("device.finish", DEVICE, world=writing == 1, then={done: True}, truth={writing: False}),
    Rule(
        "pool.finish",
        POOL,
        (client.state == Client.Holding) & done,
        over=(client.index,),
        fires={client.state: "finish", buffer: "give_back"},
        then={done: False},
    ),
    Rule(
        "pool.time_out",
        POOL,
        (client.state == Client.Holding) & ~done,
        over=(client.index,),
        fires={client.state: "give_up", buffer: "quarantine"},
    ),
    Rule(
        "pool.reclaim",
        POOL,
        (buffer == Buffer.Quarantined) & done,
        fires={buffer: "give_back"},
        then={done: False},
    ),
)

PROPERTIES = (
    Invariant(
        "no_stray_write", "The device never writes into a free buffer", holds=~(writing & (buffer == Buffer.Free))
    ),
    Invariant(
        "one_holder", "At most one holds the buffer", holds=count(client.index, client.state == Client.Holding) <= 1
    ),
    Sometimes("holds", "A client can get the buffer", over=(client.index,), reached=client.state == Client.Holding),
    LeadsTo(
        "answered",
        "Whoever asks is idle again in the end",
        over=(client.index,),
        when=client.state == Client.Waiting,
        then=client.state == Client.Idle,
    ),
)

RULEBOOK = Rulebook(
    "pool",
    actors=(USER, POOL, DEVICE),
    params=(CLIENTS,),
    sorts=(client,),
    variables=VARIABLES,
    rules=RULES,
    properties=PROPERTIES,
    runs=(Run("two clients", liveness=True), Run("four clients", {"clients": 4}, liveness=True)),
)

HASTY = RULEBOOK.replace(
    Rule(
        "pool.time_out",
        POOL,
        (client.state == Client.Holding) & ~done,
        over=(client.index,),
        fires={client.state: "give_up", buffer: "give_back"},
    ),
    unfired={"buffer.Leased.quarantine": "nothing is quarantined any more"},
)

PATIENT = RULEBOOK.replace(drop=["pool.refuse"])
