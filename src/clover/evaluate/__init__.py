"""How good a draft is: accuracy of its heads, what the engine accepts of it, and where it is weak."""

from clover.evaluate.acceptance import Continuation, continue_prompts
from clover.evaluate.accuracy import TOP, HeadAccuracy, measure_heads
from clover.evaluate.run import EvaluateOptions, choose_prompts, run_evaluate

__all__ = [
    "TOP",
    "Continuation",
    "EvaluateOptions",
    "HeadAccuracy",
    "choose_prompts",
    "continue_prompts",
    "measure_heads",
    "run_evaluate",
]
