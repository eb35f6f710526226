"""`clover compare`: draft systems side by side, trained and measured alike, from a suite to a report.

>>> from clover.compare import CompareOptions, run_compare
>>> run_compare(CompareOptions("quick"))  # doctest: +SKIP
"""

from clover.compare.run import CompareOptions, run_compare

__all__ = ["CompareOptions", "run_compare"]
