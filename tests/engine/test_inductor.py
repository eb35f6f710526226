"""Compiled steps through PyTorch's own compiler on a CPU, which writes and builds C++."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch

from clover.engine import Engine
from clover.target import TargetModel
from clover.tree import parse_tree
from tests.engine.test_captured import make_draft
from tests.engine.test_lossless import SETTINGS, requests_of, run, tokens_of
from tests.families import tiny_config, tiny_model

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here"),
]


@pytest.fixture(autouse=True)
def _no_graphs_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("system", ["clover1", "clover2", "recall"])
def test_the_text_is_that_of_plain_decoding(system: str) -> None:
    config = tiny_config("llama")
    config.max_position_embeddings, config.num_hidden_layers = 512, 1
    target = TargetModel(tiny_model("llama", config=config))
    draft = make_draft(system, target, num_heads=2)
    requests = requests_of(2, SETTINGS[:1], 12)
    engine = Engine(target, draft, parse_tree("paths:0,1,00"), compile=True)
    assert tokens_of(run(engine, requests)) == tokens_of(run(Engine(target), requests))
