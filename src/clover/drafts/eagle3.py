"""EAGLE-3 (arXiv 2503.01840): one attention layer over fused target layers, trained by unrolling on its own outputs.

With the target's hidden states l, m, h of a low, a middle and a high layer, and its frozen input embedding E:

    g_t = FC([l_t ; m_t ; h_t])                3H to H
    n_t = [Norm_e(E[x_{t+1}]) ; Norm_g(g_t)]   2H
    b_t = g_t + Wo · attention(Wq n_t, Wk n_<=t, Wv n_<=t)     rotary positions, grouped heads as in the target
    a_t = b_t + Wdown (SiLU(Wgate Norm(b_t)) · Wup Norm(b_t))
    logits = lm_head(Norm(a_t))                for token t + 2

Deeper in the tree, the layer reads its own output a instead of g. Training does the same for D steps, which the paper
calls training-time test. Step i at position t reads the output of step i - 1 at t and the token x_{t+1+i}. It attends
to the true pairs up to t and to the steps 1 … i at the same t, which have the positions t + 1 … t + i.

EAGLE-3.1 (`version`) changes two things: l, m and h each pass a norm of their own before FC, and deeper in the tree the
layer reads Norm(a) instead of a.

Three things differ from the paper. The lm_head is the target's and frozen; `draft_vocab_size` restricts it to frequent
tokens. The norm before it starts with the gain of the target's final norm. Rotary positions are LLaMA's, with the
target's base and scaling. D is 5 by default; it is 7 in the authors' code.

Shapes: B batch, N positions or nodes, T text, S' slots seen, H hidden, W = 3H, Q query heads, G key-value heads, C
their width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from typing_extensions import Self

from clover.cache import KVCache
from clover.cpu.attention import attend
from clover.drafts.base import DraftModel
from clover.drafts.config import DraftConfig
from clover.drafts.layers import attention_heads, key_value_heads
from clover.drafts.session import TreeSession, shifted
from clover.drafts.training import LossConfig, PaperRecipe, TrainingDefaults
from clover.errors import UserError
from clover.target import TargetWeights
from clover.target.structure import sdpa_mask
from clover.target.support import context_length

_SCALED = ("linear", "llama3", "yarn")  # kinds of rotary positions that depend only on the configuration
# queries [B, Q, N, C], keys and values [B, G, N, C] -> outputs [B, Q, N, C]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Eagle3Config(DraftConfig):
    """Configuration of an EAGLE-3 draft; `version` "3.1" normalizes what the layer reads."""

    model_type = "eagle3"
    version: Literal["3", "3.1"] = "3"
    hidden_state: Literal["low_middle_high"] = "low_middle_high"


def layer_config(target: PretrainedConfig) -> Any:
    """Return the layer's configuration, a LLaMA's, with the target's sizes and rotary positions, if it has them.

    If the target has several kinds of layers, the positions are those of its full attention. Frequencies that change
    with the length of the text keep their initial values. UserError if the target's heads have an odd width, because
    rotary positions need an even one.
    """
    size, heads = target.hidden_size, attention_heads(target)
    width = getattr(target, "head_dim", None) or size // heads
    if width % 2:
        raise UserError(f"the target's heads are {width} wide; an EAGLE-3 draft needs an even width")
    inner = (getattr(target, name, None) for name in ("intermediate_size", "ffn_dim", "n_inner"))
    config: Any = LlamaConfig(
        hidden_size=size,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads(target),
        head_dim=width,
        intermediate_size=next(filter(None, inner), 4 * size),
        rms_norm_eps=getattr(target, "rms_norm_eps", None) or 1e-6,
        max_position_embeddings=context_length(target),
    )
    named: dict[str, Any] = getattr(target, "rope_parameters", None) or {}
    named = {"rope_type": "default", "rope_theta": 10000.0} | named.get("full_attention", named)
    named.pop("partial_rotary_factor", None)
    if named["rope_type"] not in _SCALED:
        named = {"rope_type": "default", "rope_theta": named["rope_theta"]}
    config.rope_parameters = named
    return config


class FusedLayer(nn.Module):
    """The layer. The caller passes the attention, because only that part differs between whole texts and trees."""

    def __init__(self, config: Any):
        super().__init__()
        self.width = config.head_dim
        self.rotary: nn.Module | None = None  # `bind` sets it
        size, inner = config.hidden_size, config.intermediate_size
        queries, pairs = (self.width * n for n in (config.num_attention_heads, config.num_key_value_heads))
        self.token_norm, self.state_norm, self.mlp_norm = (
            nn.RMSNorm(size, eps=config.rms_norm_eps) for _ in range(3)
        )
        self.query = nn.Linear(2 * size, queries, bias=False)
        self.key = nn.Linear(2 * size, pairs, bias=False)
        self.value = nn.Linear(2 * size, pairs, bias=False)
        self.output = nn.Linear(queries, size, bias=False)
        self.gate = nn.Linear(size, inner, bias=False)
        self.up = nn.Linear(size, inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)

    def forward(self, states: Tensor, embedding: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return a [B, N, H] of states g and token embeddings, both [B, N, H], at positions Long [B, N]."""
        inputs = torch.cat((self.token_norm(embedding), self.state_norm(states)), dim=-1)
        query, key, value = (
            part(inputs).unflatten(-1, (-1, self.width)).transpose(1, 2)
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
    """Store new tokens in a cache of one layer, after `begin(N)`, and return their attention over it (`Attend`).

    `mask` is Bool [B, 1, N, S'] over the cache; None for plain text.
    """
    added = query.shape[2]
    bias = sdpa_mask(mask, added, cache, query.dtype)
    seen, causal = cache.update(key, value, 0), bias is None and added > 1
    return attend(query, *seen, bias, causal=causal)


class PathAttention:
    """Attention of whole texts, one call per step of training (`Attend`), with the masks of a tree's nodes.

    The first call is causal attention over the text. In each later call, position t attends to the same keys as in the
    first call, and to the key of position t from every call since then, the current one included.
    """

    def __init__(self) -> None:
        self.keys: list[Tensor] = []  # Each call appends [B, G, T, C].
        self.values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.keys.append(key)
        self.values.append(value)
        itself = torch.eye(query.shape[2], dtype=torch.bool, device=query.device)
        mask = torch.cat((torch.ones_like(itself).tril(), itself.repeat(1, len(self.keys) - 1)), dim=1)
        keys, values = torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)
        return F.scaled_dot_product_attention(query, keys, values, mask, enable_gqa=True)


class Eagle3Draft(DraftModel):
    """The EAGLE-3 draft model."""

    config: Eagle3Config  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = Eagle3Config
    label, color = "EAGLE-3", "#cc79a7"
    training_defaults = TrainingDefaults(
        paper_loss=LossConfig(distillation_weight=1.0, regression_weight=0.0, decay=0.8),
        paper_recipe=PaperRecipe(lr=5e-5, clip_value=0.5),
    )
    repeats_step = True

    def __init__(self, config: Eagle3Config):
        super().__init__(config)
        self.layer_config = layer_config(config.target_shape)
        size = self.layer_config.hidden_size
        count = 3 if config.version == "3.1" else 0
        self.norms = nn.ModuleList(nn.RMSNorm(size, eps=self.layer_config.rms_norm_eps) for _ in range(count))
        self.fuse = nn.Linear(3 * size, size, bias=False)
        self.layer = FusedLayer(self.layer_config)
        self.output_norm = nn.RMSNorm(size, eps=self.layer_config.rms_norm_eps)
        self.post_init()

    @torch.no_grad()
    def start_from(self, target: TargetWeights) -> None:
        """Set the output norm's gain to that of the target's final norm, measured by running that norm."""
        signs = torch.ones(target.hidden_size, dtype=target.dtype, device=target.device)
        signs[1::2] = -1  # deviation 1, and mean 0 in case the norm subtracts the mean
        gain = (target.final_norm(signs) - target.final_norm(-signs)) / (2 * signs)
        self.output_norm.weight.copy_(gain)

    def bind(self, target: TargetWeights) -> Self:
        self.layer.rotary = LlamaRotaryEmbedding(self.layer_config).to(target.device)
        return super().bind(target)

    def new_session(self, batch_size: int, capacity: int) -> TreeSession:
        groups, width, like = self.layer_config.num_key_value_heads, self.layer.width, self.fuse.weight
        cache = KVCache.new((1, groups, width, width), batch_size, capacity, like)
        return TreeSession(self, cache)

    def forward(self, hidden: Tensor, tokens: Tensor, depths: int | None = None) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        attend, states, outputs = PathAttention(), self._fused(hidden), []
        for depth in range(depths or self.trained_depths):
            embedding = self._embedding(shifted(tokens, 1 + depth), states)
            states = self.layer(states, embedding, positions + depth, attend)
            states, output = self.step(depth, states, tokens)
            outputs.append(output)
        return torch.stack(outputs)

    def read(self, hidden: Tensor, next_tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        assert cache is not None, "training has its own attention"
        return self.run(self._fused(hidden), next_tokens, cache, cache.positions(hidden.shape[1]), None)

    def step(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the next depth reads, and Norm(a), both [B, N, H], of the layer's output a; tokens are not read.

        Deeper in the tree `TreeSession` runs the layer before this call.
        """
        output = self.output_norm(states)
        return (output if self.config.version == "3.1" else states), output

    def run(
        self, states: Tensor, tokens: Tensor, cache: KVCache, positions: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Return a [B, N, H] of states [B, N, H] and the tokens Long [B, N] after them; see `DecoderStack.forward`."""
        attend = partial(cached_attention, cache, mask)
        return self.layer(states, self._embedding(tokens, states), positions, attend)

    def _fused(self, hidden: Tensor) -> Tensor:
        """Return g = FC([l ; m ; h]) [B, N, H] of the target's hidden states [B, N, W]."""
        if self.norms:
            parts = hidden.chunk(3, dim=-1)
            hidden = torch.cat([norm(part) for norm, part in zip(self.norms, parts, strict=True)], dim=-1)
        return self.fuse(hidden).to(self.fuse.weight.dtype)  # Under autocast the states stay in float32.

    def _embedding(self, tokens: Tensor, like: Tensor) -> Tensor:
        return self.target.embedding_weight[tokens].to(like.dtype)
