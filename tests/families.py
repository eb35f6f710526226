"""Tiny random models of every family that Clover supports, and how tests run them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from clover.cache import KVCache
from clover.target import HiddenStates, TargetModel
from clover.target.support import attention_of

PARENTS = (-1, 0, 0, 1, 2, 2, 5)  # a tree of 7 nodes: depths 0 1 1 2 2 2 3
VOCAB, HIDDEN, LAYERS, HEADS, CONTEXT = 50, 32, 2, 4, 256

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2}

_CONFIGS = {
    "llama": lambda: hf.LlamaConfig(**_GROUPED),
    "mistral": lambda: hf.MistralConfig(**_GROUPED, sliding_window=12),
    "qwen2": lambda: hf.Qwen2Config(**_GROUPED),
    "qwen3": lambda: hf.Qwen3Config(**_GROUPED, head_dim=12),
    "phi3": lambda: hf.Phi3Config(**_GROUPED),
    "gpt_neox": lambda: hf.GPTNeoXConfig(**_COMMON),
    "opt": lambda: hf.OPTConfig(**_COMMON, ffn_dim=48, word_embed_proj_dim=HIDDEN),
    "gemma": lambda: hf.GemmaConfig(**_GROUPED, head_dim=8),
    "gemma3_text": lambda: hf.Gemma3TextConfig(
        **_GROUPED, head_dim=8, sliding_window=10, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": lambda: hf.GPT2Config(**{**_COMMON, "intermediate_size": None}),
    "olmo2": lambda: hf.Olmo2Config(**_GROUPED),
    "granite": lambda: hf.GraniteConfig(
        **_GROUPED,
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        attention_multiplier=0.3,
        logits_scaling=4.0,
    ),
    "starcoder2": lambda: hf.Starcoder2Config(**_GROUPED, sliding_window=9),
    "smollm3": lambda: hf.SmolLM3Config(**_GROUPED, no_rope_layers=[0, 1]),
    "phi": lambda: hf.PhiConfig(**_GROUPED),
    "glm4": lambda: hf.Glm4Config(**_GROUPED, head_dim=8),
    "cohere": lambda: hf.CohereConfig(**_GROUPED, logit_scale=0.5),
    "qwen3_six_heads": lambda: hf.Qwen3Config(  # which do not divide H; a draft's own attention has four
        **{**_GROUPED, "num_attention_heads": 6}, head_dim=8
    ),
}
FAMILIES = tuple(_CONFIGS)
_QUICK = {"llama", "phi3", "gpt_neox", "gemma3_text", "gpt2"}
# All families for tests that take long in each: of those in _QUICK in the fast set, of the others in the long one.
EVERY_FAMILY = [pytest.param(one, marks=[pytest.mark.long] * (one not in _QUICK)) for one in FAMILIES]


def by_turns(cases: Sequence[Any]) -> list[Any]:
    """Cases for `parametrize`: every second one is in the fast set, the others in the long one."""
    marks = ([], [pytest.mark.long])
    several = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=marks[number % 2]) for number, case in enumerate(several)]


def tiny_config(family: str) -> PretrainedConfig:
    """The configuration of a tiny model: H = 32, 2 layers, V = 50."""
    return _CONFIGS[family]()


def tiny_model(
    family: str, dtype: torch.dtype = torch.float64, seed: int = 0, config: PretrainedConfig | None = None
) -> hf.PreTrainedModel:
    """A random model whose weights are large enough for every part of it to matter."""
    torch.manual_seed(seed)
    config = config or tiny_config(family)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention_of(config), dtype=dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.15)
    return model.eval()


@contextmanager
def captured_input(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the first argument of every call of ``module``."""
    inputs: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    yield inputs
    handle.remove()


def ancestor_mask(parents: tuple[int, ...]) -> Tensor:
    """Bool [N, N] of a tree."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents[1:], start=1):
        mask[node] |= mask[parent]
    return mask


def prefill(
    target: TargetModel, cache: KVCache, tokens: Tensor, counts: list[int], hidden_state: str = "post_norm"
) -> HiddenStates:
    """Run plain text, Long [B, T] padded on the right, and commit ``counts[b]`` tokens of it."""
    cache.begin(tokens.shape[1])
    output = target.forward(tokens, cache.positions(tokens.shape[1]), cache, hidden_state=hidden_state)
    cache.commit(counts)
    return output


def run_tree(target: TargetModel, cache: KVCache, tokens: Tensor, parents: tuple[int, ...]) -> HiddenStates:
    """Run a tree, Long [B, N], after the cached texts; keeps nothing."""
    mask = ancestor_mask(parents)
    cache.begin(len(parents))
    positions = cache.positions(1) + mask.sum(1) - 1
    visible = cache.attention_mask(mask.expand(cache.batch_size, -1, -1))
    return target.forward(tokens, positions, cache, visible)
