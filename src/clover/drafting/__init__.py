"""Growing token trees from a draft: one file per way to do it, on the interface of `clover.drafting.base`."""

from clover.drafting.auto import AutoPolicy
from clover.drafting.base import Drafter
from clover.drafting.budget import BudgetDrafter
from clover.drafting.calibration import Calibration
from clover.drafting.candidates import make_policy
from clover.drafting.confident import ConfidentDrafter
from clover.drafting.drawn import DrawnDrafter
from clover.drafting.making import asks_how_likely, make_drafter, make_fixed_policy
from clover.drafting.policy import FixedPolicy, Policy, PrefillOutcome, Running, StepOutcome
from clover.drafting.repetition import Copier, Repetition
from clover.drafting.rerank import RerankDrafter
from clover.drafting.shared import SharedDrafter
from clover.drafting.static import StaticDrafter

__all__ = [
    "Drafter",
    "StaticDrafter",
    "BudgetDrafter",
    "RerankDrafter",
    "SharedDrafter",
    "ConfidentDrafter",
    "DrawnDrafter",
    "Copier",
    "Repetition",
    "Calibration",
    "make_drafter",
    "Policy",
    "PrefillOutcome",
    "Running",
    "StepOutcome",
    "FixedPolicy",
    "AutoPolicy",
    "make_policy",
    "make_fixed_policy",
    "asks_how_likely",
]
