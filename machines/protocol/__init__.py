"""The joint protocol of the executor and its device: `RULEBOOK`.

Read in this order: `params` (what is fixed), `variables` (the state and its words), `effects` (the calls), then one
file per actor: `client`, `admission`, `submitter`, `completion`, `lifecycle`, `world`; `machines.properties` says
what must hold, `runs` in which scopes it is proved.
"""

from machines.device import DeviceState
from machines.properties import PROPERTIES
from machines.protocol import admission, client, completion, lifecycle, submitter, world
from machines.protocol.actors import ACTORS
from machines.protocol.effects import EFFECTS
from machines.protocol.params import PARAMS
from machines.protocol.runs import MUTATION_RUNS, RUNS
from machines.protocol.variables import LOCKS, SEQUENCE_OF, VARIABLES, device, job, seq, shutdown
from machines.rulebook import Rulebook
from machines.shutdown import ShutdownState

__all__ = ["RULEBOOK"]

RULEBOOK = Rulebook(
    "calexec",
    actors=ACTORS,
    params=PARAMS,
    sorts=(job, seq),
    variables=VARIABLES,
    maps=(SEQUENCE_OF,),
    effects=EFFECTS,
    rules=(
        *client.RULES, *admission.RULES, *submitter.RULES, *completion.RULES, *lifecycle.RULES, *world.RULES,
    ),
    properties=PROPERTIES,
    locks=LOCKS,
    legal_end=(device == DeviceState.Failed) | (shutdown == ShutdownState.Closed),
    runs=RUNS,
    mutation_runs=MUTATION_RUNS,
    about="the executor of CalRT (§3 to §9) and the device under it",
)  # fmt: skip
