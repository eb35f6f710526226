"""The perplexity that an audit prints of int8 weights, against a slow count."""

from __future__ import annotations

from math import exp

import pytest
import torch

from clover.audit.perplexity import measure_perplexity
from clover.cpu import int8
from clover.target import TargetModel
from tests.families import tiny_model

pytestmark = pytest.mark.skipif(not int8.sums_are_exact(), reason="no exact products of int8 here")


def test_it_is_the_mean_over_all_positions() -> None:
    target = TargetModel(tiny_model("qwen2", torch.float32), weights="int8")
    texts = [[5, 7, 9, 11], [3], [4, 4]]
    found = measure_perplexity(target, texts)
    assert found is not None and found.positions == 4
    for model, value in ((target.model, found.plain), (target.running, found.running)):
        total = 0.0
        with torch.inference_mode():
            for text in texts:
                chances = model(input_ids=torch.tensor([text])).logits[0].double().log_softmax(-1)
                total += sum(float(chances[i, token]) for i, token in enumerate(text[1:]))
        assert value == pytest.approx(exp(-total / 4), rel=1e-4)
    assert 0.9 < found.running / found.plain < 1.1 and found.running != found.plain
    assert "times that of the plain weights; the same best token" in str(found)
    assert measure_perplexity(target, [[3]]) is None
