"""EAGLE-3's layer (arXiv 2503.01840): attention whose queries, keys and values read a state and a token side by side.

    n_t = [Norm_e(e_t) ; Norm_g(g_t)]                          2H
    b_t = g_t + Wo · attention(Wq n_t, Wk n_<=t, Wv n_<=t)     rotary positions, grouped heads as in the target
    a_t = b_t + Wdown (SiLU(Wgate Norm(b_t)) · Wup Norm(b_t))

Shapes: B batch, N positions or nodes, T text, S' slots seen, H hidden, Q query heads, G key-value heads, D their width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from clover.cache import KVCache
from clover.errors import UserError
from clover.target.structure import sdpa_mask
from clover.target.support import context_length

_SCALED = ("linear", "llama3", "yarn")  # kinds of rotary positions that only the configuration decides
# queries [B, Q, N, D], keys and values [B, G, N, D] -> what each query gets [B, Q, N, D]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LayerShape:
    """Sizes of the layer: the target's own, or what its kind of model usually has where it names none."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    eps: float

    @classmethod
    def of(cls, target: PretrainedConfig) -> LayerShape:
        """The shape for a target of this configuration.

        Raises:
            UserError: its heads have an odd width, which rotary positions cannot have.
        """
        size, heads = target.hidden_size, target.num_attention_heads
        width = getattr(target, "head_dim", None) or size // heads
        if width % 2:
            raise UserError(f"the target's heads are {width} wide; an EAGLE-3 draft needs an even width")
        inner = (getattr(target, name, None) for name in ("intermediate_size", "ffn_dim", "n_inner"))
        return cls(
            hidden_size=size,
            num_heads=heads,
            num_kv_heads=getattr(target, "num_key_value_heads", None) or heads,
            head_dim=width,
            intermediate_size=next(filter(None, inner), 4 * size),
            eps=getattr(target, "rms_norm_eps", None) or 1e-6,
        )


class FusedLayer(nn.Module):
    """The layer; how it attends is handed in, since whole texts and trees differ in that alone."""

    def __init__(self, shape: LayerShape):
        super().__init__()
        self.shape = shape
        self.rotary: nn.Module | None = None  # set when the target is known
        size, queries = shape.hidden_size, shape.num_heads * shape.head_dim
        pairs = shape.num_kv_heads * shape.head_dim
        self.token_norm, self.state_norm, self.mlp_norm = (nn.RMSNorm(size, eps=shape.eps) for _ in range(3))
        self.query = nn.Linear(2 * size, queries, bias=False)
        self.key = nn.Linear(2 * size, pairs, bias=False)
        self.value = nn.Linear(2 * size, pairs, bias=False)
        self.output = nn.Linear(queries, size, bias=False)
        self.gate = nn.Linear(size, shape.intermediate_size, bias=False)
        self.up = nn.Linear(size, shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, size, bias=False)

    def forward(self, states: Tensor, embedding: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """States [B, N, H] and token embeddings [B, N, H] at positions Long [B, N] to states [B, N, H]."""
        inputs = torch.cat((self.token_norm(embedding), self.state_norm(states)), dim=-1)
        query, key, value = (
            part(inputs).unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        assert self.rotary is not None, "bind() the draft to its target first"
        query, key = apply_rotary_pos_emb(query, key, *self.rotary(query, positions))
        mixed = attend(query, key, value)
        states = states + self.output(mixed.transpose(1, 2).flatten(-2))
        normed = self.mlp_norm(states)
        return states + self.down(F.silu(self.gate(normed)) * self.up(normed))


def cached_attention(
    cache: KVCache, mask: Tensor | None, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Attention of new tokens over a cache of one layer, which takes in their keys and values (`Attend`).

    Args:
        cache: after `begin(N)`.
        mask: Bool [B, 1, N, S'] of the cache; None for plain text.
    """
    added, groups = query.shape[2], query.shape[1] // key.shape[1]
    key, value = (_repeated(seen, groups) for seen in cache.update(key, value, 0))
    bias = sdpa_mask(mask, added, cache, query.dtype)
    return F.scaled_dot_product_attention(query, key, value, bias, is_causal=bias is None and added > 1)


class PathAttention:
    """Attention of whole texts, step after step (`Attend`), as the nodes of a tree would have it.

    The first call is that of the text itself, causal. In call i, position t sees what it saw of the first call, and of
    each later call up to this one what t itself was there.
    """

    def __init__(self) -> None:
        self.keys: list[Tensor] = []  # per call [B, Q, T, D]
        self.values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        self.keys.append(_repeated(key, groups))
        self.values.append(_repeated(value, groups))
        if len(self.keys) == 1:
            return F.scaled_dot_product_attention(query, self.keys[0], self.values[0], is_causal=True)
        query = query * query.shape[-1] ** -0.5
        text = query @ self.keys[0].transpose(-1, -2)
        later = torch.ones(text.shape[-2:], dtype=torch.bool, device=text.device).triu(1)
        path = torch.stack([(query * own).sum(-1) for own in self.keys[1:]], dim=-1)
        scores = torch.cat((text.masked_fill(later, float("-inf")), path.to(text.dtype)), dim=-1)
        weights = scores.softmax(-1).to(value.dtype)
        length = text.shape[-1]
        mixed = weights[..., :length] @ self.values[0]
        for step, own in enumerate(self.values[1:]):
            mixed = mixed + weights[..., length + step, None] * own
        return mixed


def _repeated(heads: Tensor, groups: int) -> Tensor:
    """[B, G, N, D] to [B, Q, N, D]: each key-value head serves as many query heads."""
    return heads if groups == 1 else heads.repeat_interleave(groups, dim=1)


def rotary_embedding(target: PretrainedConfig, shape: LayerShape) -> LlamaRotaryEmbedding:
    """LLaMA's rotary positions with the target's base and scaling; with base 10000 where it has none.

    Of a target with layers of several kinds they are those of full attention. Frequencies that depend on the length of
    the text are left at their start.
    """
    named: dict[str, Any] = getattr(target, "rope_parameters", None) or {}
    named = {"rope_type": "default", "rope_theta": 10000.0} | named.get("full_attention", named)
    named.pop("partial_rotary_factor", None)
    if named["rope_type"] not in _SCALED:
        named = {"rope_type": "default", "rope_theta": named["rope_theta"]}
    config = LlamaConfig(
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=context_length(target),
    )
    config.rope_parameters = named
    return LlamaRotaryEmbedding(config)
