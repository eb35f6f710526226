"""Growing token trees from a draft: one file per way to do it, on the interface of `clover.drafting.base`."""

from clover.drafting.auto import AutoPolicy
from clover.drafting.base import Drafter
from clover.drafting.budget import BudgetDrafter
from clover.drafting.candidates import make_policy
from clover.drafting.confident import ConfidentDrafter
from clover.drafting.drawn import DrawnDrafter
from clover.drafting.making import make_drafter
from clover.drafting.policy import FixedPolicy, Policy, PrefillOutcome, Running, StepOutcome
from clover.drafting.repetition import Copier, Repetition
from clover.drafting.rerank import RerankDrafter
from clover.drafting.static import StaticDrafter

__all__ = [
    "Drafter",
    "StaticDrafter",
    "BudgetDrafter",
    "RerankDrafter",
    "ConfidentDrafter",
    "DrawnDrafter",
    "Copier",
    "Repetition",
    "make_drafter",
    "Policy",
    "PrefillOutcome",
    "Running",
    "StepOutcome",
    "FixedPolicy",
    "AutoPolicy",
    "make_policy",
]
