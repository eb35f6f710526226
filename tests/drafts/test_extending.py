"""The draft system that docs/development/extending.md shows works as it stands there."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rich.console import Console

from clover.data import Sample
from clover.drafting import parse_tree
from clover.drafts import DraftModel, load_draft
from clover.drafts.base import SYSTEMS
from clover.drafts.loading import find_system
from clover.engine import Engine
from clover.measure.systems import system_color, system_name
from clover.target import TargetModel
from clover.train import TrainConfig, prepare, train
from tests.drafts.checks import check_drop, check_gradients, make
from tests.engine.test_lossless import SETTINGS, requests_of, run, tokens_of
from tests.extending import module_of
from tests.families import VOCAB, tiny_model


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[ModuleType]:
    """The module of the section, from a file of its own."""
    yield module_of("A draft system", tmp_path / "toy.py")
    del SYSTEMS["toy"]


def test_one_file_is_a_draft_system(toy: ModuleType, tmp_path: Path) -> None:
    """It is trained, saved and loaded by its name, named in reports, and lossless in several trees."""
    assert find_system("toy") is toy.ToyDraft and system_name("toy") == "Toy"
    assert system_color("toy") == "#882255"
    target = TargetModel(tiny_model("llama"))
    config, draft = prepare(TrainConfig(output=str(tmp_path / "draft"), system="toy", max_steps=3), target)
    torch.manual_seed(0)
    learnt = torch.ones(24, dtype=torch.bool)
    texts = [Sample(row.int(), learnt) for row in torch.randint(VOCAB, (12, 24))]
    assert train(config, target, texts, draft, console=Console(file=StringIO())).finished
    loaded: Any = load_draft(config.output, target)
    assert isinstance(loaded, DraftModel) and type(loaded) is toy.ToyDraft
    requests = requests_of(4, SETTINGS, 8)
    expected = tokens_of(run(Engine(target), requests))
    for tree in ("clover2", "chain:5", "budget:4"):
        assert tokens_of(run(Engine(target, loaded, parse_tree(tree)), requests)) == expected


def test_its_rows_do_not_mix_and_its_weights_learn(toy: ModuleType) -> None:
    target, draft = make(toy.ToyDraft)
    check_drop(target, draft)
    check_gradients(target, draft)
