from typing import Any

import pytest
import torch
from torch import Tensor

from clover.data import TextBatch
from clover.data.features import compute_features, hidden_scale
from clover.target import TargetModel
from tests.families import VOCAB, tiny_model


def states(target: TargetModel, *arguments: Any) -> tuple[Tensor, Tensor]:
    made = batch(*arguments)
    return compute_features(target, made.tokens, "post_norm").hidden_target, made.lengths


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def batch(lengths: list[int], pad: int, seed: int = 0) -> TextBatch:
    torch.manual_seed(seed)
    tokens = torch.randint(VOCAB, (len(lengths), max(lengths)))
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return TextBatch(tokens.where(real, pad), real, torch.tensor(lengths))


def test_states_before_and_after_the_final_norm(target: TargetModel) -> None:
    tokens = batch([7, 7], 0).tokens
    post, pre = (compute_features(target, tokens, kind) for kind in ("post_norm", "pre_norm"))
    assert torch.equal(post.hidden_input, post.hidden_target)
    assert torch.equal(pre.hidden_target, post.hidden_target)
    torch.testing.assert_close(target.final_norm(pre.hidden_input), pre.hidden_target)
    torch.testing.assert_close(target.logits(post.hidden_target), target.model(tokens).logits)
    assert not post.hidden_target.requires_grad


def test_padding_changes_nothing(target: TargetModel) -> None:
    a, b = (compute_features(target, batch([9, 4], pad).tokens, "post_norm").hidden_target for pad in (0, 3))
    torch.testing.assert_close(a[1, :4], b[1, :4])
    assert hidden_scale([states(target, [9, 4], 0)]) == pytest.approx(
        hidden_scale([states(target, [9, 4], 3)])
    )


def test_the_scale_is_the_standard_deviation_over_all_batches(target: TargetModel) -> None:
    batches = [states(target, [9, 4], 0), states(target, [5], 0, 1)]
    rows = [hidden[row, :n] for hidden, lengths in batches for row, n in enumerate(lengths)]
    expected = torch.cat(rows).var(dim=0, unbiased=False).mean().sqrt()
    assert hidden_scale(batches) == pytest.approx(float(expected))
