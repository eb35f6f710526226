"""EAGLE-1 (arXiv 2401.15077): a draft that predicts the target's next hidden state, one decoder layer at a time.

With the target's hidden states f after its final norm and its input embedding E, both frozen:

    z_t = FC([E[x_{t+1}] ; f_t])       a linear layer, 2H to H
    o_t = Layer(z_<=t)                 one decoder layer of the target's own kind; o_t stands for f_{t+1}
    logits = lm_head(o_t)              the target's own, for token t + 2

Deeper in the tree o_t takes the place of f_{t+1}: one layer is run for every node, on a cache of its own that holds
the pairs of true states and, after them, the nodes' ancestors.

As in the authors' code the layer has no norm before its attention, no final norm follows it, and it starts from random
weights. Families whose attention has no norm to itself keep their layer as it is (`clover.target.decoder.input_norm`):
OLMo-2 norms the outputs of attention and MLP instead, Phi and Cohere give one norm to both.

`scale_embedding` brings E to entries of mean square 1, the size of the states beside it. The authors' code does not,
and the draft then learns less from the same text (docs/log.md).

Shapes: B batch, N positions or nodes, T text, H hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from clover.cache import KVCache
from clover.drafts.base import DraftModel
from clover.drafts.config import Count, DraftConfig, LossConfig, PaperRecipe
from clover.drafts.frontier_session import shifted
from clover.drafts.layers import unit_scale
from clover.drafts.tree_session import TreeSession
from clover.target import TargetModel
from clover.target.decoder import build_decoder, decoder_cache, remove_outer_norms, run_decoder


class EagleConfig(DraftConfig):
    """Configuration of an EAGLE-1 draft.

    Args:
        num_heads: depth of its own tree (5 as in the paper); it learns one step, and repeats it up to 16 times.
        hidden_state: "post_norm" alone: it predicts what it reads.
        scale_embedding: whether E is scaled to entries of mean square 1.
    """

    model_type = "eagle"

    def __init__(
        self,
        num_heads: Count = 5,
        hidden_state: Literal["post_norm"] = "post_norm",
        scale_embedding: bool = False,
        **kwargs: Any,
    ):
        self.num_heads = num_heads
        self.scale_embedding = scale_embedding
        super().__init__(hidden_state=hidden_state, **kwargs)


class EagleDraft(DraftModel):
    """The EAGLE-1 draft model.

    The paper's loss is SmoothL1 of the state plus a tenth of the soft cross-entropy, with noise U(-0.1, 0.1) on the
    states. Both are in units of the states there; the default takes them relative to the states' deviation.
    """

    config: EagleConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = EagleConfig
    repeats_step = True
    default_loss = LossConfig(distillation_weight=0.1, regression_weight=1.0, noise=0.1)
    paper_loss = replace(default_loss, relative=False)
    paper_recipe = PaperRecipe(lr=3e-5, warm_up_steps=2000, clip_value=0.5)

    def __init__(self, config: EagleConfig):
        super().__init__(config)
        size = config.target_shape.hidden_size
        self.projector = nn.Linear(2 * size, size)
        self.layer = build_decoder(config.target_config, 1)
        remove_outer_norms(self.layer)
        self.embedding_scale = 1.0
        self.post_init()

    def bind(self, target: TargetModel) -> Self:
        if self.config.scale_embedding:
            self.embedding_scale = unit_scale(target.embedding_weight)
        return super().bind(target)

    @property
    def trained_depths(self) -> int:
        return 1

    def new_session(self, batch_size: int, capacity: int) -> TreeSession:
        return TreeSession(self, decoder_cache(self.layer, batch_size, capacity))

    def train_outputs(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return run_decoder(self.layer, self._joined(hidden, shifted(tokens, 1)), positions).unsqueeze(0)

    def read(self, hidden: Tensor) -> Tensor:
        """The target's states [B, N, H] themselves."""
        return hidden

    def step(
        self, states: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> Tensor:
        """See `clover.drafts.tree_session.StepwiseDraft`."""
        return run_decoder(self.layer, self._joined(states, tokens), positions, mask, cache)

    def state_logits(self, states: Tensor) -> Tensor:
        """Logits [..., V] of predicted states [..., H]."""
        return self.logits(states)

    def _joined(self, states: Tensor, tokens: Tensor) -> Tensor:
        """What the layer reads [B, N, H]: states [B, N, H], each with the token [B, N] after it."""
        embedding = (self.target.embedding_weight[tokens] * self.embedding_scale).to(states.dtype)
        return self.projector(torch.cat((embedding, states), dim=-1)).to(states.dtype)
