"""What τ a draft must reach to be faster than plain decoding here, and after how many tokens its training pays."""

from clover.cost.options import CostOptions
from clover.cost.run import run_cost

__all__ = ["CostOptions", "run_cost"]
