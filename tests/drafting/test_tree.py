import json

import pytest

from clover.drafting import (
    PLAIN,
    AutoTree,
    BudgetTree,
    ConfidentChain,
    DrawnTree,
    LookupTree,
    OwnTree,
    RerankTree,
    StaticTree,
    Tree,
    parse_tree,
)
from clover.errors import UserError
from clover.tree import CLOVER2_TREE, MEDUSA_TREE, TreeShape


def test_medusa_tree_is_the_published_one():
    assert MEDUSA_TREE.budget == 63
    assert [MEDUSA_TREE.depths.count(depth) for depth in range(1, 5)] == [10, 28, 23, 2]


def test_parse_tree_reads_names_and_files(tmp_path, monkeypatch):
    file = tmp_path / "tree.json"
    file.write_text(json.dumps([[0], [1], [0, 0]]))
    assert parse_tree("clover2") == StaticTree(CLOVER2_TREE)
    assert parse_tree("medusa") == StaticTree(MEDUSA_TREE)
    assert parse_tree("chain:4") == StaticTree(TreeShape.chain(4))
    assert parse_tree(str(file)) == StaticTree(TreeShape.from_paths([[0], [1], [0, 0]]))
    assert parse_tree(f"drawn:{file}") == DrawnTree(TreeShape.from_paths([[0], [1], [0, 0]]))
    drawn = tmp_path / "drawn-tree.json"
    drawn.write_text(file.read_text())
    monkeypatch.chdir(tmp_path)
    assert parse_tree("drawn:drawn-tree.json") == parse_tree(f"drawn:{file}"), (
        "a file that begins with the word"
    )
    assert parse_tree(str(file)).name == "paths:0,1,00", "a name that does not need the file"


def test_parse_tree_reads_rules():
    assert parse_tree("budget:4") == BudgetTree(4, 0.8)
    assert parse_tree("budget:6:0.9") == BudgetTree(6, 0.9)
    assert parse_tree("eagle2:60") == RerankTree(60, 10, 6)
    assert parse_tree("eagle2:60:4") == RerankTree(60, 4, 6)
    assert parse_tree("eagle2:9:3:2") == RerankTree(9, 3, 2)
    assert parse_tree("chain:10:0.25") == ConfidentChain(10, 0.25)
    assert parse_tree("plain") == PLAIN
    assert parse_tree("auto") == AutoTree()
    assert parse_tree("own") == OwnTree()
    assert parse_tree("lookup") == LookupTree(10)
    assert parse_tree("lookup:4") == LookupTree(4)
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
    assert parse_tree(StaticTree(shape).name) == StaticTree(shape)


def test_paths_take_a_digit_per_rank_or_dots_between_them():
    shape = TreeShape.from_paths([[0], [1], [10], [0, 0], [10, 2]])
    assert StaticTree(shape).name == "paths:0,1,10.,00,10.2"
    assert parse_tree("paths:1,12,0") == StaticTree(TreeShape.from_paths([[0], [1], [1, 2]]))
    assert parse_tree("paths:12.") == StaticTree(TreeShape.from_paths([[12]]))


def test_trees_are_values():
    assert len({parse_tree(text) for text in ("budget:4", "budget:4:0.8", "drawn:chain:2", "eagle2:60")}) == 3


NAMES = (
    *(
        "plain",
        "auto",
        "own",
        "lookup",
        "lookup:4",
        "clover2",
        "medusa",
        "chain:5",
        "chain:10:0.06",
        "paths:0,1,00",
    ),
    *(
        "budget:4",
        "budget:6:0.9",
        "eagle2:60",
        "eagle2:60:4",
        "eagle2:9:10:2",
        "drawn:clover2",
        "drawn:chain:3",
    ),
)


@pytest.mark.parametrize("name", NAMES)
def test_names_parse_back(name: str) -> None:
    assert parse_tree(name).name == name
    assert parse_tree(parse_tree(name)) is not None


def test_parameters_at_their_defaults_are_left_out_of_names() -> None:
    assert parse_tree("budget:4:0.8").name == "budget:4"
    assert parse_tree("eagle2:60:10:6").name == "eagle2:60"
    assert parse_tree("lookup:10").name == "lookup"
    assert parse_tree("paths:0,00,000").name == "chain:3"


def test_trees_say_what_they_need() -> None:
    trees = [parse_tree(name) for name in NAMES]
    assert {tree.name for tree in trees if not tree.needs_draft} == {"plain", "lookup", "lookup:4"}
    assert {tree.name for tree in trees if not tree.exact} == {"drawn:clover2", "drawn:chain:3"}
    assert {tree.name for tree in trees if tree.is_chain} == {"chain:5"}


@pytest.mark.parametrize("value", [None, 3, TreeShape.chain(2)])
def test_other_values_are_no_trees(value: object) -> None:
    with pytest.raises(UserError, match="a tree is "):
        parse_tree(value)  # type: ignore[arg-type]


def test_every_example_of_an_error_is_a_tree() -> None:
    with pytest.raises(UserError) as error:
        parse_tree("oak")
    words = str(error.value).partition("; give ")[2].partition(", or a file")[0].split(", ")
    assert len(words) > 8 and all(isinstance(parse_tree(word), Tree) for word in words)


def test_the_old_name_of_the_drafts_tree_answers_with_the_new_one() -> None:
    with pytest.raises(UserError, match="renamed; give own"):
        parse_tree("draft")
