"""Clover-2 (arXiv 2408.00264): a recurrent draft that folds the newest token in before its augmenting layers.

At position t, with the target's hidden state h_t and the token x_{t+1} that the target itself has produced:

    u_t = A1(h_t, E[x_{t+1}])          fold        once per verified position
    s_t = Norm1(Aug(u_<=t))            augment     decoder layers of the target's own kind, with a KV cache
    o   = Norm2(FC1 s)                 head 1      logits = lm_head(o)
    s   = R(A2(s, E[x]), E[x], s_<=t)
    o   = Norm2(FC2 [s ; E[x]])   heads 2 … N, a recurrent network over the drafted tokens x

E are the rows of the target's lm_head. They and the lm_head are shared with the target and frozen.
The ablations are values of the configuration: parts are replaced by plainer ones.

A new draft differs from the paper's in six things unless asked otherwise, for it learns far more from the same text
that way (docs/log.md): E is scaled to entries of mean square 1, the size of the states it meets; a linear layer on h
and E of the three newest tokens folds these in, in the place of A1; the recurrent step is a layer R of its own
(`RecurrentLayer`) in the place of A2, which looks back at the committed text and has an MLP for state and token
together; it goes on from o, which stands for a hidden state of the target, and not from s; it reads the states after
the target's final norm; and, as its step may so start from the target's own hidden state, it has no augmenting layers:
head 1 is that step, too,

    o_0 = h_t,   o_i = Norm2(FC2 [R(o_{i-1}, E[x_{t+i}], u_<=t) ; E[x_{t+i}]])

The heads after the first are one step that is repeated, so a tree may be deeper than the draft was trained for.

Shapes: B batch, A committed positions, P frontier nodes, T text, D heads, H hidden, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from math import isfinite
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from clover.cache import KVCache
from clover.drafts.base import DraftModel
from clover.drafts.config import DraftConfig, LossConfig
from clover.drafts.frontier_session import FrontierSession, counting_cache, last_position, shifted
from clover.drafts.layers import (
    ConcatLinear,
    CosineAttention,
    RecurrentLayer,
    WindowLinear,
    identity_linear,
    unit_scale,
)
from clover.drafts.options import ONE_LAYER_STATES, check_choice
from clover.drafts.token_products import CachedProducts, TokenProducts
from clover.errors import UserError
from clover.target import TargetModel
from clover.target.decoder import build_decoder, copy_last_layer, decoder_cache, final_norm, run_decoder


class Clover2Config(DraftConfig):
    """Configuration of a Clover-2 draft.

    Args:
        num_heads: depths it is trained to draft (5 in the paper).
        num_augmenting_layers: decoder layers between target and heads (2 in the paper; a new draft has none). Without
            any the recurrent step, which must then go on from o, starts from the target's hidden state.
        noise: standard deviation of the zero-mean noise on the starting values.
        first_decoder: what folds the newest token in: "attention", A1; "linear", a linear layer on [h ; E[x]]; or
            "window", one on h and the three newest tokens (`WindowLinear`), which a new draft has, and none with
            augmenting layers.
        projector_embedding: whether the heads after the first project [s ; E[x]]; False projects s alone.
        embedding: whose rows E are: "lm_head" or "input", the target's input embedding.
        embedding_scale: what E is multiplied by; 1 in the paper. When left out, a new draft sets it so that the mean
            square of E's entries is 1, and a saved one was trained with 1.
        start: starting values of the augmenting layers: "fresh", as a new model has them, or "last_layer", copies of
            the target's last layer, as in the paper.
        recurrent_layer: width of the MLP in the recurrent step's own layer as a multiple of H; 0 for the paper's step,
            which has no such layer.
        recurrent_attention: whether the recurrent step has the paper's A2; it needs that or the layer.
        recurrent_output: whether the recurrent step goes on from o, which stands for a hidden state of the target, as
            EAGLE-1 does (arXiv 2401.15077) and a new draft, and not from s.
    """

    model_type = "clover2"

    def __init__(
        self,
        num_heads: int = 5,
        num_augmenting_layers: int = 2,
        noise: float = 0.01,
        first_decoder: str = "attention",
        projector_embedding: bool = True,
        embedding: str = "lm_head",
        embedding_scale: float | None = None,
        start: str = "fresh",
        recurrent_layer: float = 0.0,
        recurrent_attention: bool = True,
        recurrent_output: bool = False,
        **kwargs: Any,
    ):
        self.num_heads = num_heads
        self.num_augmenting_layers = num_augmenting_layers
        self.noise = noise
        self.first_decoder = first_decoder
        self.projector_embedding = projector_embedding
        self.embedding = embedding
        self.embedding_scale = embedding_scale
        self.start = start
        self.recurrent_layer = recurrent_layer
        self.recurrent_attention = recurrent_attention
        self.recurrent_output = recurrent_output
        if num_heads < 1 or num_augmenting_layers < 0:
            raise UserError("a Clover-2 draft needs at least one head, and no fewer than 0 augmenting layers")
        check_choice("clover2", "first_decoder", first_decoder, ("attention", "linear", "window"))
        check_choice("clover2", "embedding", embedding, ("lm_head", "input"))
        check_choice("clover2", "start", start, ("fresh", "last_layer"))
        if embedding_scale is not None and not (isfinite(embedding_scale) and embedding_scale > 0):
            raise UserError(f"clover2: embedding_scale is {embedding_scale!r}; it must be a number above 0")
        if not 0 <= recurrent_layer <= 16:
            raise UserError(f"clover2: recurrent_layer is {recurrent_layer!r}; it must be from 0 to 16")
        if not (recurrent_layer or recurrent_attention):
            raise UserError("clover2: without recurrent_attention it needs a recurrent_layer above 0")
        if num_augmenting_layers and first_decoder == "window":
            raise UserError('clover2: with augmenting layers first_decoder must be "attention" or "linear"')
        if num_augmenting_layers == 0 and not (recurrent_layer and recurrent_output):
            raise UserError(
                "clover2: without augmenting layers it needs recurrent_output and a recurrent_layer"
            )
        super().__init__(**kwargs)
        check_choice("clover2", "hidden_state", self.hidden_state, ONE_LAYER_STATES)


class Clover2Draft(DraftModel):
    """The Clover-2 draft model.

    Its paper's loss weighs a SmoothL1 of the raw difference ten times the distillation; here it is of the relative one.
    """

    config: Clover2Config  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = Clover2Config
    repeats_step = True
    paper_loss = default_loss = LossConfig(distillation_weight=0.1, regression_weight=1.0)
    new_options = MappingProxyType(
        {
            "first_decoder": "window",
            "recurrent_layer": 1.0,
            "recurrent_attention": False,
            "recurrent_output": True,
            "num_augmenting_layers": 0,
        }
    )

    def __init__(self, config: Clover2Config):
        super().__init__(config)
        shape = config.target_shape
        size, heads, noise = shape.hidden_size, shape.num_attention_heads, config.noise
        stack = build_decoder(config.target_config, max(config.num_augmenting_layers, 1))
        self.augment = stack if config.num_augmenting_layers else None
        if config.first_decoder == "attention":
            self.fold = CosineAttention(size, heads, noise)
        else:
            kind = WindowLinear if config.first_decoder == "window" else ConcatLinear
            self.fold = kind(size, noise)
        self.recur = CosineAttention(size, heads, noise) if config.recurrent_attention else None
        inner = round(config.recurrent_layer * size)
        self.layer = RecurrentLayer(size, heads, inner) if inner else None
        self.first_projector = None if self.augment is None else identity_linear(size, size, noise)
        projected = 2 * size if config.projector_embedding else size
        self.projector = identity_linear(projected, size, noise)
        self.output_norm = copy.deepcopy(final_norm(stack))
        self._products = CachedProducts()
        self.post_init()

    @classmethod
    def options_of_new(cls, asked: Mapping[str, Any]) -> dict[str, Any]:
        """As for others; but with augmenting layers, which look back themselves, "linear" folds the newest token in."""
        options = super().options_of_new(asked)
        if options["num_augmenting_layers"] and "first_decoder" not in asked:
            options["first_decoder"] = "linear"
        return options

    def _init_weights(self, module: nn.Module) -> None:
        """Starting values are set by the constructors and `start_from`, not by a general rule."""

    def start_from(self, target: TargetModel) -> None:
        """Both norms copy the target's final norm; for the rest see `Clover2Config`."""
        norm = target.final_norm
        if self.augment is not None:
            if self.config.start == "last_layer":
                copy_last_layer(target, self.augment)
            else:
                final_norm(self.augment).load_state_dict(norm.state_dict())
            norm = final_norm(self.augment)
        if self.config.embedding_scale is None:
            self.config.embedding_scale = unit_scale(self._rows(target))
        self.output_norm.load_state_dict(norm.state_dict())

    def new_session(self, batch_size: int, capacity: int) -> Clover2Session:
        return Clover2Session(self, batch_size, capacity)

    def train_outputs(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        following = self._embedding(shifted(tokens, 1)).to(hidden.dtype)
        state, outputs = self._fold(hidden, following), []
        if self.augment is not None:
            state = run_decoder(self.augment, state, positions)
            outputs.append(self._first_output(state))
        text = None if self.layer is None else self.layer.keys_values(state)
        for head in range(len(outputs), self.trained_depths):
            forced = self._embedding(shifted(tokens, 1 + head)).to(hidden.dtype)
            if self.config.recurrent_output:
                state = outputs[-1] if outputs else hidden
            if self.recur is not None:
                state = self.recur(state, forced)
            if self.layer is not None and text is not None:
                state = self.layer(state, self.layer.of_token(forced), *text, causal=True)
            outputs.append(self._output(state, forced))
        return torch.stack(outputs)

    def products(self) -> TokenProducts | None:
        """What the recurrent step needs of every token, for inference; None where that would take too much memory."""
        parts, rows = (self.recur, self.layer, self.projector), self._rows(self.target)
        return self._products.of(*parts, rows, self._embedding, self.config.recurrent_output)

    def _embedding(self, tokens: Tensor) -> Tensor:
        rows = self._rows(self.target)[tokens]
        return rows * (self.config.embedding_scale or 1.0)

    def _rows(self, target: TargetModel) -> Tensor:
        return target.lm_head_weight if self.config.embedding == "lm_head" else target.embedding_weight

    def _fold(self, hidden: Tensor, following: Tensor, cache: KVCache | None = None) -> Tensor:
        """States [B, A, H] of hidden states and the embeddings of the tokens after them; whole texts need no cache."""
        if not isinstance(self.fold, WindowLinear):
            return self.fold(hidden, following)
        if cache is None:
            earlier = following.new_zeros(len(following), WindowLinear.earlier, following.shape[-1])
        else:
            earlier = cache.last(0, WindowLinear.earlier)[:, 0]
        return self.fold(hidden, following, earlier)

    def _first_output(self, state: Tensor) -> Tensor:
        assert self.first_projector is not None
        return self.output_norm(self.first_projector(state))

    def _output(self, state: Tensor, embedding: Tensor) -> Tensor:
        both = torch.cat((state, embedding), dim=-1) if self.config.projector_embedding else state
        return self.output_norm(self.projector(both))


class Clover2Session(FrontierSession):
    """A Clover-2 draft in one running batch: the augmenting layers' cache and the states of the tree's frontier."""

    def __init__(self, draft: Clover2Draft, batch_size: int, capacity: int):
        memory = None if draft.layer is None else draft.layer.new_cache(batch_size, capacity)
        super().__init__(self._new_cache(draft, batch_size, capacity), memory)
        self.draft, self.products = draft, draft.products()

    @staticmethod
    def _new_cache(draft: Clover2Draft, batch_size: int, capacity: int) -> KVCache:
        """Of the augmenting layers; else of the embeddings that a window looks back at; else of nothing."""
        if draft.augment is not None:
            return decoder_cache(draft.augment, batch_size, capacity)
        weight = draft.projector.weight
        if not isinstance(draft.fold, WindowLinear):
            return counting_cache(batch_size, weight)
        return KVCache(1, batch_size, 1, len(weight), 1, capacity, weight.dtype, weight.device)

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        draft, cache = self.draft, self.cache
        added, following = hidden.shape[1], draft._embedding(next_tokens)
        states = draft._fold(hidden, following, cache)
        cache.begin(added)
        if draft.augment is not None:
            states = run_decoder(draft.augment, states, cache.positions(added), None, cache)
        elif isinstance(draft.fold, WindowLinear):
            cache.update(following.unsqueeze(1), following[..., :1].unsqueeze(1), 0)
        cache.commit(counts)
        if draft.layer is not None and self.memory is not None:
            self.memory.begin(added)
            self.memory.update(*draft.layer.keys_values(states), 0)
            self.memory.commit(counts)
        if draft.augment is None:
            return self._step(last_position(hidden, counts), last_position(next_tokens, counts))[:, 0]
        states = last_position(states, counts)
        return self._go_on(draft._first_output(states), states)[:, 0]

    def advance(self, slots: Tensor, tokens: Tensor) -> Tensor:
        return self._step(self.parents(slots), tokens)

    def _step(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """Logits [B, P, V] after tokens Long [B, P], from the states before them, [B, P, H]."""
        draft = self.draft
        if self.products is not None:
            states, projected = self.products.step(parents, tokens, self._mix)
            return self._go_on(draft.output_norm(projected), states)
        embedding = draft._embedding(tokens)
        states = parents if draft.recur is None else draft.recur(parents, embedding)
        if draft.layer is not None and self.memory is not None:
            states = draft.layer(states, draft.layer.of_token(embedding), *self.memory.text(0))
        return self._go_on(draft._output(states, embedding), states)

    def _go_on(self, outputs: Tensor, states: Tensor) -> Tensor:
        """Logits of the outputs [B, P, H]; they or the states are what the next depth starts from."""
        self.states = outputs if self.draft.config.recurrent_output else states
        return self.draft.logits(outputs)

    def _mix(self, states: Tensor, of_token: Tensor) -> Tensor:
        assert self.draft.layer is not None and self.memory is not None
        return self.draft.layer.mix(states, of_token, *self.memory.text(0))
