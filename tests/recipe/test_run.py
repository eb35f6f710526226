"""Parts of the recipe that need no training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clover.data import Sample
from clover.drafts import Clover2Draft, load_draft
from clover.recipe import run
from clover.target import TargetModel
from tests.families import tiny_model


def test_the_draft_keeps_the_tokens_that_the_target_writes_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TargetModel(tiny_model("llama"))
    draft = Clover2Draft.from_target(target).to(target.dtype)
    draft.save_pretrained(tmp_path / "trained")
    tokens = torch.tensor([9, 4, 9, 4, 2, 9, 7, 4, 7], dtype=torch.int32)
    monkeypatch.setattr(run, "_DRAFT_VOCABULARY", 3)
    samples = [Sample(tokens, torch.ones(len(tokens), dtype=torch.bool))]
    run._keep_frequent_tokens(tmp_path / "trained", target, samples, tmp_path / "draft")
    kept = load_draft(tmp_path / "draft", target)
    assert kept.d2t is not None and kept.d2t.tolist() == [4, 7, 9]
    assert all(torch.equal(kept.state_dict()[name], value) for name, value in draft.state_dict().items())
