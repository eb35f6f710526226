"""Clover-1 (arXiv 2405.00263): Medusa's heads in sequence, each told the token that was chosen before it.

At position t, with the target's hidden state h_t, the token x_{t+1} that the target itself has produced, and drafted
tokens after it:

    s_0 = Aug(h_<=t)                               `augment`  one decoder layer of the target's own kind, causal
    s_i = s_{i-1} + SiLU(sim(q, k) · v)            `connect`  attention decoder, the same weights at every i = 1 … N
          q = Wq RMSNorm(s_{i-1}), k = Wk e(x_{t+i}), v = Wv e(x_{t+i}), sim the cosine per attention head
    o_i = Norm(s_i + SiLU(Linear_i(s_i)))          `heads`    logits = lm_head(o_i), for token x_{t+1+i}

e(x), the regressive connection, is the token's row of the target's lm_head scaled to one length, which the paper calls
normalised. The lm_head is shared with the target and frozen. Start values: Aug a copy of the target's last layer,
Wq = Wk = I plus small noise, Wv = Linear_i = 0, Norm the target's final norm: the decoder starts as the exact identity.

Loss: cross-entropy with the data's tokens; the decay per head, which the paper leaves open, is that of Medusa.

Shapes: B batch, A committed positions, P frontier nodes, T text, D heads, H hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clover.drafts.base import DraftModel
from clover.drafts.config import Count, DraftConfig, LossConfig, OneLayer, PaperRecipe, Scale, Start
from clover.drafts.frontier_session import FrontierSession, counting_cache, last_position, shifted
from clover.drafts.layers import NOISE, ResidualBlock, cosine_weighted, start_linear
from clover.errors import UserError
from clover.target import TargetModel
from clover.target.decoder import (
    DecoderStack,
    build_decoder,
    copy_last_layer,
    decoder_cache,
    run_decoder,
    take_final_norm,
)


class Clover1Config(DraftConfig):
    """Configuration of a Clover-1 draft.

    Args:
        num_heads: depths it is trained to draft, N.
        augmenting: "block", one decoder layer between target and heads; "attention" or "mlp", that half of it alone;
            "none", so that s_0 = h. An ablation.
        connection: "attention", the attention decoder; "mlp", a plain MLP on the concatenation of state and
            embedding; "none", so that all heads see s_0 and no drafted token. Without augmenting and connection the
            system is Medusa with a shared lm_head. An ablation.
        embedding_scale: length of e(x), 1 in the paper; None for entries of mean square 1, the size of the states
            that e meets.
        start: starting values of the augmenting block: "fresh", as a new model has them, or "last_layer", a copy of
            the target's last layer, as in the paper.
        hidden_state: "post_norm", or "pre_norm", as in the paper, whose states go through the target's final norm
            after the heads.
    """

    model_type = "clover1"

    def __init__(
        self,
        num_heads: Count = 3,
        augmenting: Literal["block", "attention", "mlp", "none"] = "block",
        connection: Literal["attention", "mlp", "none"] = "attention",
        embedding_scale: Scale | None = None,
        start: Start = "fresh",
        hidden_state: OneLayer = "post_norm",
        **kwargs: Any,
    ):
        self.num_heads = num_heads
        self.augmenting = augmenting
        self.connection = connection
        self.embedding_scale = embedding_scale
        self.start = start
        super().__init__(hidden_state=hidden_state, **kwargs)


class AttentionDecoder(nn.Module):
    """s + SiLU(sim(Wq Norm(s), Wk e) · Wv e). One query meets one key, so there is no softmax."""

    def __init__(self, hidden_size: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(3))
        start_linear(self.query, torch.eye(hidden_size), NOISE)
        start_linear(self.key, torch.eye(hidden_size), NOISE)
        start_linear(self.value, torch.zeros(hidden_size, hidden_size))

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
        start_linear(self.outer, torch.zeros(hidden_size, hidden_size))

    def forward(self, state: Tensor, embedding: Tensor) -> Tensor:
        """States [..., H] and token embeddings [..., H] to states [..., H]."""
        return state + self.outer(F.silu(self.inner(torch.cat((self.norm(state), embedding), dim=-1))))


class Nothing(nn.Module):
    """Stands where one half of a layer was, and adds nothing to the residual stream."""

    def __init__(self, attention: bool):
        super().__init__()
        self.attention = attention

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Zeros [B, N, H]; those of an attention come with weights, as transformers has it."""
        zeros = torch.zeros_like(hidden_states)
        return (zeros, None) if self.attention else zeros


class Clover1Draft(DraftModel):
    """The Clover-1 draft model."""

    config: Clover1Config  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = Clover1Config
    paper_loss = LossConfig(distillation_weight=0.0, label_weight=1.0, decay=0.8)
    paper_recipe = PaperRecipe(
        lr=1e-3,
        betas=(0.9, 0.999),
        schedule="cosine",
        options={"hidden_state": "pre_norm", "start": "last_layer", "embedding_scale": 1.0},
    )

    def __init__(self, config: Clover1Config):
        super().__init__(config)
        size, heads = config.target_shape.hidden_size, config.target_shape.num_attention_heads
        decoder = build_decoder(config.target_config, 1)
        self.output_norm = take_final_norm(decoder)
        self.augment: DecoderStack | None = None if config.augmenting == "none" else decoder
        if config.augmenting in ("attention", "mlp"):
            _keep_half(decoder, config.augmenting)
        self.connect: AttentionDecoder | ConcatMLP | None = None
        if config.connection != "none":
            attends = config.connection == "attention"
            self.connect = AttentionDecoder(size, heads) if attends else ConcatMLP(size)
        self.heads = nn.ModuleList(ResidualBlock(size) for _ in range(config.num_heads))
        self.post_init()

    def start_from(self, target: TargetModel) -> None:
        """The norm copies the target's final norm; for the augmenting block see `Clover1Config`."""
        if self.augment is not None and self.config.start == "last_layer":
            copy_last_layer(target, self.augment)
        self.output_norm.load_state_dict(target.final_norm.state_dict())
        if self.config.embedding_scale is None:
            self.config.embedding_scale = target.hidden_size**0.5

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
                state = self.connect(state, self.embed(shifted(tokens, 1 + head)).to(state.dtype))
            outputs.append(self.output(head, state))
        return torch.stack(outputs)

    def embed(self, tokens: Tensor) -> Tensor:
        """e(x) of tokens, Long [...] to [..., H]."""
        rows = self.target.lm_head_weight[tokens]
        return F.normalize(rows, dim=-1) * (self.config.embedding_scale or rows.shape[-1] ** 0.5)

    def output(self, head: int, state: Tensor) -> Tensor:
        """O of one head, counted from 0, [..., H] to [..., H]."""
        return self.output_norm(self.heads[head](state))


class Clover1Session(FrontierSession):
    """A Clover-1 draft in one running batch: the augmenting block's cache and the states of the tree's frontier."""

    def __init__(self, draft: Clover1Draft, batch_size: int, capacity: int):
        if draft.augment is None or draft.config.augmenting == "mlp":
            super().__init__(counting_cache(batch_size, draft.target.lm_head_weight))
        else:
            super().__init__(decoder_cache(draft.augment, batch_size, capacity))
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
            self.states = draft.connect(parents, draft.embed(tokens))
        logits = draft.logits(draft.output(self.depth, self.states))
        return logits.expand(-1, tokens.shape[1], -1)


def _keep_half(decoder: DecoderStack, half: str) -> None:
    """Leave the attention or the MLP of every layer, each with the norm before it.

    Raises:
        UserError: the layers are not those of LLaMA: one norm before the attention, one before the MLP.
    """
    for layer in decoder.layers:
        parts = dict(layer.named_children())
        norms = {name for name, part in parts.items() if "norm" in type(part).__name__.lower()}
        attention = "self_attn" if "self_attn" in parts else "attention"
        if norms != {"input_layernorm", "post_attention_layernorm"} or not parts.keys() >= {attention, "mlp"}:
            raise UserError(
                f"{type(layer).__name__} is not made as LLaMA's layers are, so a draft cannot use half of it; "
                "use the whole block"
            )
        gone, norm = (
            ("mlp", "post_attention_layernorm") if half == "attention" else (attention, "input_layernorm")
        )
        setattr(layer, gone, Nothing(attention=gone == attention))
        setattr(layer, norm, nn.Identity())
