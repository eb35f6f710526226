"""Growing and verifying a tree never waits for a device: tensors without data cannot answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from clover.drafting import parse_tree
from clover.sampling import Sampler, SamplingParams
from clover.verify import verify, verify_drawn
from tests.drafting.scripted import ScriptedDraft, draft_input

VOCAB, ROWS = 20, 2
DEVICE = torch.device("meta")


class Session:
    """Logits of the right shape."""

    def advance(self, parents: Tensor, tokens: Tensor) -> Tensor:
        return torch.randn(*tokens.shape, VOCAB, device=DEVICE)


@pytest.mark.parametrize("text", ["clover2", "budget:4", "eagle2:20", "drawn:clover2"])
def test_trees_grow_and_are_verified_without_a_question(text: str) -> None:
    draft = ScriptedDraft(SimpleNamespace(device=DEVICE, vocab_size=VOCAB), lambda _: torch.zeros(VOCAB))
    params = [SamplingParams(), SamplingParams(temperature=0.8, repetition_penalty=1.2)]
    sampler = Sampler(params, [[1]] * ROWS, VOCAB, DEVICE)
    drafter = parse_tree(text).drafter(draft)  # type: ignore[arg-type]
    logits, root = torch.randn(ROWS, VOCAB, device=DEVICE), torch.zeros(ROWS, dtype=torch.long, device=DEVICE)
    tree = drafter.grow(draft_input(Session(), logits, root, sampler))
    nodes = tree.tokens.shape[1]
    logits = torch.randn(ROWS, nodes, VOCAB, device=DEVICE)
    if tree.draws is None:
        verified = verify(tree, sampler.choose(logits, tree))
    else:
        numbers = sampler.test_numbers(nodes), sampler.gumbels(tree.max_depth)
        verified = verify_drawn(tree, sampler.target_probs(logits.double(), tree), *numbers)
    assert verified.tokens.shape == (ROWS, tree.max_depth + 1)
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(verified.counts[0] > 1)
