"""Find what drafts fastest on this machine: count what trees accept, time their steps, save the best."""

from clover.tune.options import TuneOptions
from clover.tune.run import run_tune

__all__ = ["TuneOptions", "run_tune"]
