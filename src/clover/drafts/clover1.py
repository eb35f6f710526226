"""Clover-1 (arXiv 2405.00263): Medusa's heads in sequence, each told the token that was chosen before it.

At position t, with the target's hidden state h_t, the token x_{t+1} that the target itself has produced, and drafted
tokens after it:

    s_0 = Aug(h_<=t)                   augment     one decoder layer of the target's own kind, with a KV cache
    s_i = Dec(s_{i-1}, e(x_{t+i}))     connect     attention decoder, the same weights at every step i = 1 … N
    o_i = Norm(MLP_i(s_i))             head i      logits = lm_head(o_i), for token x_{t+1+i}

e(x) is the token's row of the target's lm_head, normalised: scaled to entries of mean square 1, the size of the states
it meets (the paper does not say how; at length 1 the heads learn far less from the same text). The lm_head is shared
with the target and frozen.
The paper's ablations are values of the configuration: parts are left out or replaced.

Shapes: B batch, A committed positions, P frontier nodes, T text, D heads, H hidden, V vocabulary.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clover.drafts.base import DraftModel
from clover.drafts.config import DraftConfig, LossConfig
from clover.drafts.frontier_session import FrontierSession, counting_cache, last_position, shifted
from clover.drafts.layers import ResidualBlock, cosine_weighted, start_linear
from clover.drafts.options import ONE_LAYER_STATES, check_choice, check_count
from clover.target import TargetModel
from clover.target.decoder import DecoderStack, build_decoder, decoder_cache, run_decoder, take_final_norm
from clover.target.parts import Half, copy_last_layer_part, keep_half


class Clover1Config(DraftConfig):
    """Configuration of a Clover-1 draft.

    Args:
        num_heads: depths it is trained to draft (3 in the paper).
        augmenting: "block", one decoder layer between target and heads; "attention" or "mlp", that half of it alone;
            "none", so that s_0 = h.
        connection: "attention", the attention decoder; "mlp", a plain MLP on the concatenation of state and
            embedding; "none", so that all heads see s_0 and no drafted token. Without augmenting and connection the
            system is Medusa with a shared lm_head.
        noise: standard deviation of the zero-mean noise on the starting values of Wq and Wk.
        hidden_state: "pre_norm" in the paper, whose states go through the target's final norm after the heads;
            "post_norm", which a new draft has.
        start: starting values of the augmenting block: "last_layer", a copy of the target's last layer, as in the
            paper, or "fresh", as a new model has them, which a new draft has.
    """

    model_type = "clover1"

    def __init__(
        self,
        num_heads: int = 3,
        augmenting: str = "block",
        connection: str = "attention",
        noise: float = 0.01,
        hidden_state: str = "pre_norm",
        start: str = "last_layer",
        **kwargs: Any,
    ):
        self.num_heads = num_heads
        self.augmenting = augmenting
        self.connection = connection
        self.noise = noise
        self.start = start
        check_count("clover1", "num_heads", num_heads)
        check_choice("clover1", "augmenting", augmenting, ("block", "attention", "mlp", "none"))
        check_choice("clover1", "connection", connection, ("attention", "mlp", "none"))
        check_choice("clover1", "start", start, ("fresh", "last_layer"))
        check_choice("clover1", "hidden_state", hidden_state, ONE_LAYER_STATES)
        super().__init__(hidden_state=hidden_state, **kwargs)


class AttentionDecoder(nn.Module):
    """The regressive connection of Clover-1: `s + SiLU(sim(Wq Norm(s), Wk e) · Wv e)`, sim the cosine per head.

    Wq = Wk = I plus zero-mean noise of standard deviation `noise`, Wv = 0: it starts as the exact identity.
    """

    def __init__(self, hidden_size: int, num_heads: int, noise: float):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(3))
        start_linear(self.query, torch.eye(hidden_size), noise)
        start_linear(self.key, torch.eye(hidden_size), noise)
        start_linear(self.value, torch.zeros(hidden_size, hidden_size), noise=0.0)

    def forward(self, state: Tensor, embedding: Tensor) -> Tensor:
        """States [..., H] and token embeddings [..., H] to states [..., H]."""
        key, value = self.key(embedding), self.value(embedding)
        return state + F.silu(cosine_weighted(self.query(self.norm(state)), key, value, self.num_heads))


class ConcatMLP(nn.Module):
    """What the ablation has in place of the attention decoder: `s + W2 SiLU(W1 [Norm(s) ; e])`.

    W2 = 0: it starts as the exact identity. The norm, as in the attention decoder, brings s to the size of e.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.inner = nn.Linear(2 * hidden_size, hidden_size)
        self.outer = nn.Linear(hidden_size, hidden_size)
        start_linear(self.outer, torch.zeros(hidden_size, hidden_size), noise=0.0)

    def forward(self, state: Tensor, embedding: Tensor) -> Tensor:
        """States [..., H] and token embeddings [..., H] to states [..., H]."""
        return state + self.outer(F.silu(self.inner(torch.cat((self.norm(state), embedding), dim=-1))))


class Clover1Draft(DraftModel):
    """The Clover-1 draft model.

    Its own paper's loss is the cross-entropy with the data's tokens; the decay per head, which the paper leaves open,
    is that of Medusa, from which it starts.
    """

    config: Clover1Config  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = Clover1Config
    paper_loss = LossConfig(distillation_weight=0.0, label_weight=1.0, decay=0.8)
    new_options = MappingProxyType({"hidden_state": "post_norm", "start": "fresh"})

    def __init__(self, config: Clover1Config):
        super().__init__(config)
        shape = config.target_shape
        decoder = build_decoder(config.target_config, 1)
        self.output_norm = take_final_norm(decoder)
        if config.augmenting in ("attention", "mlp"):
            keep_half(decoder, cast(Half, config.augmenting))
        self.augment: DecoderStack | None = None if config.augmenting == "none" else decoder
        self.connect = _connection(config, shape.hidden_size, shape.num_attention_heads)
        self.heads = nn.ModuleList(ResidualBlock(shape.hidden_size) for _ in range(config.num_heads))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Starting values are set by the constructors and `start_from`, not by a general rule."""

    def start_from(self, target: TargetModel) -> None:
        """The norm copies the target's final norm; for the augmenting block see `Clover1Config`."""
        if self.augment is not None and self.config.start == "last_layer":
            copy_last_layer_part(target, self.augment)
        self.output_norm.load_state_dict(target.final_norm.state_dict())

    def new_session(self, batch_size: int, capacity: int) -> Clover1Session:
        return Clover1Session(self, batch_size, capacity)

    def train_outputs(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        state = hidden
        if self.augment is not None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            state = run_decoder(self.augment, hidden, positions)
        outputs = []
        for head in range(self.trained_depths):
            if self.connect is not None:
                state = self.connect(state, self._embedding(shifted(tokens, 1 + head)).to(state.dtype))
            outputs.append(self._output(head, state))
        return torch.stack(outputs)

    def _embedding(self, tokens: Tensor) -> Tensor:
        rows = self.target.lm_head_weight[tokens]
        return F.rms_norm(rows, rows.shape[-1:], eps=1e-12)

    def _output(self, head: int, state: Tensor) -> Tensor:
        return self.output_norm(self.heads[head](state))


class Clover1Session(FrontierSession):
    """A Clover-1 draft in one running batch: the augmenting block's cache and the states of the tree's frontier."""

    def __init__(self, draft: Clover1Draft, batch_size: int, capacity: int):
        attends = draft.augment is not None and draft.config.augmenting != "mlp"
        if attends:
            cache = decoder_cache(cast(DecoderStack, draft.augment), batch_size, capacity)
        else:
            cache = counting_cache(batch_size, draft.target.lm_head_weight)
        super().__init__(cache)
        self.draft = draft

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        cache, augment = self.cache, self.draft.augment
        positions = cache.positions(hidden.shape[1])
        cache.begin(hidden.shape[1])
        states = hidden if augment is None else run_decoder(augment, hidden, positions, None, cache)
        cache.commit(counts)
        self.depth, self.states = 0, last_position(states, counts)
        return self._step(self.states, last_position(next_tokens, counts))[:, 0]

    def advance(self, slots: Tensor, tokens: Tensor) -> Tensor:
        self.depth += 1
        parents = self.states if self.draft.connect is None else self.parents(slots)
        return self._step(parents, tokens)

    def _step(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """Logits [B, P, V] after tokens Long [B, P]; without a connection one row serves all nodes."""
        draft = self.draft
        if draft.connect is not None:
            self.states = draft.connect(parents, draft._embedding(tokens))
        logits = draft.logits(draft._output(self.depth, self.states))
        return logits.expand(-1, tokens.shape[1], -1)


def _connection(config: Clover1Config, size: int, num_heads: int) -> AttentionDecoder | ConcatMLP | None:
    if config.connection == "attention":
        return AttentionDecoder(size, num_heads, config.noise)
    return ConcatMLP(size) if config.connection == "mlp" else None
