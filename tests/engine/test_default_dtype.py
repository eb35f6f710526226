"""Nothing depends on PyTorch's default dtype and device, which programs set for models of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from traceback import extract_stack
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from clover.audit.rules import Rules
from clover.cli.main import run as run_command
from clover.cpu import int8
from clover.drafts.loading import SYSTEMS
from clover.engine import Engine
from clover.measure.report.goodness_of_fit import two_samples, uniform_places
from clover.sampling import SamplingParams
from clover.target import TargetModel
from tests.engine.test_lossless import requests_of, run, tokens_of
from tests.families import tiny_model
from tests.target.test_gguf import write_gguf
from tests.tiny import save_tiny_pair

SETTINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8, top_p=0.9, seed=1),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.1),
)

needs_int8 = pytest.mark.skipif(not int8.sums_are_exact(), reason="no exact products of int8 here")


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


@pytest.mark.parametrize("tree", ["lookup", "drawn:chain:2", "eagle2:5"])
@pytest.mark.parametrize("weights", [None, pytest.param("int8", marks=needs_int8)])
def test_texts_do_not_depend_on_the_default_device(weights: str | None, tree: str) -> None:
    model, found = tiny_model("llama", torch.float32), []
    for device in ("cpu", "meta"):
        with torch.device(device):  # as torch.set_default_device does
            target = TargetModel(model, weights=weights)
        torch.manual_seed(1)
        draft = None if tree == "lookup" else SYSTEMS["clover2"].from_target(target).eval()
        with torch.device(device):
            found.append(tokens_of(run(Engine(target, draft, tree), requests_of(3, SETTINGS, 12))))
    assert found[0] == found[1]


class _Strays(TorchFunctionMode):
    """Notes the lines of the package that make tensors of the default dtype, here float16, out of none."""

    def __init__(self) -> None:
        super().__init__()
        self.places = set[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        made = [one for one in tree_leaves(found) if isinstance(one, Tensor) and one.dtype == torch.float16]
        given = tree_leaves((args, kwargs))
        if any(one.numel() and not one.is_meta for one in made) and not any(_is_half(one) for one in given):
            frames = [frame for frame in extract_stack()[:-1] if "/clover/" in frame.filename]
            self.places |= {f"{frames[-1].filename}:{frames[-1].lineno}"} if frames else set()
        return found


def _is_half(value: Any) -> bool:
    return value is torch.float16 or (isinstance(value, Tensor) and value.dtype == torch.float16)


@needs_int8
def test_no_command_makes_tensors_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a tensor is rounded, or does not fit beside others: weights of a GGUF file, losses, statistics."""
    target, draft = save_tiny_pair(tmp_path)
    write_gguf(tiny_model("llama", torch.float32), tmp_path / "tiny.gguf")
    (tmp_path / "texts.txt").write_text("the dog and the cat and the dog\n" * 100)
    rules = Rules((1, 2), SamplingParams(frequency_penalty=0.3, presence_penalty=0.3))
    monkeypatch.chdir(tmp_path)
    int8._way.cache_clear()
    torch.set_default_dtype(torch.float16)
    try:
        with _Strays() as strays:
            for command in (
                f"features --target {target} --data texts.txt --output store",
                f"train --target {target} --features store --max-steps 2 --output trained",
                f"generate --target {target} --draft {draft} --weights int8 --max-new-tokens 3 the",
                'generate --target tiny.gguf --tree lookup --max-new-tokens 3 !!"',
            ):
                assert run_command(command.split()) == 0, command
            assert rules.scores(torch.zeros(4, dtype=torch.float64), [3]).tolist() == [0, 0, 0, -0.6]
            assert two_samples([1] * 3000, [1] * 2999 + [2]) == 1.0
            assert uniform_places([(0.5, 0.2)] * 30) < 1e-3
    finally:
        torch.set_default_dtype(torch.float32)
    assert not strays.places
