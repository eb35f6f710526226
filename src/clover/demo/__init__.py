"""`clover demo`: plain decoding and a draft side by side, live, then a table, a picture and a JSON file.

Run it with `clover demo`, or from Python:

>>> from clover.demo import DemoOptions, run_demo
>>> report = run_demo(DemoOptions(max_new_tokens=64))  # doctest: +SKIP
"""

from clover.demo.options import DemoOptions
from clover.demo.report import MethodResult, Report
from clover.demo.run import run_demo

__all__ = ["DemoOptions", "MethodResult", "Report", "run_demo"]
