"""Every shape in which the audit runs a text says the same, but for rounding: also past the windows of layers."""

from __future__ import annotations

import pytest
import torch

from clover.audit.rounding import other_shapes, reference_logits
from clover.target import TargetModel
from tests.families import VOCAB, tiny_model
from tests.target.test_multimodal import model_of

NEW, LENGTH = 20, 45


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "mistral", "read images"])
def test_all_shapes_agree(family: str) -> None:
    target = TargetModel(model_of("gemma3") if family == "read images" else tiny_model(family))
    text = torch.randint(3, VOCAB - 3, (LENGTH,), generator=torch.Generator().manual_seed(0))
    expected = reference_logits(target, text[None], NEW)[0]
    found = list(other_shapes(target, text.tolist(), NEW, cached=True))
    assert len(found) == 5
    for logits in found:
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)
