"""One target is told from another whatever its dtype; in float16 by the signs of its weights alone."""

import torch

from clover.target import TargetModel, signs_fingerprint, tensors_fingerprint, weights_fingerprint
from tests.families import tiny_model


def rounded(dtype: torch.dtype, seed: int = 0) -> TargetModel:
    model = tiny_model("llama", torch.float32, seed)
    with torch.no_grad():
        model.get_input_embeddings().weight[:8] *= 1e-6  # less than float16 can tell apart
    return TargetModel(model.to(dtype))


def test_rounding_changes_no_fingerprint_that_there_is() -> None:
    half = rounded(torch.float16)
    for make in (tensors_fingerprint, weights_fingerprint, signs_fingerprint):
        whole, other = make(rounded(torch.float32)), make(rounded(torch.float32, seed=1))
        assert whole == make(rounded(torch.float64)) == make(rounded(torch.bfloat16)) != other
    assert signs_fingerprint(half) == signs_fingerprint(rounded(torch.float32))
    assert tensors_fingerprint(half) is None
