"""Clover-2 (arXiv 2408.00264): a recurrent draft that folds the newest token in before its augmenting layers.

At position t, with the target's hidden state h_t and the token x_{t+1} that the target itself has produced:

    u_t = A1(h_t, E[x_{t+1}])          fold        once per verified position
    s_t = Norm1(Aug(u_<=t))            augment     two decoder layers of the target's own kind, with a KV cache
    o   = Norm2(FC1 s)                 head 1      logits = lm_head(o)
    s   = A2(s, E[x]); o = Norm2(FC2 [s ; E[x]])   heads 2 … N, a recurrent network over the drafted tokens x

E are the rows of the target's lm_head. They and the lm_head are shared with the target and frozen.

Shapes: B batch, A committed positions, P frontier nodes, T text, D heads, H hidden, V vocabulary.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from clover.cache import KVCache
from clover.drafts.base import DraftModel
from clover.drafts.config import DraftConfig
from clover.drafts.layers import CosineAttention, start_linear
from clover.errors import UserError
from clover.target import TargetModel
from clover.target.decoder import build_decoder, copy_last_layer, decoder_cache, final_norm, run_decoder


class Clover2Config(DraftConfig):
    """Configuration of a Clover-2 draft.

    Args:
        num_heads: depths it is trained to draft (5 in the paper).
        num_augmenting_layers: decoder layers between target and heads (2 in the paper).
        noise: standard deviation of the zero-mean noise on the starting values.
    """

    model_type = "clover2"

    def __init__(
        self, num_heads: int = 5, num_augmenting_layers: int = 2, noise: float = 0.01, **kwargs: Any
    ):
        self.num_heads = num_heads
        self.num_augmenting_layers = num_augmenting_layers
        self.noise = noise
        if num_heads < 1 or num_augmenting_layers < 1:
            raise UserError("a Clover-2 draft needs at least one head and one augmenting layer")
        super().__init__(**kwargs)


class Clover2Draft(DraftModel):
    """The Clover-2 draft model."""

    config: Clover2Config  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = Clover2Config

    def __init__(self, config: Clover2Config):
        super().__init__(config)
        shape = config.target_shape
        size, heads = shape.hidden_size, shape.num_attention_heads
        self.augment = build_decoder(config.target_config, config.num_augmenting_layers)
        self.fold = CosineAttention(size, heads, config.noise)
        self.recur = CosineAttention(size, heads, config.noise)
        self.first_projector = nn.Linear(size, size)
        self.projector = nn.Linear(2 * size, size)
        self.output_norm = copy.deepcopy(final_norm(self.augment))
        self._start_projectors(size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Starting values are set by the constructors and `start_from`, not by a general rule."""

    def _start_projectors(self, size: int) -> None:
        identity = torch.eye(size)
        start_linear(self.first_projector, identity, self.config.noise)
        start_linear(
            self.projector, torch.cat((identity, torch.zeros_like(identity)), dim=1), self.config.noise
        )

    def start_from(self, target: TargetModel) -> None:
        """Both augmenting layers copy the target's last layer, both norms its final norm."""
        copy_last_layer(target, self.augment)
        self.output_norm.load_state_dict(final_norm(self.augment).state_dict())

    @property
    def max_depth(self) -> int:
        return self.config.num_heads

    def new_session(self, batch_size: int, capacity: int) -> Clover2Session:
        return Clover2Session(self, batch_size, capacity)

    def train_outputs(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        embedding = self.target.lm_head_weight
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        following = embedding[_shifted(tokens, 1)].to(hidden.dtype)
        state = run_decoder(self.augment, self.fold(hidden, following), positions)
        outputs = [self._first_output(state)]
        for head in range(1, self.max_depth):
            forced = embedding[_shifted(tokens, 1 + head)].to(hidden.dtype)
            state = self.recur(state, forced)
            outputs.append(self._output(state, forced))
        return torch.stack(outputs)

    def _first_output(self, state: Tensor) -> Tensor:
        return self.output_norm(self.first_projector(state))

    def _output(self, state: Tensor, embedding: Tensor) -> Tensor:
        return self.output_norm(self.projector(torch.cat((state, embedding), dim=-1)))


class Clover2Session:
    """A Clover-2 draft in one running batch: the augmenting layers' cache and the states of the tree's frontier."""

    def __init__(self, draft: Clover2Draft, batch_size: int, capacity: int):
        self.draft = draft
        self.cache: KVCache = decoder_cache(draft.augment, batch_size, capacity)
        self.states = torch.empty(0)  # [B, P, H], of the nodes that were expanded last

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        draft, cache = self.draft, self.cache
        added = hidden.shape[1]
        positions = cache.positions(added)
        cache.begin(added)
        inputs = draft.fold(hidden, draft.target.lm_head_weight[next_tokens])
        states = run_decoder(draft.augment, inputs, positions, None, cache)
        cache.commit(counts)
        self.states = _last(states, counts)
        return draft.target.logits(draft._first_output(self.states[:, 0]))

    def advance(self, slots: Tensor, tokens: Tensor) -> Tensor:
        draft = self.draft
        embedding = draft.target.lm_head_weight[tokens]
        parents = self.states.gather(1, slots.unsqueeze(-1).expand(-1, -1, self.states.shape[-1]))
        self.states = draft.recur(parents, embedding)
        return draft.target.logits(draft._output(self.states, embedding))

    def drop(self, row: int) -> None:
        self.cache.drop(row)

    def crop(self, lengths: list[int]) -> None:
        self.cache.crop(lengths)


def _shifted(tokens: Tensor, by: int) -> Tensor:
    """Tokens [B, T] moved left by `by` places; what comes in at the end is token 0 (the loss leaves it out)."""
    return nn.functional.pad(tokens, (0, by))[:, by:]


def _last(states: Tensor, counts: list[int]) -> Tensor:
    """The last real position of each row: [B, A, H] to [B, 1, H]."""
    if min(counts) == max(counts) >= 1:
        return states[:, counts[0] - 1 : counts[0]]
    rows = torch.arange(len(counts), device=states.device)
    last = torch.tensor([max(count - 1, 0) for count in counts], device=states.device)
    return states[rows, last].unsqueeze(1)
