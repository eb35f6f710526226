"""From a tree's name to what grows it."""

from clover.drafting.base import Drafter
from clover.drafting.budget import BudgetDrafter
from clover.drafting.drawn import DrawnDrafter
from clover.drafting.rerank import RerankDrafter
from clover.drafting.static import ConfidentDrafter, StaticDrafter, own_tree
from clover.drafts import DraftModel
from clover.tree import BudgetTree, ConfidentChain, DrawnTree, RerankTree, Tree, parse_tree


def make_drafter(draft: DraftModel, tree: Tree | str | None = None) -> Drafter:
    """Make what grows `tree` from the draft; UserError if a static tree is deeper than the draft goes.

    `tree` is a tree, or a name that `parse_tree` reads; when left out the one that the draft's configuration names, as
    far as the draft can fill it (`own_tree`).
    """
    if tree is None:
        return StaticDrafter(draft, own_tree(draft))
    tree = parse_tree(tree) if isinstance(tree, str) else tree
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
