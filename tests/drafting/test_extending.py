"""The rule for trees that docs/development/extending.md shows works as it stands there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from clover.drafting import Tree, parse_tree
from clover.drafts.loading import SYSTEMS
from clover.engine import Engine
from clover.errors import UserError
from clover.target import TargetModel
from tests.engine.test_lossless import SETTINGS, requests_of, run, tokens_of
from tests.extending import module_of
from tests.families import tiny_model


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[ModuleType]:
    """The module of the section, from a file of its own."""
    before = list(Tree.rules)
    yield module_of("A tree", tmp_path / "fan.py")
    Tree.rules[:] = before


def test_one_file_is_a_rule_for_trees(toy: ModuleType) -> None:
    """It has a name, shown where a tree is unknown, and its trees lose nothing."""
    tree = parse_tree("fan:3")
    assert tree == toy.FanTree(3) and tree.name == "fan:3"
    assert tree.needs_draft and tree.exact and not tree.is_chain
    with pytest.raises(UserError, match="fan:4"):
        parse_tree("oak")
    target = TargetModel(tiny_model("llama"))
    torch.manual_seed(1)
    draft = SYSTEMS["clover2"].from_target(target, num_heads=3).to(target.dtype).eval()
    requests = requests_of(4, SETTINGS, 8)
    engine = Engine(target, draft, tree)
    assert engine.policy.max_nodes == 4
    assert tokens_of(run(engine, requests)) == tokens_of(run(Engine(target), requests))


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("text", ["fan:", "fan:x", "fan:1:2"])
def test_its_parameters_are_checked(text: str) -> None:
    with pytest.raises(UserError):
        parse_tree(text)


@pytest.mark.usefixtures("toy")
def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(UserError, match="tree 'fan': fan needs width; give"):
        parse_tree("fan")
