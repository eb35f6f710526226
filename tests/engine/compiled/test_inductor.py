"""Compiled steps through PyTorch's own compiler on a CPU, which writes and builds C++."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch

from clover.engine import Engine
from clover.target import TargetModel
from tests.engine.compiled.test_runner import make_draft
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


def test_the_text_is_that_of_plain_decoding() -> None:
    config = tiny_config("llama")
    config.max_position_embeddings, config.num_hidden_layers = 512, 1
    target = TargetModel(tiny_model("llama", config=config))
    requests = requests_of(1, SETTINGS[:1], 8)
    engine = Engine(target, make_draft("clover2", target, num_augmenting_layers=1), compile=True)
    assert tokens_of(run(engine, requests)) == tokens_of(run(Engine(target), requests))
