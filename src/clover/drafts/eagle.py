"""EAGLE-1 (arXiv 2401.15077): a draft that predicts the target's next hidden state, one decoder layer at a time.

With the target's hidden states f after its final norm and its input embedding E, both frozen:

    z_t = FC([E[x_{t+1}] ; f_t])       a linear layer, 2H to H
    o_t = Layer(z_<=t)                 one decoder layer of the target's own kind; o_t stands for f_{t+1}
    logits = lm_head(o_t)              the target's own, for token t + 2

Deeper in the tree o_t replaces f_{t+1}: one layer runs for every node, on a separate cache, which has the pairs with
true states and, after them, the nodes' ancestors.

As in the authors' code, the layer has no norm before its attention (if the target's layers have a separate one, see
`input_norm`), no final norm follows it, and it starts from random weights.

Shapes: B batch, N positions or nodes, H hidden.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from clover.cache import KVCache
from clover.drafts.base import DraftModel
from clover.drafts.config import DraftConfig
from clover.drafts.session import TreeSession
from clover.drafts.training import LossConfig, PaperRecipe, TrainingDefaults
from clover.target.decoder import DecoderStack


class EagleConfig(DraftConfig):
    """Configuration of an EAGLE-1 draft, which predicts the kind of hidden states that it reads."""

    model_type = "eagle"
    hidden_state: Literal["post_norm"] = "post_norm"


class EagleDraft(DraftModel):
    """The EAGLE-1 draft model.

    The paper's loss is SmoothL1 of the state plus 0.1 times the soft cross-entropy, with noise U(-0.1, 0.1) on the
    states. The paper does not scale SmoothL1 and the noise; by default they are relative to the states' deviation.
    """

    config: EagleConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = EagleConfig
    label, color = "EAGLE-1", "#e69f00"
    training_defaults = TrainingDefaults(
        loss=LossConfig(distillation_weight=0.1, regression_weight=1.0, noise=0.1),
        optimizer="adamw",  # with Muon it predicts the texts' first tokens everywhere (development/log.md)
        paper_loss=LossConfig(distillation_weight=0.1, regression_weight=1.0, noise=0.1, relative=False),
        paper_recipe=PaperRecipe(lr=3e-5, warm_up=2_000 / 800_000, clip_value=0.5),
    )
    repeats_step = True

    def __init__(self, config: EagleConfig):
        super().__init__(config)
        size = config.target_shape.hidden_size
        self.projector = nn.Linear(2 * size, size)
        self.layer = DecoderStack(config.target_shape, 1)
        self.layer.remove_outer_norms()
        self.post_init()

    @property
    def trained_depths(self) -> int:
        return 1

    def new_session(self, batch_size: int, capacity: int) -> TreeSession:
        return TreeSession(self, self.layer.new_cache(batch_size, capacity))

    def read(self, hidden: Tensor, next_tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        return self.run(hidden, next_tokens, cache)

    def step(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return o [B, N, H] twice, unchanged, because no norm follows; tokens Long [B, N] are not read.

        Deeper in the tree `TreeSession` runs the layer before this call.
        """
        return states, states

    def run(
        self,
        states: Tensor,
        tokens: Tensor,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return o [B, N, H] of states [B, N, H] and the tokens Long [B, N] after them; see `DecoderStack.forward`."""
        embedding = self.target.embedding_weight[tokens].to(states.dtype)
        joined = self.projector(torch.cat((embedding, states), dim=-1)).to(states.dtype)
        return self.layer(joined, positions, mask, cache)
