"""The decoding engine: one generator that everything else consumes."""

from clover.engine.engine import Engine as Engine
from clover.engine.limits import EngineLimits as EngineLimits
from clover.engine.prefixes import PrefixStore as PrefixStore
from clover.engine.requests import Drafted as Drafted
from clover.engine.requests import Generation as Generation
from clover.engine.requests import Request as Request
from clover.engine.requests import StepEvent as StepEvent
from clover.engine.requests import TokenLogprobs as TokenLogprobs
from clover.engine.scheduler import Scheduler as Scheduler
from clover.engine.timing import STEP_PHASES as STEP_PHASES
from clover.engine.timing import PhaseClock as PhaseClock
