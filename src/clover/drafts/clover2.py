"""Clover-2 (arXiv 2408.00264): a recurrent draft that folds in the newest token before its augmenting block.

At position t, with the target's hidden state h_t and the token x_{t+1} that the target itself has produced:

    u_t = A1(h_t, E[x_{t+1}])                  `fold`      once per verified position
    s   = Norm1(Aug(u_<=t))                    `augment`   two decoder layers of the target's own kind, causal
    o_1 = Norm2(FC1 s)               `first_projector`     head 1: logits = lm_head(o_1), for token x_{t+2}
    s   = A2(s, E[x_{t+i}])                    `recur`     heads i = 2 … N: a recurrent network over drafted tokens
    o_i = Norm2(FC2 [s ; E[x_{t+i}]])      `projector`     heads i = 2 … N: logits = lm_head(o_i), for x_{t+1+i}

    A(s, e) = s + concat_j(cos(q_j, k_j) · v_j),   q = Wq RMSNorm(s), k = Wk e, v = Wv e, j the attention heads

Heads 2 to N share A2 and FC2, and all heads share Norm2, so a tree may be deeper than in training. E are rows of the
target's frozen lm_head, multiplied by `embedding_scale`. h_t is the state after the target's final norm; the paper
takes it before the norm (`hidden_state=pre_norm`). Starting values: Aug is fresh, or copies of the target's last layer
(`start=last_layer`, as in the paper); Norm1 and Norm2 are the target's final norm; Wq = Wk = FC1 = I, FC2 = [I | 0],
Wv = 0, all plus small zero-mean noise (the authors' noise has mean 0.005, which adds a matrix of rank one); biases 0.

The paper's loss (`--loss paper`; the default is only its second term), with f the target's state that o_i predicts:
Σ_i 0.7^i · (10 · SmoothL1(o_i, f) + softCE(softmax(W f), W o_i)).

Shapes: B batch, A committed positions, P frontier nodes, H hidden, V vocabulary.
"""

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from clover.cache import KVCache
from clover.cpu.linear import linear_of
from clover.drafts.base import DraftModel
from clover.drafts.config import Count, DraftConfig, OneLayer, Scale, Start
from clover.drafts.layers import (
    NOISE,
    TokenTable,
    attention_heads,
    cosine_weighted,
    has_room,
    identity_linear,
    start_linear,
    unit_scale,
)
from clover.drafts.training import LossConfig, PaperRecipe, TrainingDefaults
from clover.target import TargetWeights
from clover.target.decoder import DecoderStack


class Clover2Config(DraftConfig):
    """Configuration of a Clover-2 draft.

    Attributes:
        num_augmenting_layers: decoder layers of the augmenting block, 2 in the paper; for ablations.
        projector_embedding: whether FC2 reads [s ; E[x]], as in the paper, or only s; for ablations.
        embedding: the source of E: "lm_head", as in the paper, or "input", the target's input embedding; for ablations.
        embedding_scale: factor of the rows of E, 1 in the paper (in Clover-1 it is a length). None until `start_from`
            sets it so that the entries of E have mean square 1, as states do; a saved draft has a number.
        start: starting values of the augmenting layers: "fresh", or "last_layer", copies of the target's last layer,
            as in the paper.
        hidden_state: "post_norm", or "pre_norm", as in the paper.
    """

    model_type = "clover2"
    num_augmenting_layers: Count = 2
    projector_embedding: bool = True
    embedding: Literal["lm_head", "input"] = "lm_head"
    embedding_scale: Scale | None = None
    start: Start = "fresh"
    hidden_state: OneLayer = "post_norm"


class CosineAttention(nn.Module):
    """A(s, e), the attention decoder, without a softmax, because each query has one key."""

    def __init__(self, hidden_size: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.query = identity_linear(hidden_size, hidden_size)
        self.key_value = nn.Linear(hidden_size, 2 * hidden_size)
        start_linear(self.key_value, torch.eye(2 * hidden_size, hidden_size), NOISE)

    def forward(self, state: Tensor, embedding: Tensor) -> Tensor:
        """Return A(s, e) [..., H] of a state s [..., H] and a token embedding e [..., H]."""
        return self.attend(state, *self.key_value(embedding).chunk(2, dim=-1))

    def attend(self, state: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return A(s, e) [..., H] of s [..., H], k = Wk e and v = Wv e, both [..., H]."""
        return state + cosine_weighted(self.query(self.norm(state)), key, value, self.num_heads)


class Clover2Draft(DraftModel):
    """The Clover-2 draft model."""

    config: Clover2Config  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = Clover2Config
    label, color = "Clover-2 (paper)", "#0072b2"
    training_defaults = TrainingDefaults(
        paper_loss=LossConfig(regression_weight=10.0, relative=False),
        paper_recipe=PaperRecipe(
            lr=1e-3,
            betas=(0.9, 0.95),
            warm_up=2_000 / 85_000,  # 20 epochs of 68,000 dialogues, 16 at a time
            clip_value=0.5,
            options={"hidden_state": "pre_norm", "start": "last_layer", "embedding_scale": 1.0},
        ),
    )
    repeats_step = True

    def __init__(self, config: Clover2Config):
        super().__init__(config)
        size, heads = config.target_shape.hidden_size, attention_heads(config.target_shape)
        self.fold = CosineAttention(size, heads)
        self.augment = DecoderStack(config.target_shape, config.num_augmenting_layers)  # Norm1 included
        self.first_projector = identity_linear(size, size)
        self.recur = CosineAttention(size, heads)
        self.projector = identity_linear(2 * size if config.projector_embedding else size, size)
        self.output_norm = copy.deepcopy(self.augment.final_norm)
        self.token_table: TokenTable | None = None  # Wk e, Wv e and FC2's half for e
        self.of_state: nn.Linear | None = None  # FC2's half for s
        self.post_init()

    def start_from(self, target: TargetWeights) -> None:
        """Copy the target's final norm into both norms, and its last layer if `Clover2Config.start` is "last_layer"."""
        if self.config.start == "last_layer":
            self.augment.copy_last_layer(target)
        for norm in (self.augment.final_norm, self.output_norm):
            norm.load_state_dict(target.final_norm.state_dict())
        if self.config.embedding_scale is None:
            self.config.embedding_scale = unit_scale(self._rows(target))

    def embed(self, tokens: Tensor) -> Tensor:
        """Return E[x] [..., H] of tokens x Long [...]."""
        return self._rows(self.target)[tokens] * (self.config.embedding_scale or 1.0)

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        return self.augment.new_cache(batch_size, capacity)

    def read(self, hidden: Tensor, next_tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return s = Norm1(Aug(u)) [B, A, H], u = A1(h, E[x]), of the target's h [B, A, H] and tokens x Long [B, A]."""
        folded = self.fold(hidden, self.embed(next_tokens).to(hidden.dtype))
        return self.augment(folded, cache=cache)

    def step(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return s and o of head depth + 1, both [B, P, H], from the parents' s [B, P, H] and the tokens Long [B, P].

        Head 1 only projects the state, which already contains the token. Later heads fold in their own token.
        """
        if depth == 0:
            return states, self.output_norm(self.first_projector(states))
        if self.token_table is not None and self.of_state is not None:
            key, value, projected = self.token_table(tokens)
            states = self.recur.attend(states, key, value)
            return states, self.output_norm(projected + self.of_state(states))
        embedding = self.embed(tokens).to(states.dtype)
        states = self.recur(states, embedding)
        both = torch.cat((states, embedding), dim=-1) if self.config.projector_embedding else states
        return states, self.output_norm(self.projector(both))

    def make_tables(self) -> None:
        rows, size = self._rows(self.target), self.projector.out_features
        if not has_room(rows, 3 * size):
            return
        rows = self.embed(torch.arange(len(rows), device=rows.device))
        weight, bias = self.projector.weight, self.projector.bias.expand_as(rows)
        projected = bias + rows @ weight[:, size:].T if self.config.projector_embedding else bias
        self.token_table = TokenTable((*self.recur.key_value(rows).chunk(2, dim=-1), projected))
        self.of_state = linear_of(weight[:, :size])

    def _rows(self, target: TargetWeights) -> Tensor:
        return target.lm_head_weight if self.config.embedding == "lm_head" else target.embedding_weight
