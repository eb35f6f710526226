"""A tiny target, and a draft that is often right about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch

from clover.audit.local import PLAIN, LocalAudit, make_modes
from clover.audit.trace import TracedTarget
from clover.drafting import parse_tree
from clover.engine import Engine
from clover.target import TargetModel
from tests.engine.test_drawn import TableDraft
from tests.families import tiny_model

NEW_TOKENS = 12
MakeAudit = Callable[..., LocalAudit]


class LastTokenDraft(TableDraft):
    """Says what the target would say after each token alone; requests may come and go."""

    def __init__(self, target: TargetModel, factor: float = 1.0):
        self.target = target
        with torch.inference_mode():
            every = torch.arange(target.vocab_size).unsqueeze(1)
            self.table = factor * target.model(input_ids=every, use_cache=False).logits[:, 0].float()

    def insert(self, other: LastTokenDraft) -> None:
        """There is nothing to insert."""


def weak_attention(
    dtype: torch.dtype = torch.float32, family: str = "llama", strength: float = 0.2, seed: int = 0
) -> TracedTarget:
    """A target in which the last token matters most, and all that stands before it a little."""
    model: Any = tiny_model(family, torch.float32, seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name:
                weight.mul_(strength)
    return TracedTarget(TargetModel(model.to(dtype)))


def prompts_of(target: TargetModel, seed: int = 0, count: int = 5) -> list[tuple[int, ...]]:
    rng = Random(seed)
    return [
        tuple(rng.randrange(3, target.vocab_size) for _ in range(rng.choice((4, 9)))) for _ in range(count)
    ]


def audit_of(
    target: TracedTarget,
    trees: Sequence[str] = ("clover2",),
    sizes: Sequence[int] = (3,),
    temperature: float = 0.8,
    seed: int = 0,
) -> LocalAudit:
    draft: Any = LastTokenDraft(target)
    engines = {PLAIN: Engine(target)} | {tree: Engine(target, draft, parse_tree(tree)) for tree in trees}
    modes = make_modes(prompts_of(target, seed), NEW_TOKENS, temperature, target.vocab_size, max(sizes))
    return LocalAudit(engines, modes, sizes)


@pytest.fixture(scope="session")
def target() -> TracedTarget:
    return weak_attention()
