"""Medusa-1 (arXiv 2401.10774): independent heads on the target's hidden state.

Head i = 1 … N at position t, with the target's hidden state f_t after its final norm:

    o_i = f_t + SiLU(W_i f_t + b_i)    logits = lm_head_i(o_i), for token x_{t+1+i}

Every head has its own lm_head, which starts as a copy of the target's. No head reads the token x_{t+1}, which is
already known, or tokens from other heads. So the distribution at a depth is the same on every path.

Shapes: D heads, H hidden, V vocabulary.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clover.drafts.base import DraftModel
from clover.drafts.config import DraftConfig
from clover.drafts.layers import ResidualBlock
from clover.drafts.training import LossConfig, TrainingDefaults
from clover.target import TargetWeights


class MedusaConfig(DraftConfig):
    """Configuration of a Medusa draft. Each head has its `own_lm_head`, as in the paper, or the target's frozen one."""

    model_type = "medusa"
    own_lm_head: bool = True
    hidden_state: Literal["post_norm"] = "post_norm"


class MedusaDraft(DraftModel):
    """The Medusa draft model."""

    config: MedusaConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = MedusaConfig
    label, color = "Medusa", "#d55e00"
    training_defaults = TrainingDefaults(
        paper_loss=LossConfig(distillation_weight=0.0, label_weight=1.0, decay=0.8)
    )
    conditions_on_drafted_tokens = False

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
    def start_from(self, target: TargetWeights) -> None:
        """Copy the target's lm_head to every head."""
        if self.lm_heads is not None:
            rows = target.lm_head_weight if self.d2t is None else target.lm_head_weight[self.d2t]
            self.lm_heads.copy_(rows.expand_as(self.lm_heads))

    @property
    def head_parameters(self) -> list[nn.Parameter]:
        return [] if self.lm_heads is None else [self.lm_heads]

    def step(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return states, self.heads[depth](states)

    def logits(self, outputs: Tensor, depth: int = 0) -> Tensor:
        if self.lm_heads is None:
            return super().logits(outputs)
        return self._scaled(F.linear(outputs, self.lm_heads[depth]))

    def train_logits(self, outputs: Tensor, rows: Tensor | None = None) -> Tensor:
        if self.lm_heads is None:
            return super().train_logits(outputs, rows)
        heads = self.lm_heads[: outputs.shape[-2]]
        heads = heads if rows is None else heads[:, rows]
        return self._scaled(torch.einsum("...dh,dvh->...dv", outputs, heads), rows)

    def _scaled(self, logits: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return logits with the bias, the scale and the cap of the target's lm_head."""
        bias = self.lm_head.bias
        bias = bias if bias is None or rows is None else bias[rows]
        return self.target.head.scaled(logits if bias is None else logits + bias.to(logits.dtype))
