"""Clover-1 (arXiv 2405.00263): Medusa's heads in sequence; each head reads the token chosen before it.

At position t, with the target's hidden state h_t, the token x_{t+1} that the target itself has produced, and the
drafted tokens after it:

    s_0 = Aug(h_<=t)                               `augment`  one decoder layer of the target's own kind, causal
    s_i = s_{i-1} + SiLU(sim(q, k) · v)            `connect`  attention decoder, the same weights at every i = 1 … N
          q = Wq RMSNorm(s_{i-1}), k = Wk e(x_{t+i}), v = Wv e(x_{t+i}), sim the cosine per attention head
    o_i = Norm(s_i + SiLU(Linear_i(s_i)))          `heads`    logits = lm_head(o_i), for token x_{t+1+i}

e(x), the regressive connection, is the token's row of the target's lm_head, scaled to a fixed length ("normalized" in
the paper). The lm_head is shared with the target and frozen. h_t is the state after the target's final norm; the paper
takes it before the norm (`hidden_state=pre_norm`). Starting values: Aug is fresh, or copies the target's last layer
(`start=last_layer`, as in the paper); Wq = Wk = I plus small noise; Wv = Linear_i = 0, so the decoder starts as the
exact identity; Norm is the target's.

The paper's loss (`--loss paper`; the default is distillation) is cross-entropy with the data's tokens. The paper does
not state the decay per head; here it is Medusa's.

Shapes: B batch, A committed positions, P frontier nodes, H hidden.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clover.cache import KVCache
from clover.drafts.base import DraftModel
from clover.drafts.config import Count, DraftConfig, OneLayer, Scale, Start
from clover.drafts.layers import NOISE, ResidualBlock, attention_heads, cosine_weighted, start_linear
from clover.drafts.training import LossConfig, PaperRecipe, TrainingDefaults
from clover.target import TargetWeights
from clover.target.decoder import DecoderStack


class Clover1Config(DraftConfig):
    """Configuration of a Clover-1 draft.

    Attributes:
        augmenting: "block", one decoder layer between target and heads. For ablations: "attention" or "mlp", only that
            half of the layer; "none", so that s_0 = h.
        connection: "attention", the attention decoder. For ablations: "mlp", a plain MLP on the concatenated state and
            embedding; "none", so that all heads read s_0 and no drafted token.
        embedding_scale: length of every e(x), 1 in the paper (in Clover-2 it is a factor). None until `start_from`
            sets it to √H, so that entries have mean square 1, as states do; a saved draft has a number.
        start: starting values of the augmenting block: "fresh", or "last_layer", a copy of the target's last layer, as
            in the paper.
        hidden_state: "post_norm", or "pre_norm", as in the paper.
    """

    model_type = "clover1"
    num_heads: Count = 3
    augmenting: Literal["block", "attention", "mlp", "none"] = "block"
    connection: Literal["attention", "mlp", "none"] = "attention"
    embedding_scale: Scale | None = None
    start: Start = "fresh"
    hidden_state: OneLayer = "post_norm"


class AttentionDecoder(nn.Module):
    """s + SiLU(sim(Wq Norm(s), Wk e) · Wv e), without a softmax, because each query has one key."""

    def __init__(self, hidden_size: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(3))
        start_linear(self.query, torch.eye(hidden_size), NOISE)
        start_linear(self.key, torch.eye(hidden_size), NOISE)
        start_linear(self.value, torch.zeros(hidden_size, hidden_size))

    def forward(self, state: Tensor, embedding: Tensor) -> Tensor:
        """Return s_i [..., H] of s_{i-1} [..., H] and the newest token's e [..., H]."""
        key, value = self.key(embedding), self.value(embedding)
        return state + F.silu(cosine_weighted(self.query(self.norm(state)), key, value, self.num_heads))


class ConcatMLP(nn.Module):
    """The ablation's replacement for the attention decoder: `s + W2 SiLU(W1 [Norm(s) ; e])`.

    W2 starts at 0, so the start is the exact identity. The norm scales s to the size of e, as in the attention decoder.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.inner = nn.Linear(2 * hidden_size, hidden_size)
        self.outer = nn.Linear(hidden_size, hidden_size)
        start_linear(self.outer, torch.zeros(hidden_size, hidden_size))

    def forward(self, state: Tensor, embedding: Tensor) -> Tensor:
        """Return s_i [..., H] of s_{i-1} [..., H] and the newest token's e [..., H]."""
        return state + self.outer(F.silu(self.inner(torch.cat((self.norm(state), embedding), dim=-1))))


class Clover1Draft(DraftModel):
    """The Clover-1 draft model."""

    config: Clover1Config  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = Clover1Config
    label, color = "Clover-1 (paper)", "#56b4e9"
    training_defaults = TrainingDefaults(
        paper_loss=LossConfig(distillation_weight=0.0, label_weight=1.0, decay=0.8),
        paper_recipe=PaperRecipe(
            lr=1e-3,
            betas=(0.9, 0.999),
            schedule="cosine",
            options={"hidden_state": "pre_norm", "start": "last_layer", "embedding_scale": 1.0},
        ),
    )

    def __init__(self, config: Clover1Config):
        super().__init__(config)
        size, heads = config.target_shape.hidden_size, attention_heads(config.target_shape)
        decoder = DecoderStack(config.target_shape, 1)
        self.output_norm = decoder.take_final_norm()
        if config.augmenting in ("attention", "mlp"):
            decoder.keep_half(config.augmenting)
        self.augment = None if config.augmenting == "none" else decoder
        self.conditions_on_drafted_tokens = config.connection != "none"
        self.connect: AttentionDecoder | ConcatMLP | None = None
        if self.conditions_on_drafted_tokens:
            self.connect = ConcatMLP(size) if config.connection == "mlp" else AttentionDecoder(size, heads)
        self.heads = nn.ModuleList(ResidualBlock(size) for _ in range(config.num_heads))
        self.post_init()

    def start_from(self, target: TargetWeights) -> None:
        """Copy the target's final norm, and its last layer if `Clover1Config.start` is "last_layer"."""
        if self.augment is not None and self.config.start == "last_layer":
            self.augment.copy_last_layer(target)
        self.output_norm.load_state_dict(target.final_norm.state_dict())
        if self.config.embedding_scale is None:
            self.config.embedding_scale = target.hidden_size**0.5

    def embed(self, tokens: Tensor) -> Tensor:
        """Return e(x) [..., H], the regressive connection, of tokens Long [...]."""
        rows = self.target.lm_head_weight[tokens]
        return F.normalize(rows, dim=-1) * (self.config.embedding_scale or rows.shape[-1] ** 0.5)

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        if self.augment is None or self.config.augmenting == "mlp":
            return super().new_cache(batch_size, capacity)
        return self.augment.new_cache(batch_size, capacity)

    def read(self, hidden: Tensor, next_tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return s_0 = Aug(h) [B, A, H] of the target's h [B, A, H]; tokens are not read."""
        return hidden if self.augment is None else self.augment(hidden, cache=cache)

    def step(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return s_i and o_i, i = depth + 1, both [B, P, H], of s_{i-1} [B, P, H] and tokens x_{t+i} Long [B, P]."""
        if self.connect is not None:
            states = self.connect(states, self.embed(tokens).to(states.dtype))
        return states, self.output_norm(self.heads[depth](states))
