"""A tiny random target and drafts that were never trained."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from clover.api import load
from clover.drafts import RecallDraft
from clover.engine import Engine
from clover.measure.bench.methods import PLAIN, TRANSFORMERS, Method, make_method, of_engine
from clover.target import TargetModel

PROMPTS = ["def area(self):", "import os", "class Tree:"]


class Models(NamedTuple):
    """Directories of a target and its draft."""

    target: Path
    draft: Path


def byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({"<end>": 0, **{c: i for i, c in enumerate(alphabet, start=1)}}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Models:
    where = Models(tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, bos_token_id=None, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    target = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in target.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.15)
    target.save_pretrained(where.target)
    byte_tokenizer().save_pretrained(where.target)
    RecallDraft.from_target(TargetModel.load(where.target)).save_pretrained(where.draft)
    return where


@pytest.fixture(scope="session")
def target(directories: Models) -> TargetModel:
    return TargetModel.load(directories.target)


@pytest.fixture(scope="session")
def methods(directories: Models, target: TargetModel) -> list[Method]:
    draft = load(target, directories.draft, method="draft").engine
    return [
        of_engine(PLAIN, Engine(target)),
        make_method(TRANSFORMERS, target, ""),
        of_engine("recall", draft),
    ]
