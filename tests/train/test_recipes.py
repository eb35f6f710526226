"""What a training starts from."""

from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from clover.data import Sample
from clover.drafts import MedusaDraft, load_draft
from clover.target import TargetModel
from clover.train import TrainConfig, prepare, train
from tests.families import tiny_model

FREQUENT = range(30, 40)


def test_a_trained_lm_head_keeps_the_rows_of_the_frequent_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clover.train.recipes.default_size", lambda _: len(FREQUENT))
    target = TargetModel(tiny_model("llama", dtype=torch.float32))
    trained = MedusaDraft.from_target(target, num_heads=2)
    with torch.no_grad():
        trained.lm_heads.add_(1.0)
    trained.save_pretrained(tmp_path / "first")
    tokens = torch.tensor(FREQUENT).repeat(2).int()
    samples = [Sample(tokens.roll(i), torch.ones(20, dtype=torch.bool)) for i in range(10)]

    config = TrainConfig(
        output=str(tmp_path / "draft"),
        system="medusa",
        start_from=str(tmp_path / "first"),
        max_steps=1,
        lr=1e-9,
        validation_share=0.0,
    )
    config, draft = prepare(config, target)
    train(config, target, samples, draft, console=Console(file=StringIO()))
    learnt = load_draft(tmp_path / "draft", target)
    assert isinstance(learnt, MedusaDraft) and learnt.d2t is not None
    assert learnt.d2t.tolist() == list(FREQUENT)
    torch.testing.assert_close(learnt.lm_heads, trained.lm_heads[:, learnt.d2t], atol=1e-6, rtol=0)
