"""Growing token trees: one file per way to do it, on the interface of `clover.drafting.base`, and the choice of one."""

from clover.drafting.auto import AutoPolicy, make_policy
from clover.drafting.base import (
    PLAIN_DRAFTER,
    Drafter,
    DraftInput,
    FixedPolicy,
    PlainDrafter,
    Policy,
    Running,
    StepOutcome,
)
from clover.drafting.budget import BudgetDrafter
from clover.drafting.drawn import DrawnDrafter
from clover.drafting.factory import make_drafter
from clover.drafting.prompt_lookup import LookupDrafter
from clover.drafting.rerank import RerankDrafter
from clover.drafting.static import ConfidentDrafter, StaticDrafter

__all__ = [
    "PLAIN_DRAFTER",
    "Drafter",
    "DraftInput",
    "PlainDrafter",
    "StaticDrafter",
    "BudgetDrafter",
    "RerankDrafter",
    "ConfidentDrafter",
    "DrawnDrafter",
    "LookupDrafter",
    "make_drafter",
    "Policy",
    "Running",
    "StepOutcome",
    "FixedPolicy",
    "AutoPolicy",
    "make_policy",
]
