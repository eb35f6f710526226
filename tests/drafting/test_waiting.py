"""Growing and verifying a tree never waits for a GPU: on tensors without data, nothing can be asked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import clover.sampling.gumbel_cache
import clover.tree.tokens
from clover.drafting import parse_tree
from clover.sampling import Sampler, SamplingParams
from clover.verify import verify, verify_drawn
from tests.drafting.scripted import ScriptedDraft, draft_input, fake_target

VOCAB, ROWS = 20, 2


class Session:
    """Logits of the right shape."""

    def advance(self, slots: Tensor, tokens: Tensor) -> Tensor:
        return torch.randn(*tokens.shape, VOCAB)


@pytest.mark.parametrize("text", ["clover2", "budget:4", "eagle2:20", "drawn:clover2"])
def test_trees_grow_and_are_verified_without_a_question(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uncached = (
        clover.tree.tokens._shape_tensors.__wrapped__
    )  # tensors without data must not outlive this test
    monkeypatch.setattr(clover.tree.tokens, "_shape_tensors", uncached)
    monkeypatch.setattr(clover.sampling.gumbel_cache, "_KEPT_ON", "nothing")  # what a CPU does, which may ask
    draft = ScriptedDraft(fake_target(VOCAB), lambda _: torch.zeros(VOCAB))
    params = [SamplingParams(), SamplingParams(temperature=0.8, repetition_penalty=1.2)]
    with FakeTensorMode():
        sampler = Sampler(params, [[1]] * ROWS, VOCAB, "cpu")
        drafter = parse_tree(text).drafter(draft)  # type: ignore[arg-type]
        monkeypatch.setattr(drafter, "_on_cpu", False, raising=False)  # there it may ask
        root = torch.zeros(ROWS, dtype=torch.long)
        tree = drafter.grow(draft_input(Session(), torch.randn(ROWS, VOCAB), root, sampler))  # type: ignore[arg-type]
        nodes = tree.tokens.shape[1]
        logits = torch.randn(ROWS, nodes, VOCAB)
        if tree.draws is None:
            verified = verify(tree, sampler.choose(logits, tree))
        else:
            numbers = sampler.test_numbers(nodes), sampler.gumbels(tree.max_depth)
            verified = verify_drawn(tree, sampler.target_probs(logits.double(), tree), *numbers)
        assert verified.tokens.shape == (ROWS, tree.max_depth + 1)
        with pytest.raises(DataDependentOutputException):
            bool(verified.counts[0] > 1)
