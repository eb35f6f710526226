"""A tiny target with a tokenizer, and its untrained draft, on disk: what commands and the Python interface load."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers as hf

from clover.drafts import RecallDraft
from clover.target import TargetModel
from tests.data.tokenizers import CHATML, make_tokenizer


def save_tiny_pair(directory: Path, template: str | None = CHATML, context: int = 128) -> tuple[Path, Path]:
    """Write a random 2-layer Llama with a byte-level tokenizer and a Clover-2 draft; returns both directories."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer(template)
    config = hf.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=context,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = hf.LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    model.save_pretrained(directory / "target")
    tokenizer.save_pretrained(directory / "target")
    target = TargetModel.load(directory / "target")
    RecallDraft.from_target(target).save_pretrained(directory / "draft")
    return directory / "target", directory / "draft"
