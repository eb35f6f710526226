"""Find what drafts fastest on this machine: measure what steps cost, count what is accepted, try the best, save it."""

from clover.tune.options import TuneOptions
from clover.tune.report import TuneReport
from clover.tune.run import run_tune

__all__ = ["TuneOptions", "TuneReport", "run_tune"]
