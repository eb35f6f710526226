import json
import random

import pytest
import torch

from clover.errors import UserError
from clover.tree import CLOVER2_TREE, Level, TokenTree, TreeShape, parse_tree


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
    assert [len(level.nodes) for level in CLOVER2_TREE.levels] == [4, 8, 8, 3, 2]
    assert [len(level.expanded) for level in CLOVER2_TREE.levels] == [1, 4, 4, 1, 1]
    assert [level.max_rank for level in CLOVER2_TREE.levels] == [3, 2, 2, 2, 1]


def test_levels_of_a_small_tree():
    shape = TreeShape.from_paths([[1, 0], [0], [1], [0, 0], [0, 2]])
    assert shape.parents == (-1, 0, 0, 1, 1, 2)
    assert shape.levels == (
        Level(nodes=(1, 2), expanded=(0,), slots=(0, 0), ranks=(0, 1), max_rank=1),
        Level(nodes=(3, 4, 5), expanded=(1, 2), slots=(0, 0, 1), ranks=(0, 2, 0), max_rank=2),
    )


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


@pytest.mark.parametrize(
    ("parents", "ranks"),
    [
        ((), ()),
        ((0,), (0,)),
        ((-1, 0), (0,)),
        ((-1, 1), (0, 0)),
        ((-1, 0, 1, 0), (0,) * 4),
        ((-1, 0, 0), (0,) * 3),
    ],
)
def test_bad_parents_are_refused(parents, ranks):
    with pytest.raises(UserError):
        TreeShape(parents, ranks)


def test_parse_tree_reads_names_and_files(tmp_path):
    file = tmp_path / "tree.json"
    file.write_text(json.dumps([[0], [1], [0, 0]]))
    assert parse_tree("clover2") == CLOVER2_TREE
    assert parse_tree("chain:4") == TreeShape.chain(4)
    assert parse_tree(str(file)).parents == (-1, 0, 0, 1)


@pytest.mark.parametrize(
    "text", ["chain:", "chain:x", "chain:0", "chain:-1", "chain:²", "chain:99999", "nothing", ""]
)
def test_parse_tree_refuses_other_words(text):
    with pytest.raises(UserError):
        parse_tree(text)


@pytest.mark.parametrize(
    "content", ["", "{}", "[0]", "[[true]]", "[[0.5]]", "[[-1]]", "[[1, 0]]", "[]", "[" * 9]
)
def test_parse_tree_refuses_other_files(tmp_path, content):
    file = tmp_path / "tree.json"
    file.write_text(content)
    with pytest.raises(UserError):
        parse_tree(str(file))


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
