"""What commands say where the draft is of no use, or where a tree is needed and something else was named."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from clover.drafts.medusa import MedusaDraft
from clover.target import TargetModel


@pytest.fixture(scope="module")
def not_finite(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft for the tiny target with weights that are no numbers."""
    draft = MedusaDraft.from_target(TargetModel.load(tiny_target), num_heads=2)
    with torch.no_grad():
        next(draft.parameters()).fill_(torch.nan)
    folder = tmp_path_factory.mktemp("drafts") / "broken"
    draft.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("command", ["cost", "tune", "evaluate"])
def test_there_is_nothing_to_measure_without_a_draft(
    run_clover: Callable, tiny_target: Path, not_finite: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "prompts.txt").write_text("def area(self):\nimport os\n")
    done = run_clover(command, tmp_path / "prompts.txt", "--target", tiny_target, "--draft", not_finite)
    assert done.code == 2
    assert done.err == f"clover: error: {not_finite} has weights that are not finite; train it again\n"


def test_there_is_nothing_to_show_without_a_draft(
    run_clover: Callable, tiny_target: Path, not_finite: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("def area(self):\n")
    given = ("--prompts", tmp_path / "prompts.txt", "--max-new-tokens", 4)
    done = run_clover("demo", "--target", tiny_target, "--draft", not_finite, *given)
    assert done.code == 2
    assert "not finite; train it again" in done.err
    for word in ("plain", "lookup"):
        done = run_clover("demo", "--tree", word)
        assert done.code == 2
        assert f"--tree {word} shows no draft" in done.err


@pytest.mark.parametrize("word", ["auto", "plain", "lookup"])
def test_the_cost_is_that_of_a_static_tree(run_clover: Callable, word: str) -> None:
    done = run_clover("cost", "--tree", word)
    assert done.code == 2
    assert f"{word} is no static tree; give one, such as chain:4" in done.err


def test_where_the_words_may_be_given_an_unknown_tree_names_them(run_clover: Callable) -> None:
    done = run_clover("generate", "a", "--tree", "chian:5")
    assert done.code == 2
    assert "there is no tree 'chian:5'; give " in done.err
    assert all(word in done.err for word in ("auto", "plain", "lookup", "own", "clover2"))


@pytest.mark.parametrize("command", ["cost", "tune", "evaluate", "bench"])
def test_a_target_without_a_draft_is_no_target_of_lookup(
    run_clover: Callable, tiny_target: Path, tmp_path: Path, command: str
) -> None:
    """The line that names --tree lookup would help nobody who asked for it."""
    (tmp_path / "prompts.txt").write_text("def area(self):\n")
    prompts = ("--prompts",) if command == "bench" else ()
    trees = () if command == "tune" else ("--tree", "lookup")
    done = run_clover(command, *prompts, tmp_path / "prompts.txt", "--target", tiny_target, *trees)
    if command != "cost":
        assert done.code == 2 and "give its draft, or train one (clover train)" in done.err
    assert "or --tree lookup" not in done.err
