"""What must hold of the joint protocol: each property with its id, its § and a sentence a reviewer can read.

Invariants hold the executor's bookkeeping against the device's truth (world variables), counters against the jobs,
and machines against each other. Step properties judge single steps and may compare before and after. Leads-to
properties assume that our own actors are weakly fair, each for itself and for each job, and nothing else: no client
need act and no call into CalRT, `Wait()` included, need ever return.
"""

from machines.properties.answers import ANSWERS
from machines.properties.books import BOOKS
from machines.properties.kv import KV
from machines.properties.life import LIFE
from machines.properties.ownership import OWNERSHIP
from machines.properties.progress import PROGRESS
from machines.properties.reached import REACHED
from machines.properties.submission import SUBMISSION
from machines.rulebook import Property

PROPERTIES: tuple[Property, ...] = (*OWNERSHIP, *KV, *ANSWERS, *SUBMISSION, *BOOKS, *LIFE, *REACHED, *PROGRESS)
__all__ = ["PROPERTIES"]
