"""Token trees: which draft tokens the target model verifies together in one forward pass.

A `TreeShape` is a plan that is the same at every step (who is whose parent, which candidate sits where); a
`BudgetTree`, `RerankTree`, `ConfidentChain` or `DrawnTree` says by which rule each step's tree is grown;
a `TokenTree` is one step's tree with its tokens, for a batch. Node 0 is the root, the last committed token; every other
node comes after its parent.
"""

from clover.tree.shape import TreeShape as TreeShape
from clover.tree.spec import CHOICES as CHOICES
from clover.tree.spec import CLOVER2_TREE as CLOVER2_TREE
from clover.tree.spec import MEDUSA_TREE as MEDUSA_TREE
from clover.tree.spec import BudgetTree as BudgetTree
from clover.tree.spec import ConfidentChain as ConfidentChain
from clover.tree.spec import DrawnTree as DrawnTree
from clover.tree.spec import RerankTree as RerankTree
from clover.tree.spec import Tree as Tree
from clover.tree.spec import parse_tree as parse_tree
from clover.tree.spec import static_spec as static_spec
from clover.tree.tokens import Draws as Draws
from clover.tree.tokens import TokenTree as TokenTree
