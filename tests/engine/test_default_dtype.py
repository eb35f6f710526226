"""Nothing depends on PyTorch's default dtype, which programs set for models of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from clover.drafts.loading import SYSTEMS
from clover.engine import Engine
from clover.sampling import SamplingParams
from clover.target import TargetModel
from tests.engine.test_lossless import requests_of, run, tokens_of
from tests.families import tiny_model

SETTINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8, top_p=0.9, seed=1),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.1),
)


@pytest.fixture(params=[torch.bfloat16, torch.float64])
def default(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("tree", ["plain", "medusa", "budget:5", "eagle2:9", "chain:3:0.1", "drawn:chain:2"])
def test_texts_do_not_depend_on_it(default: torch.dtype, tree: str) -> None:
    found = []
    for dtype in (torch.float32, default):
        model = tiny_model("llama", torch.float32)
        torch.set_default_dtype(dtype)
        target = TargetModel(model)
        torch.manual_seed(1)
        draft = SYSTEMS["clover2"].from_target(target).eval()
        found.append(tokens_of(run(Engine(target, draft, tree), requests_of(3, SETTINGS, 12))))
    assert found[0] == found[1]


@pytest.mark.parametrize("system", SYSTEMS)
def test_starting_values_do_not_depend_on_it(default: torch.dtype, system: str) -> None:
    target, drafts = TargetModel(tiny_model("llama", torch.float32)), []
    for dtype in (torch.float32, default):
        torch.set_default_dtype(dtype)
        torch.manual_seed(1)
        drafts.append(SYSTEMS[system].from_target(target))
    first, second = (draft.state_dict() for draft in drafts)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
