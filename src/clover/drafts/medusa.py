"""Medusa-1 (arXiv 2401.10774): independent heads on the target's hidden state.

Head i = 1 … N at position t, with the target's hidden state f_t after its final norm:

    o_i = f_t + SiLU(W_i f_t + b_i)    logits = lm_head_i(o_i), for token x_{t+1+i}

Every head has an lm_head of its own, started from the target's. No head sees the token x_{t+1} that is already known,
nor what other heads have drafted: the distribution at a depth is the same on every path.

Shapes: B batch, A committed positions, P frontier nodes, T text, D heads, H hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clover.drafts.base import DraftModel
from clover.drafts.config import Count, DraftConfig, LossConfig
from clover.drafts.frontier_session import FrontierSession, counting_cache, last_position
from clover.drafts.layers import ResidualBlock
from clover.target import TargetModel


class MedusaConfig(DraftConfig):
    """Configuration of a Medusa draft.

    Args:
        num_heads: depths it is trained to draft (5 in the paper).
        own_lm_head: each head has its own lm_head, as in the paper; False shares the target's, frozen.
        hidden_state: which states it reads.
    """

    model_type = "medusa"

    def __init__(
        self,
        num_heads: Count = 5,
        own_lm_head: bool = True,
        hidden_state: Literal["post_norm"] = "post_norm",
        **kwargs: Any,
    ):
        self.num_heads = num_heads
        self.own_lm_head = own_lm_head
        super().__init__(hidden_state=hidden_state, **kwargs)


class MedusaDraft(DraftModel):
    """The Medusa draft model."""

    config: MedusaConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = MedusaConfig
    paper_loss = LossConfig(distillation_weight=0.0, label_weight=1.0, decay=0.8)

    def __init__(self, config: MedusaConfig):
        super().__init__(config)
        shape = config.target_shape
        self.heads = nn.ModuleList(ResidualBlock(shape.hidden_size) for _ in range(config.num_heads))
        self.lm_heads: nn.Parameter | None = None  # [D, V, H]
        if config.own_lm_head:
            size = (config.num_heads, config.draft_vocab_size or shape.vocab_size, shape.hidden_size)
            self.lm_heads = nn.Parameter(torch.zeros(size))
        self.post_init()

    @torch.no_grad()
    def start_from(self, target: TargetModel) -> None:
        """Every lm_head starts as the target's."""
        if self.lm_heads is not None:
            rows = target.lm_head_weight if self.d2t is None else target.lm_head_weight[self.d2t]
            self.lm_heads.copy_(rows.expand_as(self.lm_heads))

    @property
    def head_parameters(self) -> list[nn.Parameter]:
        return [] if self.lm_heads is None else [self.lm_heads]

    def new_session(self, batch_size: int, capacity: int) -> MedusaSession:
        return MedusaSession(self, batch_size)

    def train_outputs(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return torch.stack([head(hidden) for head in self.heads])

    def train_logits(self, outputs: Tensor) -> Tensor:
        if self.lm_heads is None:
            return super().train_logits(outputs)
        return self._scaled(torch.einsum("...dh,dvh->...dv", outputs, self.lm_heads))

    def head_logits(self, head: int, hidden: Tensor) -> Tensor:
        """Logits [..., V] of one head for hidden states [..., H]."""
        output = self.heads[head](hidden)
        if self.lm_heads is None:
            return self.logits(output)
        return self._scaled(F.linear(output, self.lm_heads[head]))

    def _scaled(self, logits: Tensor) -> Tensor:
        """With the bias, the scale and the cap that the target's own lm_head has."""
        bias = self.head_slice.bias
        return self.target.head.scaled(logits if bias is None else logits + bias.to(logits.dtype))


class MedusaSession(FrontierSession):
    """A Medusa draft in one running batch: of each row, the hidden state of its last position."""

    def __init__(self, draft: MedusaDraft, batch_size: int):
        super().__init__(counting_cache(batch_size, draft.target.lm_head_weight))
        self.draft = draft

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        self.cache.begin(hidden.shape[1])
        self.cache.commit(counts)
        self.depth, self.states = 0, last_position(hidden, counts)
        return self.draft.head_logits(0, self.states)[:, 0]

    def advance(self, slots: Tensor, tokens: Tensor) -> Tensor:
        self.depth += 1
        return self.draft.head_logits(self.depth, self.states).expand(-1, tokens.shape[1], -1)
