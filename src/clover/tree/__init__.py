"""Token trees: which draft tokens the target model verifies together in one forward pass.

A `TreeShape` is a plan that is the same at every step (who is whose parent, which candidate sits where); a
`BudgetTree`, `RerankTree`, `ConfidentChain` or `DrawnTree` says by which rule each step's tree is grown;
a `TokenTree` is one step's tree with its tokens, for a batch. Node 0 is the root, the last committed token; every other
node comes after its parent.
"""

from clover.tree.shape import TreeShape
from clover.tree.spec import (
    CLOVER2_TREE,
    MEDUSA_TREE,
    BudgetTree,
    ConfidentChain,
    DrawnTree,
    RerankTree,
    Tree,
    parse_tree,
    static_spec,
)
from clover.tree.tokens import Draws, TokenTree

__all__ = [
    "Tree",
    "TreeShape",
    "BudgetTree",
    "RerankTree",
    "ConfidentChain",
    "DrawnTree",
    "CLOVER2_TREE",
    "MEDUSA_TREE",
    "parse_tree",
    "static_spec",
    "TokenTree",
    "Draws",
]
