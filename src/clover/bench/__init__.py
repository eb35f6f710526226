"""`clover bench`: what speculative decoding gains on this machine, beside plain decoding and transformers' own ways.

>>> from clover.bench import BenchOptions, run_bench
>>> run_bench(BenchOptions(batch_sizes=(1, 4)))  # doctest: +SKIP
"""

from clover.bench.options import BenchOptions
from clover.bench.run import run_bench

__all__ = ["BenchOptions", "run_bench"]
