"""From a tree's name to what grows it."""

from clover.drafting.base import Drafter
from clover.drafting.budget import BudgetDrafter
from clover.drafting.confident import ConfidentDrafter
from clover.drafting.drawn import DrawnDrafter
from clover.drafting.rerank import RerankDrafter
from clover.drafting.static import StaticDrafter
from clover.drafts import DraftModel
from clover.tree import BudgetTree, ConfidentChain, DrawnTree, RerankTree, Tree


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
        case ConfidentChain():
            return ConfidentDrafter(draft, tree)
        case DrawnTree():
            return DrawnDrafter(draft, tree)
    return StaticDrafter(draft, tree)
