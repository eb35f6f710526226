"""A tiny target, and a draft that is often right about it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch

from clover.audit.model import ModelSource
from clover.audit.run import Audit
from clover.audit.texts import EngineSource, make_modes, mixed_params
from clover.drafting import parse_tree
from clover.engine import Engine
from clover.target import TargetModel
from tests.engine.test_drawn import TableDraft
from tests.families import tiny_model

NEW_TOKENS = 12


class LastTokenDraft(TableDraft):
    """Says what the target would say after each token alone; requests may come and go."""

    def __init__(self, target: TargetModel, factor: float = 1.0):
        self.target = target
        with torch.inference_mode():
            every = torch.arange(target.vocab_size).unsqueeze(1)
            self.table = factor * target.model(input_ids=every, use_cache=False).logits[:, 0].float()

    def insert(self, other: LastTokenDraft) -> None:
        """There is nothing to insert."""

    def clear(self, row: int) -> None:
        """There is nothing that could be NaN."""


def weak_attention(
    dtype: torch.dtype = torch.float32, family: str = "llama", strength: float = 0.2, seed: int = 0
) -> TargetModel:
    """A target in which the last token matters most, and all that stands before it a little."""
    model: Any = tiny_model(family, torch.float32, seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name:
                weight.mul_(strength)
    return TargetModel(model.to(dtype))


def prompts_of(target: TargetModel, seed: int = 0, count: int = 5) -> list[tuple[int, ...]]:
    rng = Random(seed)
    return [
        tuple(rng.randrange(3, target.vocab_size) for _ in range(rng.choice((4, 9)))) for _ in range(count)
    ]


def audit_of(
    target: TargetModel,
    trees: Sequence[str] = ("clover2",),
    sizes: Sequence[int] = (3,),
    temperature: float = 0.8,
    seed: int = 0,
    prompts: Sequence[tuple[int, ...]] | None = None,
    draws: int = 0,
) -> Audit:
    """An audit of plain decoding and of trees with a draft that is often right; of drawn trees' texts if `draws`."""
    draft: Any = LastTokenDraft(target)
    engines = {"plain": Engine(target)} | {tree: Engine(target, draft, parse_tree(tree)) for tree in trees}
    methods = {name: EngineSource(engine) for name, engine in engines.items()}
    sampled = mixed_params(temperature, target.vocab_size) if temperature else []
    modes = make_modes(prompts or prompts_of(target, seed), NEW_TOKENS, sampled, max(sizes))
    plain = ModelSource(target, draws)
    return Audit(plain, methods, modes, sizes, temperature if draws else 0.0)


@pytest.fixture(scope="session")
def target() -> TargetModel:
    return weak_attention()
