"""How good a draft is: accuracy of its heads, what the engine accepts of it, and where it is weak."""

from clover.evaluate.acceptance import (
    Continuation,
    GroupAcceptance,
    SettingResult,
    Share,
    continue_prompts,
    summarize,
)
from clover.evaluate.accuracy import TOP, HeadAccuracy, measure_heads
from clover.evaluate.report import EvaluationReport
from clover.evaluate.run import EvaluateOptions, choose_prompts, run_evaluate

__all__ = [
    "TOP",
    "Continuation",
    "EvaluateOptions",
    "EvaluationReport",
    "GroupAcceptance",
    "HeadAccuracy",
    "SettingResult",
    "Share",
    "choose_prompts",
    "continue_prompts",
    "measure_heads",
    "run_evaluate",
    "summarize",
]
