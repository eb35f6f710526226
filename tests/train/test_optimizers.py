"""Which parameters go to which optimizer."""

from __future__ import annotations

from dataclasses import replace

import torch

from clover.drafts import MedusaDraft
from clover.drafts.eagle import EagleDraft
from clover.target import TargetModel
from clover.train import TrainConfig
from clover.train.optimizers import make_optimizers
from tests.families import tiny_model


def test_muon_takes_the_matrices_inside_the_draft_and_adamw_the_rest() -> None:
    target, config = TargetModel(tiny_model("llama", dtype=torch.float32)), TrainConfig(output="x")
    draft = MedusaDraft.from_target(target, num_heads=2)  # with lm_heads of its own
    found = make_optimizers(draft, config, 3e-3)
    names = {
        kind: {
            n for n, p in draft.named_parameters() for g in o.param_groups if any(p is q for q in g["params"])
        }
        for kind, o in found.items()
    }
    assert names["muon"] and names["muon"].isdisjoint(names["adamw"])
    assert names["muon"] | names["adamw"] == {n for n, p in draft.named_parameters() if p.requires_grad}
    sizes = dict(draft.named_parameters())
    assert all(sizes[n].ndim == 2 and target.vocab_size not in sizes[n].shape for n in names["muon"])
    assert list(make_optimizers(draft, replace(config, optimizer="adamw"), 3e-3)) == ["adamw"]
    eagle = EagleDraft.from_target(target)
    assert list(make_optimizers(eagle, config, 3e-3)) == ["adamw"]  # its own
    assert list(make_optimizers(eagle, replace(config, optimizer="muon"), 3e-3)) == ["muon", "adamw"]
