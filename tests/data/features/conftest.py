"""A tiny target, texts for it, and the store that is made of both."""

from __future__ import annotations

import pytest
import torch

from clover.data import Sample, SampleTexts, Texts
from clover.data.features import StoreConfig
from clover.target import TargetModel, weights_fingerprint
from tests.families import VOCAB, tiny_model


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def samples(count: int, seed: int = 0) -> Texts:
    torch.manual_seed(seed)
    lengths = torch.randint(5, 30, (count,)).tolist()
    tokens = [torch.randint(VOCAB, (length,), dtype=torch.int32) for length in lengths]
    return SampleTexts([Sample(t, torch.arange(len(t)) > 2) for t in tokens])


def config(target: TargetModel, texts: Texts, kind: str = "post_norm") -> StoreConfig:
    return StoreConfig(weights_fingerprint(target), texts.fingerprint, target.dtype_name, kind, 12, 40)
