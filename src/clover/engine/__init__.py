"""The decoding engine: one generator that everything else consumes."""

from clover.engine.batch import PrefixCache
from clover.engine.decoding import Decoding
from clover.engine.engine import Engine
from clover.engine.prefixes import PrefixStore
from clover.engine.requests import Drafted, Generation, Request, StepEvent, TokenLogprobs
from clover.engine.timing import STEP_PHASES, PhaseClock

__all__ = [
    "STEP_PHASES",
    "Decoding",
    "Drafted",
    "Engine",
    "Generation",
    "PhaseClock",
    "PrefixCache",
    "PrefixStore",
    "Request",
    "StepEvent",
    "TokenLogprobs",
]
