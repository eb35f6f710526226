import random

import pytest
import torch

from clover.errors import UserError
from clover.tree import CLOVER2_TREE, TreeShape


def random_shape(rng: random.Random, nodes: int) -> TreeShape:
    paths = [()]
    for _ in range(nodes - 1):
        parent = rng.choice(paths)
        rank = sum(path[:-1] == parent for path in paths if path)
        paths.append((*parent, rank))
    return TreeShape.from_paths(paths[1:])


def slow_ancestors(parents: list[int]) -> torch.Tensor:
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node in range(len(parents)):
        ancestor = node
        while ancestor >= 0:
            mask[node, ancestor] = True
            ancestor = parents[ancestor]
    return mask


def test_clover2_tree_is_the_one_of_the_paper():
    assert CLOVER2_TREE.budget == 25
    assert CLOVER2_TREE.max_depth == 5
    assert [CLOVER2_TREE.depths.count(depth) for depth in range(1, 6)] == [4, 8, 8, 3, 2]


def test_paths_come_in_any_order():
    shape = TreeShape.from_paths([[1, 0], [0], [1], [0, 0], [0, 2]])
    assert shape.parents == (-1, 0, 0, 1, 1, 2)
    assert shape.ranks == (0, 0, 1, 0, 2, 0)


def test_ancestor_mask_equals_walking_up():
    rng = random.Random(0)
    shapes = [TreeShape.chain(6), CLOVER2_TREE, *(random_shape(rng, nodes) for nodes in range(2, 20))]
    for shape in shapes:
        assert torch.equal(shape.ancestor_mask(), slow_ancestors(list(shape.parents)))


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "at least one path"),
        ([[]], "no empty one"),
        ([[0], [0]], "twice"),
        ([[0], [1, 0]], "without"),
        ([[-1]], "negative"),
    ],
)
def test_bad_paths_are_refused(paths, message):
    with pytest.raises(UserError, match=message):
        TreeShape.from_paths(paths)


def test_a_cut_tree_has_no_deeper_nodes():
    for depth, nodes in enumerate([1, 5, 13, 21, 24, 26, 26]):
        shape = CLOVER2_TREE.cut(depth)
        assert len(shape.parents) == nodes
        assert shape.max_depth == min(depth, 5)
