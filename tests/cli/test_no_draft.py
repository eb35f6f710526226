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
    assert done.err == f"clover: error: {not_finite} has weights that are no finite numbers; train it again\n"


def test_there_is_nothing_to_show_without_a_draft(
    run_clover: Callable, tiny_target: Path, not_finite: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("def area(self):\n")
    given = ("--prompts", tmp_path / "prompts.txt", "--max-new-tokens", 4)
    done = run_clover("demo", "--target", tiny_target, "--draft", not_finite, *given)
    assert done.code == 2
    assert "no finite numbers; train it again" in done.err
    for word in ("plain", "lookup"):
        done = run_clover("demo", "--tree", word)
        assert done.code == 2
        assert f"--tree {word} shows no draft" in done.err


@pytest.mark.parametrize("word", ["auto", "plain", "lookup"])
@pytest.mark.parametrize("command", ["cost", "evaluate"])
def test_a_word_that_is_no_tree_is_called_so(run_clover: Callable, command: str, word: str) -> None:
    done = run_clover(command, "--tree", word)
    assert done.code == 2
    assert f"{word} chooses what drafts, but here a tree is needed; give clover2, " in done.err
    assert "no such file" not in done.err


def test_where_the_words_may_be_given_an_unknown_tree_names_them(run_clover: Callable) -> None:
    done = run_clover("generate", "a", "--tree", "chian:5")
    assert done.code == 2
    assert "give clover2, " in done.err and "; or auto, plain, lookup" in done.err
