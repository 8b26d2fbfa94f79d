"""The shipped executor under a scheduler that chooses every step: its own actors, its own calls, the stepped device.

For tests: `play(Scenario(), choices)` (docs/real.md). It needs the native parts; nothing else of `checker` imports it.
"""

from checker.real.clients import Asked as Asked
from checker.real.faults import FAULTS as FAULTS
from checker.real.play import choices as choices
from checker.real.play import chosen as chosen
from checker.real.play import play as play
from checker.real.play import running as running
from checker.real.run import Run as Run
from checker.real.scenario import FATAL as FATAL
from checker.real.scenario import MILD as MILD
from checker.real.scenario import MOVES as MOVES
from checker.real.scenario import POLICIES as POLICIES
from checker.real.scenario import Plan as Plan
from checker.real.scenario import Scenario as Scenario
from checker.real.scenario import drawn as drawn
from checker.real.truth import Violated as Violated
