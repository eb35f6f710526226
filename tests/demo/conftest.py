"""A tiny random target, a draft that was never trained, and results made by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from clover.api import Clover, load
from clover.demo.measure import Bench
from clover.demo.report import MethodResult, Report
from clover.drafts import RecallDraft
from clover.target import TargetModel

PROMPTS = ["def area(self):", "import os\n", "class Tree:"]


class Models(NamedTuple):
    """Directories of a target and its draft."""

    target: Path
    draft: Path


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine two threads wait for each other at every small operation
    yield
    torch.set_num_threads(threads)


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
def model(directories: Models) -> Clover:
    return load(directories.target, directories.draft, method="draft")


@pytest.fixture
def bench(model: Clover) -> Bench:
    return Bench(model, PROMPTS, temperature=0.8)


def method(name: str, temperature: float, speed: float, speedup: float, same: int = 12) -> MethodResult:
    drafted = name == "clover2"
    return MethodResult(
        name=name,
        temperature=temperature,
        tokens_per_second=speed,
        tau=3.12 if drafted else 1.0,
        acceptance_per_depth=[0.81, 0.66, 0.54, 0.43, 0.32] if drafted else [],
        speedup=speedup,
        ideal_speedup=2.6 if drafted else None,
        identical=same == 12,
        ideal_share=speedup / 2.6 if drafted else None,
        identical_prompts=same,
        prompts=12,
        tokens=1536,
        seconds=1536 / speed,
        speedup_per_prompt=[speedup * (0.9 + 0.02 * i) for i in range(12)],
        plain_step_seconds=0.0082 if drafted else None,
        verify_step_seconds=0.0098 if drafted else None,
    )


@pytest.fixture
def report() -> Report:
    """What a good run on two cores looks like."""
    return Report(
        device="cpu",
        dtype="float32",
        target="embedded",
        draft="embedded",
        methods=[
            method("transformers", 0.0, 104.2, 0.91),
            method("plain", 0.0, 114.3, 1.0),
            method("clover2", 0.0, 268.2, 2.35),
            method("plain", 0.8, 110.1, 1.0),
            method("clover2", 0.8, 198.3, 1.8),
        ],
        versions={"clover": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0", "python": "3.11.7"},
        command="clover demo",
        machine="A Processor, 2 threads",
        date="2026-11-20",
        tree_nodes=25,
        prompts=12,
        max_new_tokens=128,
        seconds=61.2,
        differences=[],
    )
