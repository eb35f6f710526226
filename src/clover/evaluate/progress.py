"""The common progress, for those who still import it from here."""

from clover.report.progress import Progress as EvaluationProgress

__all__ = ["EvaluationProgress"]
