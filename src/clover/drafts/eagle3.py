"""EAGLE-3 (arXiv 2503.01840): one attention layer over fused target layers, trained by unrolling on its own outputs.

With the target's hidden states l, m, h of a low, a middle and a high layer, and its frozen input embedding E:

    g_t = FC([l_t ; m_t ; h_t])                3H to H
    a_t = Layer(g_t, E[x_{t+1}])               attention over the pairs before, see `clover.drafts.fused_layer`
    logits = lm_head(Norm(a_t))                for token t + 2

Deeper in the tree a, as it left the layer, takes the place of g; nothing makes it resemble a hidden state of the
target. Training does the same for D steps ("training-time test"): step i at position t reads its own output of step
i - 1 and x_{t+1+i}, and sees what a node of the tree sees there: the true pairs up to t, and the steps 1 … i of this
same t, which lie behind one another at t + 1 … t + i.

What differs from the paper: its draft has an lm_head of its own, over the tokens that are frequent in the training
texts; here it is the target's, frozen, and whole unless `draft_vocab_size` takes the frequent rows only. The gain of
the norm before it starts as that of the target's final norm. Rotary positions are LLaMA's with the target's base and
scaling, whatever the target's own positions are. The draft learns D = 5 steps by default, as many as the systems beside
it; the authors' code has 7.

Shapes: B batch, N positions or nodes, T text, D depths, H hidden, W = 3H, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from clover.cache import KVCache
from clover.drafts.base import DraftModel
from clover.drafts.config import Count, DraftConfig, LossConfig, PaperRecipe
from clover.drafts.frontier_session import shifted
from clover.drafts.fused_layer import (
    FusedLayer,
    LayerShape,
    PathAttention,
    cached_attention,
    rotary_embedding,
)
from clover.drafts.tree_session import TreeSession
from clover.target import TargetModel


class Eagle3Config(DraftConfig):
    """Configuration of an EAGLE-3 draft.

    Args:
        num_heads: depths it is trained to draft, D.
        hidden_state: which states it reads.
    """

    model_type = "eagle3"

    def __init__(
        self,
        num_heads: Count = 5,
        hidden_state: Literal["low_middle_high"] = "low_middle_high",
        **kwargs: Any,
    ):
        self.num_heads = num_heads
        super().__init__(hidden_state=hidden_state, **kwargs)


class Eagle3Draft(DraftModel):
    """The EAGLE-3 draft model."""

    config: Eagle3Config  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = Eagle3Config
    repeats_step = True
    paper_loss = LossConfig(distillation_weight=1.0, regression_weight=0.0, decay=0.8)
    paper_recipe = PaperRecipe(lr=5e-5, clip_value=0.5)

    def __init__(self, config: Eagle3Config):
        super().__init__(config)
        self.shape = LayerShape.of(config.target_shape)
        size = self.shape.hidden_size
        self.fuse = nn.Linear(3 * size, size, bias=False)
        self.layer = FusedLayer(self.shape)
        self.output_norm = nn.RMSNorm(size, eps=self.shape.eps)
        self.post_init()

    @torch.no_grad()
    def start_from(self, target: TargetModel) -> None:
        """The output norm starts with the gain of the target's final norm, found by running it."""
        signs = torch.ones(self.shape.hidden_size, dtype=target.dtype, device=target.device)
        signs[1::2] = -1  # of deviation one, and of mean zero, for norms that take the mean out
        gain = (target.final_norm(signs) - target.final_norm(-signs)) / (2 * signs)
        self.output_norm.weight.copy_(gain)

    def bind(self, target: TargetModel) -> Self:
        self.layer.rotary = rotary_embedding(target.config, self.shape).to(target.device)
        return super().bind(target)

    def new_session(self, batch_size: int, capacity: int) -> TreeSession:
        shape, like = self.shape, self.fuse.weight
        heads = (shape.num_kv_heads, shape.head_dim, shape.head_dim)
        return TreeSession(self, KVCache.new(1, batch_size, *heads, capacity, like.dtype, like.device))

    def train_outputs(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        attend, states, outputs = PathAttention(), self.read(hidden), []
        for depth in range(self.trained_depths):
            embedding = self._embedding(shifted(tokens, 1 + depth), states)
            states = self.layer(states, embedding, positions + depth, attend)
            outputs.append(self.output_norm(states))
        return torch.stack(outputs)

    def read(self, hidden: Tensor) -> Tensor:
        """States g [B, N, H] of the target's hidden states [B, N, W]."""
        return self.fuse(hidden).to(self.fuse.weight.dtype)  # under autocast the states stay in float32

    def step(
        self, states: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> Tensor:
        """See `clover.drafts.tree_session.StepwiseDraft`."""
        attend = partial(cached_attention, cache, mask)
        return self.layer(states, self._embedding(tokens, states), positions, attend)

    def state_logits(self, states: Tensor) -> Tensor:
        """Logits [..., V] of the layer's outputs [..., H]."""
        return self.logits(self.output_norm(states))

    def _embedding(self, tokens: Tensor, like: Tensor) -> Tensor:
        return self.target.embedding_weight[tokens].to(like.dtype)
