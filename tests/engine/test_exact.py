"""The whole text of an exact target is that of plain decoding of one text at a time, to the last token.

With int8 weights in bfloat16, and with plain weights in bfloat16 or float32, by turns.

Every family × trees (chain, 25 nodes, re-ranked, copied from the text) × greedy and sampled × batches of 4 and 16.
The drafts know the text, so that trees of all depths are accepted.
"""

from __future__ import annotations

import pytest
import torch

from clover.cpu import int8
from clover.engine import Engine, EngineLimits
from clover.sampling import SamplingParams
from clover.target import TargetModel
from tests.engine.test_lossless import requests_of, run, tokens_of
from tests.families import EVERY_FAMILY, FAMILIES, tiny_model
from tests.oracle import OracleDraft, texts_of_rows

pytestmark = pytest.mark.skipif(not int8.sums_are_exact(), reason="no exact products of int8 here")
TREES = ("chain:4", "clover2", "eagle2:25", "lookup")
SETTINGS = (SamplingParams(), SamplingParams(temperature=0.8, seed=4))
SMALL = EngineLimits(prefill_chunk=4, new_tokens=1)


@pytest.mark.parametrize("weights", ["int8", None])
@pytest.mark.parametrize("family", EVERY_FAMILY)
@pytest.mark.usefixtures("small_caches")
def test_whole_texts(family: str, weights: str | None) -> None:
    wide = weights is None and FAMILIES.index(family) % 2
    target = TargetModel(
        tiny_model(family, torch.float32 if wide else torch.bfloat16), weights=weights, exact=True
    )
    assert target.exact
    requests = requests_of(16, SETTINGS, new_tokens=24)
    plain = [run(Engine(target), [request])[0] for request in requests]
    assert tokens_of(run(Engine(target, limits=SMALL), requests)) == tokens_of(plain)
    for number, tree in enumerate(TREES):
        size = (4, 16, 1, 16)[(number + FAMILIES.index(family)) % 4]
        texts = texts_of_rows((one.prompt for one in requests[:size]), tokens_of(plain[:size]))
        draft = None if tree == "lookup" else OracleDraft(target, texts, spread=number % 3)
        limits = SMALL if number % 2 else EngineLimits()
        found = run(Engine(target, draft, tree, limits=limits), requests[:size])  # type: ignore[arg-type]
        assert tokens_of(found) == tokens_of(plain[:size]), tree
        if draft is not None:
            steps, least = (sum(one.acceptance.steps for one in texts) for texts in (found, plain[:size]))
            assert steps < least
