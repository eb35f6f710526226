"""What a draft's training costs, and after how many tokens it has paid for itself."""

from clover.cost.options import CostOptions
from clover.cost.report import CostReport
from clover.cost.run import run_cost

__all__ = ["CostOptions", "CostReport", "run_cost"]
