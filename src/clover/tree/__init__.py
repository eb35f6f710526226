"""Token trees: which draft tokens the target model verifies together in one forward pass.

A `TreeShape` says who is whose parent and which candidate sits where; a `TokenTree` is one step's tree with its tokens,
for a batch. Node 0 is the root, the last committed token; every other node comes after its parent. Which rule grows the
tree of a step is said by `clover.drafting`.
"""

from clover.tree.published import CLOVER2_TREE as CLOVER2_TREE
from clover.tree.published import MEDUSA_TREE as MEDUSA_TREE
from clover.tree.shape import TreeShape as TreeShape
from clover.tree.tokens import Draws as Draws
from clover.tree.tokens import TokenTree as TokenTree
