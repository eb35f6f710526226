"""Hydra (arXiv 2402.05109): Medusa's heads; each head reads the embeddings of all tokens on its path.

Head i = 1 … N at position t, with the target's hidden state f_t after its final norm, and the embeddings e of the token
x_{t+1}, which the target itself has produced, and of the tokens drafted after it:

    o_i = f_t + V_i SiLU(U_i [f_t ; e(x_{t+1}) ; … ; e(x_{t+i})])    logits = lm_head(o_i), for token x_{t+1+i}

V_i starts at 0, so that the heads start as the target's own prediction from f_t. The rows e of the target's input
embedding, and the lm_head, are shared with the target and frozen. Hydra++ adds one decoder layer of the target's own
kind between f and the heads, which runs once per verified position.

Shapes: H hidden.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from clover.cache import KVCache
from clover.drafts.base import DraftModel
from clover.drafts.config import DraftConfig
from clover.drafts.layers import start_linear
from clover.drafts.training import LossConfig, TrainingDefaults
from clover.target import TargetWeights
from clover.target.decoder import DecoderStack


class HydraConfig(DraftConfig):
    """Configuration of a Hydra draft; `prefix_attention` is the decoder layer of Hydra++."""

    model_type = "hydra"
    prefix_attention: bool = False
    hidden_state: Literal["post_norm"] = "post_norm"


class HydraDraft(DraftModel):
    """The Hydra draft model. The loss in its paper is Medusa's; the loss of Hydra++ is distillation."""

    config: HydraConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = HydraConfig
    label, color = "Hydra", "#7a5c3e"
    training_defaults = TrainingDefaults(
        paper_loss=LossConfig(distillation_weight=0.0, label_weight=1.0, decay=0.8)
    )

    def __init__(self, config: HydraConfig):
        super().__init__(config)
        size = config.target_shape.hidden_size
        self.prefix: DecoderStack | None = None
        if config.prefix_attention:
            self.prefix = DecoderStack(config.target_shape, 1)
        self.heads = nn.ModuleList(_head(size, head) for head in range(config.num_heads))
        self.post_init()

    def start_from(self, target: TargetWeights) -> None:
        """Copy the target's last layer and final norm into the prefix layer."""
        if self.prefix is not None:
            self.prefix.copy_last_layer(target)
            self.prefix.final_norm.load_state_dict(target.final_norm.state_dict())

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        if self.prefix is None:
            return super().new_cache(batch_size, capacity)
        return self.prefix.new_cache(batch_size, capacity)

    def read(self, hidden: Tensor, next_tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        return hidden if self.prefix is None else self.prefix(hidden, cache=cache)

    def step(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state [f ; e … ] [..., H·(i + 1)], with all embeddings of the path, and o_i [..., H]."""
        embedding = self.target.embedding_weight[tokens].to(states.dtype)
        states = torch.cat((states, embedding), dim=-1)
        return states, states[..., : self.target.hidden_size] + self.heads[depth](states)


def _head(size: int, index: int) -> nn.Sequential:
    """Return the MLP of head `index`, counted from 0, on [f ; e ; … ] [..., H·(index + 2)]."""
    last = nn.Linear(size, size)
    start_linear(last, torch.zeros(size, size))
    return nn.Sequential(nn.Linear((index + 2) * size, size), nn.SiLU(), last)
