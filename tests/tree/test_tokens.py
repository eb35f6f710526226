import random

import torch

from clover.tree import CLOVER2_TREE, TokenTree, TreeShape
from tests.tree.test_shape import random_shape


def test_static_trees_share_their_tensors():
    first = TokenTree.from_shape(CLOVER2_TREE, torch.zeros(3, 26, dtype=torch.long))
    second = TokenTree.from_shape(CLOVER2_TREE, torch.ones(1, 26, dtype=torch.long))
    for name in ("parents", "depths", "ancestor_mask"):
        assert getattr(first, name).data_ptr() == getattr(second, name).data_ptr()
    assert first.ancestor_mask.shape == (3, 26, 26)
    assert first.max_depth == 5


def test_tensors_cached_in_inference_mode_serve_outside_of_it():
    shape = TreeShape.chain(7)
    with torch.inference_mode():
        TokenTree.from_shape(shape, torch.zeros(1, 8, dtype=torch.long))
    depths = TokenTree.from_shape(shape, torch.zeros(1, 8, dtype=torch.long)).depths
    weight = torch.ones(1, 8, requires_grad=True)
    weight.gather(1, depths).sum().backward()
    assert weight.grad is not None


def test_from_parents_equals_from_shape():
    rng = random.Random(1)
    for nodes in (1, 2, 3, 9, 17):
        shapes = [random_shape(rng, nodes) if nodes > 1 else TreeShape((-1,), (0,)) for _ in range(4)]
        tokens = torch.randint(10, (4, nodes))
        tree = TokenTree.from_parents(tokens, torch.tensor([shape.parents for shape in shapes]))
        assert tree.max_depth == nodes - 1
        for row, shape in enumerate(shapes):
            static = TokenTree.from_shape(shape, tokens)
            assert torch.equal(tree.depths[row], static.depths[row])
            assert torch.equal(tree.ancestor_mask[row], static.ancestor_mask[row])


def test_padding_nodes_see_themselves_alone():
    tree = TokenTree.from_parents(torch.tensor([[5, 6, 0, 0]]), torch.tensor([[-1, 0, -1, -1]]), max_depth=1)
    assert tree.depths.tolist() == [[0, 1, 0, 0]]
    assert tree.ancestor_mask[0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_root_only_is_plain_decoding():
    tree = TokenTree.root_only(torch.tensor([[5], [6]]))
    assert tree.ancestor_mask.shape == (2, 1, 1)
    assert (tree.max_depth, tree.depths.tolist()) == (0, [[0], [0]])


def test_nodes_left_out_take_all_below_them_along():
    rng = random.Random(2)
    for _ in range(20):
        shape = random_shape(rng, 9)
        tokens = torch.randint(10, (3, 9))
        gone = torch.tensor([[rng.random() < 0.2 for _ in range(9)] for _ in range(3)])
        tree = TokenTree.from_shape(shape, tokens).without(gone)
        parents = torch.tensor([shape.parents] * 3)
        for row in range(3):
            for node in range(1, 9):
                if gone[row, node] or (shape.parents[node] > 0 and parents[row, shape.parents[node]] < 0):
                    parents[row, node] = -1
        expected = TokenTree.from_parents(tokens, parents)
        for name in ("parents", "depths", "ancestor_mask"):
            assert torch.equal(getattr(tree, name), getattr(expected, name))


def test_whole_rows_can_be_left_out():
    tree = TokenTree.from_shape(CLOVER2_TREE, torch.zeros(2, 26, dtype=torch.long))
    tree = tree.without(torch.tensor([[True], [False]]))
    assert tree.parents[0].tolist() == [-1] * 26
    assert tree.depths.amax(1).tolist() == [0, 5]
