"""One target is told from another whatever its dtype; in float16 by its norms alone."""

import torch

from clover.target import (
    TargetModel,
    norms_fingerprint,
    tensors_fingerprint,
    tokens_fingerprint,
    weights_fingerprint,
)
from tests.data.tokenizers import make_tokenizer
from tests.families import tiny_model


def rounded(dtype: torch.dtype, seed: int = 0) -> TargetModel:
    model = tiny_model("llama", torch.float32, seed)
    with torch.no_grad():
        model.get_input_embeddings().weight[:8] *= 1e-6  # less than float16 can tell apart
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.copy_(torch.randn_like(weight).to(torch.bfloat16))
    return TargetModel(model.to(dtype))


def test_rounding_changes_no_fingerprint_that_there_is() -> None:
    half = rounded(torch.float16)
    for make in (tensors_fingerprint, weights_fingerprint, norms_fingerprint):
        whole, other = make(rounded(torch.float32)), make(rounded(torch.float32, seed=1))
        assert whole == make(rounded(torch.float64)) == make(rounded(torch.bfloat16)) != other
    assert norms_fingerprint(half) == norms_fingerprint(rounded(torch.float32))
    assert tensors_fingerprint(half) is None


def test_norms_stay_when_other_weights_are_rounded() -> None:
    target, other = rounded(torch.float32), rounded(torch.float32)
    with torch.no_grad():
        for weight in other.model.parameters():
            if weight.dim() > 1:
                weight.copy_((weight * 8).round() / 8)
    assert norms_fingerprint(target) == norms_fingerprint(other)
    assert tensors_fingerprint(target) != tensors_fingerprint(other)


def test_tokens_show_how_text_is_split() -> None:
    whole, words = make_tokenizer(None), make_tokenizer(None)
    assert tokens_fingerprint(whole) == tokens_fingerprint(words) is not None
    words.add_tokens(["return"])
    assert tokens_fingerprint(whole) != tokens_fingerprint(words)
    assert tokens_fingerprint(None) is None
