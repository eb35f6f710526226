"""Pad batches and trees to a few sizes, so that few graphs serve all steps.

Shapes: B batch, N nodes.
"""

import torch
from torch import Tensor

from clover.cache.rows import power_of_two
from clover.tree import TokenTree


def node_size(nodes: int) -> int:
    """Return the padded number of nodes: 1, 2, 3, 4, 6, 8, 12, 16, 24 …. At most a third is padding.

    >>> [node_size(nodes) for nodes in (1, 3, 5, 7, 9, 26, 64)]
    [1, 3, 6, 8, 12, 32, 64]
    """
    power = power_of_two(nodes)
    return 3 * power // 4 if power > 3 and 3 * power // 4 >= nodes else power


def filled(values: Tensor, sizes: tuple[int, ...], padding: float = 0) -> Tensor:
    """Return a copy with larger leading sizes; the new entries at the end of each are `padding`.

    >>> filled(torch.tensor([[1, 2]]), (2, 3))
    tensor([[1, 2, 0],
            [0, 0, 0]])
    """
    larger = values.new_full((*sizes, *values.shape[len(sizes) :]), padding)
    larger[tuple(slice(size) for size in values.shape[: len(sizes)])] = values
    return larger


def filled_tree(tree: TokenTree, rows: int, nodes: int) -> TokenTree:
    """Pad a tree to these rows and nodes; a padding row is only a root. No tensor of the result is a view.

    >>> tree = TokenTree.from_parents(torch.tensor([[5, 6]]), torch.tensor([[-1, 0]]))
    >>> tree = filled_tree(tree, rows=2, nodes=3)
    >>> tree.tokens, tree.parents
    (tensor([[5, 6, 0],
            [0, 0, 0]]), tensor([[-1,  0, -1],
            [-1, -1, -1]]))
    """
    itself = torch.eye(nodes, dtype=torch.bool, device=tree.tokens.device)
    mask = itself.expand(rows, -1, -1).clone(memory_format=torch.contiguous_format)
    real_rows, real_nodes = tree.tokens.shape
    mask[:real_rows, :real_nodes, :real_nodes] = tree.ancestor_mask
    return TokenTree(
        filled(tree.tokens, (rows, nodes)),
        filled(tree.parents, (rows, nodes), -1),
        filled(tree.depths, (rows, nodes)),
        mask,
        tree.max_depth,
    )
