"""The decoding engine: one generator that everything else consumes."""

from clover.engine.engine import Engine, PrefixCache
from clover.engine.requests import Generation, Request, StepEvent
from clover.engine.timing import PhaseClock

__all__ = ["Engine", "Generation", "PhaseClock", "PrefixCache", "Request", "StepEvent"]
