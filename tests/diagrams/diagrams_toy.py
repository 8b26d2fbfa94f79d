"""A small rulebook with everything that pictures show: calls, world variables, an environment actor, a pseudo state,
ignores, rejects, `each`, dead ends, and a device that may lie about its work."""

from machines.expr import Domain, Param, Sort, State, every, some
from machines.rulebook import Actor, Each, Effect, Invariant, LeadsTo, Return, Rule, Rulebook, Run, variable
from machines.table import Ignore, Reject, Row, Table


class Call(State):
    Idle, Run = range(2)


class Job(State):
    Absent, Waiting, Running, Done, Failed = range(5)


class Shop(State):
    Open, Closed = range(2)


JOB = Table(
    "job",
    Job,
    initial=Job.Absent,
    final={Job.Done, Job.Failed},
    pseudo={Job.Absent},
    cites="§1",
    about="one job",
    rows=[
        Row(Job.Absent, "arrive", Job.Waiting, cites="§1.1"),
        Row(Job.Waiting, "start", Job.Running, cites="§1.2"),
        Row(Job.Running, "finish", Job.Done, cites="§1.3"),
        Row((Job.Waiting, Job.Running), "fail", Job.Failed, cites="§1.4"),
        Ignore((Job.Absent, Job.Done, Job.Failed), "fail", why="there is nothing to fail"),
    ],
)
SHOP = Table(
    "shop",
    Shop,
    initial=Shop.Open,
    final={Shop.Closed},
    rows=[
        Row(Shop.Open, "close", Shop.Closed),
        Ignore(Shop.Open, "enter", why="it stays open"),
        Reject(Shop.Closed, "enter", status="Unavailable", why="it is closed"),
    ],
)

JOBS = Param("jobs", default=2, lo=1, hi=3)
HONEST = Param("honest", default=0, kind="fact")
job = Sort("job", JOBS.expr)
VARIABLES = (
    variable("shop", SHOP),
    variable("state", JOB, sort=job),
    variable("call", Domain.of(Call), sort=job),
    variable("worked", Domain.boolean(), sort=job, world=True),
)
shop = VARIABLES[0].ref

CLIENT = Actor("client", "asks for work and may close the shop", environment=True)
WORKER = Actor("worker", "does one job after the other")
DEVICE = Actor("device", "does the work, or does not", environment=True)

RUN = Effect(
    "run",
    job.call,
    Call.Run,
    Call.Idle,
    [Return("ok", when=job.worked), Return("ok", when=~HONEST.expr & ~job.worked, variant="lie"), Return("failed")],
    over=job,
    cites="§1.2",
)

RULES = (
    Rule(
        "client.arrive",
        CLIENT,
        job.state == Job.Absent,
        over=(job.index,),
        fires={job.state: "arrive", shop: "enter"},
        cites="§1.1",
    ),
    Rule(
        "client.close",
        CLIENT,
        (shop == Shop.Open) & ~some(job, job.call == Call.Run),
        fires={shop: "close"},
        each=(Each(job.index, fires={job.state: "fail"}),),
        cites="§1.4",
    ),
    Rule(
        "worker.run.begin",
        WORKER,
        job.state == Job.Waiting,
        over=(job.index,),
        fires={job.state: "start"},
        begins=RUN,
        cites="§1.2",
    ),
    Rule(
        "worker.run.ok",
        WORKER,
        job.state == Job.Running,
        over=(job.index,),
        fires={job.state: "finish"},
        outcome=(RUN, ("ok",)),
        cites="§1.3",
    ),
    Rule(
        "worker.run.failed",
        WORKER,
        job.state == Job.Running,
        over=(job.index,),
        fires={job.state: "fail"},
        outcome=(RUN, ("failed",)),
        cites="§1.4",
    ),
    Rule(
        "device.work",
        DEVICE,
        over=(job.index,),
        world=(job.call == Call.Run) & ~job.worked,
        truth={job.worked: True},
    ),
)

RULEBOOK = Rulebook(
    "toy",
    (CLIENT, WORKER, DEVICE),
    (JOBS, HONEST),
    (job,),
    VARIABLES,
    RULES,
    (RUN,),
    properties=(
        Invariant(
            "done-means-worked",
            "A job that is Done was worked on by the device.",
            "§1.3",
            over=(job.index,),
            holds=(job.state != Job.Done) | job.worked,
        ),
        LeadsTo(
            "arrived-ends",
            "A job that arrived ends.",
            over=(job.index,),
            when=job.state == Job.Waiting,
            then=job.state.isin(Job.Done, Job.Failed),
        ),
    ),
    legal_end=every(job, job.state.isin(Job.Done, Job.Failed)) | (shop == Shop.Closed),
    runs=(
        Run("honest", {"honest": 1}),
        Run("lie", {"honest": 0, "jobs": 1}, expect="REFUTED", by="done-means-worked"),
        Run("hang", {"honest": 1, "jobs": 1}, expect="REFUTED", by="arrived-ends", liveness=True),
    ),
)
