"""A short training run with a system's own loss."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from clover.data import Batches, Sample
from clover.drafts import DraftModel, LossConfig, load_draft
from clover.target import TargetModel
from clover.train import TrainConfig, train
from clover.train.objective import Objective
from tests.families import VOCAB, tiny_model


def check_learning(system: type[DraftModel], directory: Path, loss: LossConfig, **options: object) -> None:
    """What is written after 80 steps on texts that count says better what the target says, at every depth."""
    target = TargetModel(tiny_model("llama", torch.float32))
    texts = [
        Sample((i + torch.arange(16)).int() % VOCAB, torch.ones(16, dtype=torch.bool)) for i in range(50)
    ]
    config = TrainConfig(
        str(directory / "draft"),
        max_length=16,
        batch_tokens=400,
        max_steps=80,
        optimizer="adamw",
        lr=5e-3,
        loss=loss,
    )
    torch.manual_seed(0)
    first = measured(config, texts, draft := system.from_target(target, **options))
    assert train(config, target, texts, draft, console=Console(file=StringIO())).finished
    last = measured(config, texts, load_draft(directory / "draft", target))
    assert last["loss"] < 0.9 * first["loss"]
    assert all(new > 0.3 + old for new, old in zip(last["accuracy"], first["accuracy"]))


def measured(config: TrainConfig, texts: list[Sample], draft: DraftModel) -> dict[str, Any]:
    measured = Objective(config, draft).measure(Batches(texts, 16, 800, seed=0).epoch())
    return measured.metrics.summary(config.loss)
