"""Growing token trees from a draft: one file per way to do it, on the interface of `clover.drafting.base`."""

from clover.drafting.base import Drafter
from clover.drafting.budget import BudgetDrafter
from clover.drafting.drawn import DrawnDrafter
from clover.drafting.rerank import RerankDrafter
from clover.drafting.static import StaticDrafter
from clover.drafts import DraftModel
from clover.tree import BudgetTree, DrawnTree, RerankTree, Tree

__all__ = ["Drafter", "StaticDrafter", "BudgetDrafter", "RerankDrafter", "DrawnDrafter", "make_drafter"]


def make_drafter(draft: DraftModel, tree: Tree | None = None) -> Drafter:
    """Make what grows `tree` from the draft.

    Args:
        tree: when left out the one that the draft's configuration names, as deep as the draft goes.

    Raises:
        UserError: a static tree is deeper than the draft goes. The depth of other trees follows from the draft's.
    """
    if tree is None:
        return StaticDrafter(draft, draft.config.tree_shape.cut(draft.max_depth))
    match tree:
        case BudgetTree():
            return BudgetDrafter(draft, tree)
        case RerankTree():
            return RerankDrafter(draft, tree)
        case DrawnTree():
            return DrawnDrafter(draft, tree)
    return StaticDrafter(draft, tree)
