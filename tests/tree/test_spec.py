import json

import pytest

from clover.errors import UserError
from clover.tree import (
    CLOVER2_TREE,
    MEDUSA_TREE,
    BudgetTree,
    ConfidentChain,
    DrawnTree,
    RerankTree,
    TreeShape,
    parse_tree,
    static_spec,
)


def test_medusa_tree_is_the_published_one():
    assert MEDUSA_TREE.budget == 63
    assert [MEDUSA_TREE.depths.count(depth) for depth in range(1, 5)] == [10, 28, 23, 2]


def test_parse_tree_reads_names_and_files(tmp_path):
    file = tmp_path / "tree.json"
    file.write_text(json.dumps([[0], [1], [0, 0]]))
    assert parse_tree("clover2") == CLOVER2_TREE
    assert parse_tree("medusa") == MEDUSA_TREE
    assert parse_tree("chain:4") == TreeShape.chain(4)
    assert parse_tree(str(file)).parents == (-1, 0, 0, 1)
    assert parse_tree(f"drawn:{file}") == DrawnTree(parse_tree(str(file)))


def test_parse_tree_reads_rules():
    assert parse_tree("budget:4") == BudgetTree(4, 0.8)
    assert parse_tree("budget:6:0.9") == BudgetTree(6, 0.9)
    assert parse_tree("eagle2:60") == RerankTree(60, 10, 6)
    assert parse_tree("eagle2:60:4") == RerankTree(60, 4, 6)
    assert parse_tree("eagle2:9:3:2") == RerankTree(9, 3, 2)
    assert parse_tree("chain:10:0.25") == ConfidentChain(10, 0.25)
    assert parse_tree("drawn:clover2") == DrawnTree(CLOVER2_TREE)
    assert parse_tree("drawn:chain:4") == DrawnTree(TreeShape.chain(4))


@pytest.mark.parametrize(
    "text",
    [
        *("chain:", "chain:x", "chain:0", "chain:-1", "chain:²", "chain:99999", "chain:3:3", "nothing", ""),
        *("budget", "budget:", "budget:0", "budget:4:", "budget:4:0", "budget:4:1.1", "budget:4:nan"),
        *(
            "budget:4:0.8:1",
            "eagle2:",
            "eagle2:0",
            "eagle2:5:0",
            "eagle2:5:5:0",
            "eagle2:5:5:5:5",
            "eagle2:x",
        ),
        *(
            "paths:",
            "paths:0,",
            "paths:1x",
            "paths:00",
            "paths:0,0",
            "paths:.",
            "paths:0..1",
            "paths:0,²",
            "paths:99999.",
        ),
        *("chain:4:", "chain:4:0", "chain:4:1", "chain:4:-1", "chain:4:nan", "chain:0:0.1", "chain:4:0.1:2"),
        *("shared", "shared:", "shared:3", "shared:12:2"),
        *("drawn:", "drawn:budget:4", "drawn:drawn:chain:2", "drawn:oak"),
    ],
)
def test_parse_tree_refuses_other_words(text):
    with pytest.raises(UserError):
        parse_tree(text)


@pytest.mark.parametrize("text", ["budget:513", "budget:9999:0.9", "eagle2:9999", "eagle2:60:513"])
def test_grown_trees_have_a_size_that_can_be_sorted_at_every_step(text):
    with pytest.raises(UserError, match=f"tree '{text}': .*less than or equal to 512; give") as error:
        parse_tree(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content", ["", "{}", "[0]", "[[true]]", "[[0.5]]", "[[-1]]", "[[1, 0]]", "[]", "[" * 9]
)
def test_parse_tree_refuses_other_files(tmp_path, content):
    file = tmp_path / "tree.json"
    file.write_text(content)
    with pytest.raises(UserError):
        parse_tree(str(file))


@pytest.mark.parametrize("paths", [[[1]], [[0], [0, 1]], [[0], [2]]])
def test_a_drawn_tree_leaves_no_draw_out(paths):
    with pytest.raises(UserError, match="no gaps"):
        DrawnTree(TreeShape.from_paths(paths))


def test_a_drawn_tree_has_nodes() -> None:
    with pytest.raises(UserError, match="no nodes"):
        DrawnTree(TreeShape())


@pytest.mark.parametrize(
    "shape",
    [
        CLOVER2_TREE,
        MEDUSA_TREE,
        TreeShape.chain(1),
        TreeShape.from_paths([[0], [1], [11], [0, 3], [11, 0], [11, 0, 10]]),
    ],
)
def test_static_trees_are_written_as_they_are_read(shape):
    assert parse_tree(static_spec(shape)) == shape


def test_paths_take_a_digit_per_rank_or_dots_between_them():
    assert static_spec(TreeShape.from_paths([[0], [1], [10], [0, 0], [10, 2]])) == "paths:0,1,10.,00,10.2"
    assert parse_tree("paths:1,12,0") == TreeShape.from_paths([[0], [1], [1, 2]])
    assert parse_tree("paths:12.") == TreeShape.from_paths([[12]])


def test_trees_are_values():
    assert len({parse_tree(text) for text in ("budget:4", "budget:4:0.8", "drawn:chain:2", "eagle2:60")}) == 3
