"""Token trees: the draft tokens that the target model verifies together in one forward pass.

A `TreeShape` has each node's parent and its rank among the candidates. A `TokenTree` has the trees of one step for a
batch, with their tokens. Node 0 is the root, the last committed token; every other node comes after its parent. The
rules that grow trees are in `clover.drafting`.
"""

from clover.tree.published import CLOVER2_TREE as CLOVER2_TREE
from clover.tree.published import MEDUSA_TREE as MEDUSA_TREE
from clover.tree.shape import TreeShape as TreeShape
from clover.tree.tokens import Draws as Draws
from clover.tree.tokens import TokenTree as TokenTree
