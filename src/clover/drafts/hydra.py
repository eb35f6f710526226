"""Hydra (arXiv 2402.05109): Medusa's heads, each reading the embeddings of all tokens on its path.

Head i = 1 … N at position t, with the target's hidden state f_t after its final norm and embeddings e of the token
x_{t+1} that the target itself has produced and of the tokens drafted after it:

    o_i = f_t + V_i SiLU(U_i [f_t ; e(x_{t+1}) ; … ; e(x_{t+i})])    logits = lm_head(o_i), for token x_{t+1+i}

V_i starts at 0, so that the heads start with what the target says of f_t. e are the rows of the target's input
embedding; they and the lm_head are shared with the target and frozen. Hydra++ puts one decoder layer of the target's
own kind between f and the heads; it runs once per verified position.

Shapes: B batch, A committed positions, P frontier nodes, T text, D heads, H hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from clover.drafts.base import DraftModel
from clover.drafts.config import Count, DraftConfig, LossConfig
from clover.drafts.frontier_session import FrontierSession, counting_cache, last_position, shifted
from clover.drafts.layers import start_linear
from clover.target import TargetModel
from clover.target.decoder import (
    DecoderStack,
    build_decoder,
    copy_last_layer,
    decoder_cache,
    final_norm,
    run_decoder,
)


class HydraConfig(DraftConfig):
    """Configuration of a Hydra draft.

    Args:
        num_heads: depths it is trained to draft.
        prefix_attention: the decoder layer of Hydra++.
        hidden_state: which states it reads.
    """

    model_type = "hydra"

    def __init__(
        self,
        num_heads: Count = 5,
        prefix_attention: bool = False,
        hidden_state: Literal["post_norm"] = "post_norm",
        **kwargs: Any,
    ):
        self.num_heads = num_heads
        self.prefix_attention = prefix_attention
        super().__init__(hidden_state=hidden_state, **kwargs)


class HydraDraft(DraftModel):
    """The Hydra draft model. Its own paper's loss is Medusa's; that of Hydra++ is distillation."""

    config: HydraConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = HydraConfig
    paper_loss = LossConfig(distillation_weight=0.0, label_weight=1.0, decay=0.8)

    def __init__(self, config: HydraConfig):
        super().__init__(config)
        size = config.target_shape.hidden_size
        self.prefix: DecoderStack | None = None
        if config.prefix_attention:
            self.prefix = build_decoder(config.target_config, 1)
        self.heads = nn.ModuleList(_head(size, head) for head in range(config.num_heads))
        self.post_init()

    def start_from(self, target: TargetModel) -> None:
        """The prefix layer copies the target's last layer and final norm."""
        if self.prefix is not None:
            copy_last_layer(target, self.prefix)
            final_norm(self.prefix).load_state_dict(target.final_norm.state_dict())

    def new_session(self, batch_size: int, capacity: int) -> HydraSession:
        return HydraSession(self, batch_size, capacity)

    def train_outputs(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        path = hidden if self.prefix is None else run_decoder(self.prefix, hidden, positions)
        outputs = []
        for head in range(self.trained_depths):
            path = self._longer(path, shifted(tokens, 1 + head))
            outputs.append(self._output(head, path))
        return torch.stack(outputs)

    def _longer(self, path: Tensor, tokens: Tensor) -> Tensor:
        """[f ; e … ] [..., H·i] with the embeddings of tokens Long [...] behind it: [..., H·(i + 1)]."""
        return torch.cat((path, self.target.embedding_weight[tokens].to(path.dtype)), dim=-1)

    def _output(self, head: int, path: Tensor) -> Tensor:
        return path[..., : self.target.hidden_size] + self.heads[head](path)


class HydraSession(FrontierSession):
    """A Hydra draft in one running batch; the state of a node is [f ; e … ], its path's embeddings side by side."""

    def __init__(self, draft: HydraDraft, batch_size: int, capacity: int):
        if draft.prefix is None:
            super().__init__(counting_cache(batch_size, draft.target.lm_head_weight))
        else:
            super().__init__(decoder_cache(draft.prefix, batch_size, capacity))
        self.draft = draft

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        cache, prefix = self.cache, self.draft.prefix
        positions = cache.positions(hidden.shape[1])
        cache.begin(hidden.shape[1])
        states = hidden if prefix is None else run_decoder(prefix, hidden, positions, None, cache)
        cache.commit(counts)
        self.depth = 0
        return self._step(last_position(states, counts), last_position(next_tokens, counts))[:, 0]

    def advance(self, slots: Tensor, tokens: Tensor) -> Tensor:
        self.depth += 1
        return self._step(self.parents(slots), tokens)

    def _step(self, parents: Tensor, tokens: Tensor) -> Tensor:
        self.states = self.draft._longer(parents, tokens)
        return self.draft.logits(self.draft._output(self.depth, self.states))


def _head(size: int, index: int) -> nn.Sequential:
    """The MLP of head `index`, counted from 0, on [f ; e ; … ] [..., H·(index + 2)]."""
    last = nn.Linear(size, size)
    start_linear(last, torch.zeros(size, size))
    return nn.Sequential(nn.Linear((index + 2) * size, size), nn.SiLU(), last)
