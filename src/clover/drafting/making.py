"""From a tree's name to what grows it."""

from clover.drafting.base import Drafter
from clover.drafting.budget import BudgetDrafter
from clover.drafting.calibration import Calibration
from clover.drafting.confident import ConfidentDrafter
from clover.drafting.drawn import DrawnDrafter
from clover.drafting.policy import FixedPolicy
from clover.drafting.rerank import RerankDrafter
from clover.drafting.shared import SharedDrafter
from clover.drafting.static import StaticDrafter
from clover.drafting.tuning import Tuning
from clover.drafts import DraftModel
from clover.tree import BudgetTree, ConfidentChain, DrawnTree, RerankTree, SharedTree, Tree


def make_drafter(
    draft: DraftModel, tree: Tree | None = None, calibration: Calibration | None = None
) -> Drafter:
    """Make what grows `tree` from the draft.

    Args:
        tree: when left out the one that the draft's configuration names, as deep as the draft goes.
        calibration: of the draft's probabilities, for trees that ask how likely a token is accepted
            (`asks_how_likely`).

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
        case SharedTree():
            return SharedDrafter(draft, tree, calibration)
        case ConfidentChain():
            return ConfidentDrafter(draft, tree, calibration)
        case DrawnTree():
            return DrawnDrafter(draft, tree)
    return StaticDrafter(draft, tree)


def asks_how_likely(tree: Tree | None) -> bool:
    """Whether what grows the tree asks how likely a token is accepted, so that a calibration matters."""
    return isinstance(tree, (SharedTree, ConfidentChain))


def make_fixed_policy(
    draft: DraftModel, tree: Tree | None = None, tuning: Tuning | None = None
) -> FixedPolicy:
    """Make what always grows the same tree, by probabilities that are calibrated if there is a tuning.

    Args:
        tree: as for `make_drafter`.
        tuning: what was measured of the draft on this machine.

    Raises:
        UserError: a static tree is deeper than the draft goes.
    """
    return FixedPolicy(make_drafter(draft, tree, None if tuning is None else tuning.calibration))
