"""The walk along held-out texts takes the steps that the engine takes when it writes them."""

from __future__ import annotations

import pytest
import torch

import clover
from clover import packaged
from clover.data import Sample
from clover.data.batching import collate
from clover.drafts import load_draft
from clover.metrics import Acceptance
from clover.train import TrainConfig
from clover.train.objective import Objective

PROMPTS = ("def area(self):\n", "import os\nfor path in", "class Tree:\n    def __init__")


@pytest.mark.parametrize("name", [None, "clover2"])
def test_the_steps_are_those_of_decoding(name: str | None) -> None:
    """Recall copies from the text, Clover-2 proposes from a part of the vocabulary."""
    model = clover.load(draft=name, tree="chain:5")
    draft = load_draft(packaged.draft_place(name, None), model.target)
    prompts = [model.encode(prompt) for prompt in PROMPTS]
    results = model.generate(prompts, max_new_tokens=60, ignore_eos=True)
    samples = []
    for prompt, result in zip(prompts, results, strict=True):
        tokens = torch.tensor([*prompt, *result.tokens])
        samples.append(Sample(tokens.int(), torch.arange(len(tokens)) >= len(prompt)))
    objective = Objective(TrainConfig(output="x", dtype="float32"), draft)
    estimate = objective.estimate([collate(samples)])
    found = estimate.acceptance
    assert (
        estimate.tokens == 3 * 60 and estimate.own >= 178
    )  # the target wrote them, in another order of sums
    decoded = sum((result.acceptance for result in results), Acceptance())
    assert found.emitted == decoded.emitted and found.tau > 1.5
    assert abs(found.steps - decoded.steps) <= 2  # the engine's draft has weights of its own precision


def test_of_other_texts_fewer_tokens_are_the_targets_own() -> None:
    model = clover.load(tree="plain")
    draft = load_draft(packaged.draft_place(None, None), model.target)
    tokens = torch.randint(3, model.target.vocab_size, (60,), generator=torch.Generator().manual_seed(0))
    sample = Sample(tokens.int(), torch.arange(60) >= 10)
    estimate = Objective(TrainConfig(output="x", dtype="float32"), draft).estimate([collate([sample])])
    with torch.inference_mode():
        best = model.target.model(input_ids=tokens[None]).logits[0].argmax(-1)
    assert (estimate.tokens, estimate.own) == (50, int((best[9:-1] == tokens[10:]).sum()))
