"""`clover demo`: the bench shown live, every draft beside plain decoding; then a table, a picture and a JSON file.

>>> from clover.demo import DemoOptions, run_demo
>>> result = run_demo(DemoOptions(max_new_tokens=64))  # doctest: +SKIP
"""

from clover.demo.options import DemoOptions
from clover.demo.run import DemoResult, run_demo

__all__ = ["DemoOptions", "DemoResult", "run_demo"]
