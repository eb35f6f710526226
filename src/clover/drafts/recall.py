"""Clover-Recall, this project's own draft: a recurrent step that looks back at the committed text.

The recurrence over drafted tokens is that of Clover-2 (arXiv 2408.00264). As in EAGLE-1 (arXiv 2401.15077), the output
of a step is an estimate of the target's hidden state, and the next step reads it. There are no augmenting layers: the
step itself attends to the text. At position t, with the target's hidden state h_t and its next token x_{t+1}:

    u_t = Norm(F [h_t ; E[x_{t+1}] ; E[x_t] ; E[x_{t-1}]])    `fold`    once per verified position
    o_0 = h_t
    r_i = R(o_{i-1}, E[x_{t+i}], u_<=t)                       `layer`   depths i = 1 … N
    o_i = Norm2(P [r_i ; E[x_{t+i}]])                         `projector`; logits = lm_head(o_i), for token x_{t+1+i}

    R(s, e, u) = s + Wo [softmax(q kᵀ / √d) v ; silu(gate) · up]   with q, gate, up = Ws RMSNorm(s) + We e;
                                                                   k, v = Wkv u

Where the text repeats itself, the draft's distribution is mixed with the tokens that followed (`clover.drafts.copies`).

All depths use the same step, so a tree may be deeper than in training. k and v are computed once per committed position
and are the same for all nodes of a tree, so the paths of a tree need no cache. E are rows of the target's lm_head,
scaled so that the mean square of their entries is 1. Starting values: F = P = [I | 0] plus small noise, and Wo = 0.

Shapes: B batch, A committed positions, P frontier nodes, S slots, H hidden, I width of the MLP, V vocabulary,
d = H / heads.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self

from clover.cache import KVCache
from clover.cpu.attention import attend
from clover.cpu.linear import linear_of
from clover.drafts import copies
from clover.drafts.base import DraftModel
from clover.drafts.config import DraftConfig, OneLayer, Scale
from clover.drafts.copies import LONGEST, CopySource, CopyWeights, Guesses, fit_copy_weights
from clover.drafts.layers import TokenTable, attention_heads, has_room, identity_linear, unit_scale
from clover.drafts.session import DraftSession, shifted
from clover.drafts.training import LossConfig, TrainingDefaults
from clover.target import TargetWeights
from clover.target.decoder import DecoderStack

Share = Annotated[float, Field(ge=0, lt=1)]


class RecallConfig(DraftConfig):
    """Configuration of a Clover-Recall draft.

    `mlp_ratio` is the width of the MLP divided by H. E is multiplied by `embedding_scale`, by default to a mean square
    of 1. `copy_shares` are the shares of copied tokens after matches of one, two, … tokens, and are fitted at the end
    of a training. With None or zeros, nothing is copied.
    """

    model_type = "recall"
    mlp_ratio: Annotated[float, Field(gt=0, le=16)] = 1.0
    embedding_scale: Scale | None = None
    copy_shares: Annotated[list[Share], Field(min_length=LONGEST, max_length=LONGEST)] | None = None
    hidden_state: OneLayer = "post_norm"


class WindowLinear(nn.Module):
    """u: a normalized linear layer of a state and the three newest tokens, [h_t ; E[x_{t+1}] ; E[x_t] ; E[x_{t-1}]]."""

    earlier = 2  # the number of tokens before the newest one that the layer reads

    def __init__(self, hidden_size: int):
        super().__init__()
        self.linear = identity_linear((2 + self.earlier) * hidden_size, hidden_size)
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)

    def forward(self, states: Tensor, embeddings: Tensor, earlier: Tensor) -> Tensor:
        """Return u [B, A, H] of states h and embeddings of the tokens after them, both [B, A, H].

        `earlier` [B, 2, H] are the embeddings of the two tokens before the first one; zeros where there is none.
        """
        count, tokens = embeddings.shape[1], torch.cat((earlier, embeddings), dim=1)
        window = [tokens[:, start : start + count] for start in range(self.earlier, -1, -1)]
        return self.norm(self.linear(torch.cat((states, *window), dim=-1)))


class RecurrentLayer(nn.Module):
    """R: attention to the text and a gated MLP in parallel, with joint input and output projections, as in GPT-J."""

    def __init__(self, hidden_size: int, num_heads: int, inner_size: int):
        super().__init__()
        self.num_heads, self.hidden_size, self.inner_size = num_heads, hidden_size, inner_size
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.of_state = nn.Linear(hidden_size, hidden_size + 2 * inner_size, bias=False)
        self.of_token = nn.Linear(hidden_size, hidden_size + 2 * inner_size, bias=False)
        self.key_value = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
        self.output = nn.Linear(hidden_size + inner_size, hidden_size, bias=False)
        nn.init.zeros_(self.output.weight)

    def keys_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return k and v, each [B, heads, A, d], of the committed text's u [B, A, H]."""
        keys, values = self.heads(self.key_value(states)).chunk(2, dim=1)
        return keys, values

    def mix(
        self,
        states: Tensor,
        of_token: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Return the input of Wo [B, P, H + I] of states [B, P, H]: the outputs of attention and MLP, concatenated.

        Args:
            of_token: [B, P, H + 2 I], We e.
            keys, values: [B, heads, S, d].
            mask: Bool, broadcast to [B, 1, P, S], True where a state may attend; None for everywhere.
            causal: for whole texts (P = S), each state attends to the positions up to its own.
        """
        joined = self.of_state(self.norm(states)) + of_token
        query, gate, up = joined.split((self.hidden_size, self.inner_size, self.inner_size), dim=-1)
        found = self.attend(self.heads(query), keys, values, mask, causal)
        return torch.cat((found.transpose(1, 2).flatten(2), F.silu(gate) * up), dim=-1)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        """Return attention to the text [B, heads, P, d]. The vLLM plugin replaces it with its paged attention."""
        return attend(query, keys, values, mask, causal=causal)

    def heads(self, joined: Tensor) -> Tensor:
        """Return [B, P, n · d] as [B, n, P, d]."""
        return joined.unflatten(-1, (-1, self.hidden_size // self.num_heads)).transpose(1, 2)


class RecallDraft(DraftModel):
    """The Clover-Recall draft model."""

    config: RecallConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = RecallConfig
    label, color = "Recall (ours)", "#009e73"
    training_defaults = TrainingDefaults(
        loss=LossConfig(distillation_weight=0.1, regression_weight=1.0),
        depth_curriculum=True,  # All depths use the same step, so training the first two also trains the others.
    )
    repeats_step = True
    copies_text = True

    def __init__(self, config: RecallConfig):
        super().__init__(config)
        size, heads = config.target_shape.hidden_size, attention_heads(config.target_shape)
        self.fold = WindowLinear(size)
        self.layer = RecurrentLayer(size, heads, round(config.mlp_ratio * size))
        self.projector = identity_linear(2 * size, size)
        self.output_norm = DecoderStack(config.target_shape, 1).take_final_norm()
        self.token_table: TokenTable | None = None
        self.of_mixed: nn.Linear | None = None  # the half of P that reads r, for [s ; Wo's input]
        self.post_init()

    def start_from(self, target: TargetWeights) -> None:
        """Copy the target's final norm into the output norm."""
        self.output_norm.load_state_dict(target.final_norm.state_dict())
        if self.config.embedding_scale is None:
            self.config.embedding_scale = unit_scale(target.lm_head_weight)

    @property
    def has_copy_weights(self) -> bool:
        """Return whether the draft's distribution includes copied tokens."""
        return any(self.config.copy_shares or ())

    @property
    def session_tokens(self) -> Tensor | None:
        return None if self.has_copy_weights else self.d2t

    def fit_copies(self, guesses: Guesses) -> list[float] | None:
        self.config.copy_shares = fit_copy_weights(guesses)
        return self.config.copy_shares

    def copy_nothing(self) -> None:
        self.config.copy_shares = None

    def new_session(self, batch_size: int, capacity: int) -> RecallSession:
        weight, heads = self.projector.weight, self.layer.num_heads
        width = len(weight) // heads
        cache = KVCache.new((1, heads, width, width), batch_size, capacity, weight, tokens=True)
        shares = self.config.copy_shares if self.has_copy_weights else None
        return RecallSession(self, cache, CopyWeights.of(shares, weight.device) if shares else None)

    def forward(self, hidden: Tensor, tokens: Tensor, depths: int | None = None) -> Tensor:
        following = self.embed(shifted(tokens, 1)).to(hidden.dtype)
        nothing = following.new_zeros(len(following), WindowLinear.earlier, following.shape[-1])
        text = self.layer.keys_values(self.fold(hidden, following, nothing))
        states, outputs = hidden, []
        for depth in range(depths or self.trained_depths):
            states = self.look_back(states, shifted(tokens, 1 + depth), *text, causal=True)
            outputs.append(states)
        return torch.stack(outputs)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return E[x] [..., H] of tokens x Long [...]."""
        return self.target.lm_head_weight[tokens] * (self.config.embedding_scale or 1.0)

    def look_back(self, states: Tensor, tokens: Tensor, *text: Any, causal: bool = False) -> Tensor:
        """Return o_i [B, P, H] of o_{i-1} [B, P, H] and tokens Long [B, P]. See also `RecurrentLayer.mix`."""
        if self.token_table is not None and self.of_mixed is not None:
            of_token, projected = self.token_table(tokens)
            both = torch.cat((states, self.layer.mix(states, of_token, *text)), dim=-1)
            return self.output_norm(projected + self.of_mixed(both))
        embedding = self.embed(tokens).to(states.dtype)
        mixed = self.layer.mix(states, self.layer.of_token(embedding), *text, causal=causal)
        read = torch.cat((states + self.layer.output(mixed), embedding), dim=-1)
        return self.output_norm(self.projector(read))

    def make_tables(self) -> None:
        layer, projector, size = self.layer, self.projector, self.layer.hidden_size
        if not has_room(self.target.lm_head_weight, 2 * size + 2 * layer.inner_size):
            return
        rows = self.embed(torch.arange(self.target.vocab_size, device=self.target.device))
        of_state, of_token = projector.weight.split(size, dim=1)
        self.token_table = TokenTable((layer.of_token(rows), F.linear(rows, of_token, projector.bias)))
        self.of_mixed = linear_of(torch.cat((of_state, of_state @ layer.output.weight), dim=1))


class RecallSession(DraftSession):
    """A Clover-Recall draft in one running batch.

    For each committed position, the cache has k, v and the next token. u needs the two newest tokens; copying from the
    text needs all of them.

    Attributes:
        weights: copy weights; None to copy nothing.
        text: the text at the last commit, from which tokens are copied.
        runs: Int [B, P, S], how many tokens before each slot match the end of the path of each frontier node.
    """

    text: CopySource
    runs: Tensor

    def __init__(self, draft: RecallDraft, cache: KVCache, weights: CopyWeights | None):
        super().__init__(draft, cache)
        self.weights = weights

    # -- commit and draft ------------------------------------------------------------------------------------------

    def read(self, hidden: Tensor, next_tokens: Tensor) -> Tensor:
        """Store k, v and the tokens of the positions with states h [B, A, H]; return o_0 = h."""
        draft = self.draft
        newest = self.cache.last_tokens(WindowLinear.earlier)
        earlier = draft.embed(newest.clamp(min=0)) * (newest >= 0).unsqueeze(-1)
        window = draft.fold(hidden, draft.embed(next_tokens), earlier)
        self.cache.update(*draft.layer.keys_values(window), layer_idx=0)
        self.cache.write_tokens(next_tokens)
        return hidden

    def step(self, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return o_i [B, P, H] twice: as the states for the next depth, and as the input of the lm_head."""
        states = self.draft.look_back(parents, tokens, *self.cache.text(0))
        return states, states

    def advance(self, parents: Tensor, tokens: Tensor) -> Tensor:
        if self.weights is not None:
            runs = self.runs.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.runs.shape[-1]))
            self.runs = copies.extended(runs, self.text, tokens)
        return super().advance(parents, tokens)

    def _logits(self, parents: Tensor, tokens: Tensor) -> Tensor:
        logits, draft = super()._logits(parents, tokens), self.draft
        if self.weights is None:
            return logits
        if self.depth == 0:
            # A text has at least one slot, even without tokens.
            text = self.cache.tokens[:, : max(self.cache.length, 1)]
            self.text = CopySource.of(text, self.cache.positions(1))
            self.runs = copies.runs_at_end(self.text)
        found = copies.copied(self.runs, self.text)
        return copies.mix_copies(logits, found, self.weights, draft.d2t, draft.target.vocab_size)

    def over(self, cache: Any) -> Self:
        return type(self)(self.draft, cache, self.weights)
