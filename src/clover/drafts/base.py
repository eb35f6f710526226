"""The interface between draft systems and the rest: what a draft is trained through and what the engine asks of it.

Shapes: B batch, A committed positions of one call, P frontier nodes, T text, D depths trained, H hidden,
W width of the hidden states that are read, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import Self

from clover.drafts.config import (
    DraftConfig,
    LossConfig,
    PaperRecipe,
    check_names,
    check_options,
    check_target,
)
from clover.drafts.vocabulary import check_map, check_size
from clover.target import HeadSlice, TargetModel
from clover.target.fast_linear import can_speed_up, shared_copy, speed_up

DEEPEST = 16  # depths that a tree may have where a draft repeats one step and so has no end of its own


class DraftSession(Protocol):
    """The draft's side of one running batch. It commits verified positions only, so a run rolls nothing back."""

    @property
    def lengths(self) -> list[int]:
        """Committed positions of each row."""
        ...

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        """Take in positions that the target has run.

        Args:
            hidden: [B, A, W] the target's hidden states there, of the kind `config.hidden_state` names.
            next_tokens: Long [B, A] the token that follows each of them.
            counts: how many of the A positions of each row are real; the rest is padding at the end.

        Returns:
            logits [B, V] for the token after the last committed pair: the first depth of the tree. Which of the
            target's tokens an index is, the draft's `d2t` says.
        """
        ...

    def advance(self, slots: Tensor, tokens: Tensor) -> Tensor:
        """Go one depth down.

        Args:
            slots: Long [B, P] row of the frontier before (0 on the first call after `commit`) that a node continues.
            tokens: Long [B, P] the nodes' tokens, in the target's numbering.

        Returns:
            logits [B, P, V] for the children of each node; these nodes are the frontier of the next call.
        """
        ...

    def drop(self, row: int) -> None:
        """Forget a row; the last row takes its place."""
        ...

    def insert(self, other: Self) -> None:
        """Take in the rows of another session of the same draft behind the own ones; a commit comes next.

        There is room for as many rows as the session was made for.
        """
        ...

    def crop(self, lengths: list[int]) -> None:
        """Forget all positions of row b from lengths[b] on, before the next turn of a conversation."""
        ...


class DraftModel(PreTrainedModel):
    """Base of all drafts. The target's lm_head and embedding are shared by `bind`, not saved; an own lm_head is.

    Attributes:
        d2t: Long [V], the target's token of each index of the draft's logits, rising; None where it proposes from the
            target's whole vocabulary. Saved with the weights. Until tokens are chosen (`reduce_vocabulary`), the first.
        usable: whether all weights are finite numbers; where they are not, decoding goes on without the draft.
    """

    config: DraftConfig
    d2t: Tensor | None
    usable = True
    config_class = DraftConfig
    base_model_prefix = ""
    _no_split_modules = None
    _target: TargetModel | None = None
    default_loss = LossConfig()  # the one it learns best by here (docs/log.md)
    paper_loss = LossConfig()  # that of the system's own paper, as far as it is known
    paper_recipe: PaperRecipe | None = None  # how the paper's authors train it, as far as it is known
    trainable = True  # False for systems without weights
    repeats_step = False  # True where all depths, or all after the first, are one step that can be repeated

    def __init__(self, config: DraftConfig):
        super().__init__(config)
        size = config.draft_vocab_size
        if size is not None:
            check_size(size, config.target_shape.vocab_size)
        self.register_buffer("d2t", None if size is None else torch.arange(size))
        self._head_slice: HeadSlice | None = None  # the target's lm_head, or its rows of `d2t`, after `bind`
        self._fast: dict[bool, tuple[Any, Any]] = {}  # per `exact`: versions of the weights, and the copy

    def _init_weights(self, module: nn.Module) -> None:
        """Starting values are set by the constructors and `start_from`, not by a general rule."""

    @property
    def target(self) -> TargetModel:
        """The target this draft is bound to."""
        assert self._target is not None, "bind() the draft to its target first"
        return self._target

    def is_bound_to(self, target: TargetModel) -> bool:
        """Whether the last call of `bind` was for this target."""
        return self._target is target

    @property
    def max_depth(self) -> int:
        """Depths of a tree that the draft can fill: those of its heads, or more where it repeats one step."""
        heads = self.config.num_heads
        return max(DEEPEST, heads) if self.repeats_step else heads

    @property
    def trained_depths(self) -> int:
        """D, the depths that `train_outputs` runs; 1 for systems that learn one step and repeat it."""
        return self.config.num_heads

    def bind(self, target: TargetModel) -> Self:
        """Share the target's lm_head and embedding; of the lm_head only the rows of the draft's vocabulary.

        Raises:
            UserError: this is not the target the draft was trained for; names the field that differs. Or `d2t` does
                not name tokens of the target.
        """
        check_target(self.config.target_config, target)
        if self.d2t is not None:
            check_map(self.d2t, target.vocab_size)
        self._head_slice = HeadSlice(target.head.linear, self.d2t)
        self._target, self._fast = target, {}
        return self

    @property
    def head_slice(self) -> HeadSlice:
        """The rows of the target's lm_head that the draft proposes from."""
        assert self._head_slice is not None, "bind() the draft to its target first"
        return self._head_slice

    def for_inference(self, exact: bool = False) -> Self:
        """This draft over the same weights, as sessions run it fastest on this machine (`clover.target.fast_linear`).

        Made once, and anew when weights have changed since.

        Args:
            exact: without rounded weights, so that the output is the same for every number of rows.
        """
        versions = [(w.data_ptr(), 0 if w.is_inference() else w._version) for w in self.parameters()]
        if exact not in self._fast or self._fast[exact][0] != versions:
            self._fast[exact] = (versions, self._made_fast(exact))
        return self._fast[exact][1]

    @torch.inference_mode(False)
    @torch.no_grad()
    def _made_fast(self, exact: bool) -> Self:
        draft = shared_copy(self, [self.config, self._target, self._head_slice, self._fast])
        draft.make_tables()
        if can_speed_up(draft):
            speed_up(draft, int8=not exact)
        if not exact:
            draft._head_slice = self.head_slice.with_int8_weights()
        return draft

    def make_tables(self) -> None:
        """Compute what does not depend on the text, in a copy of the draft that is no longer trained."""

    @torch.no_grad()
    def reduce_vocabulary(self, tokens: Tensor) -> None:
        """Let the draft propose from these tokens only. Its output stays lossless: the target knows them all.

        An own lm_head keeps its rows, and has the target's for tokens that it did not know. `frequent_tokens` finds
        tokens to keep.

        Args:
            tokens: Long [V], rising.

        Raises:
            UserError: these are not tokens of the target, each once, rising.
        """
        target, known = self.target, self.d2t
        check_map(tokens, target.vocab_size)
        for weight in self.head_parameters:
            whole = target.lm_head_weight.to(weight.dtype).expand(*weight.shape[:-2], -1, -1)
            whole = weight if known is None else whole.index_copy(-2, known, weight)
            weight.data = whole[..., tokens, :].contiguous()
        self.config.draft_vocab_size = len(tokens)
        self.d2t = tokens.to(target.device)
        self.bind(target)

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits [..., V] of outputs [..., H] through the target's lm_head, as far as the draft's vocabulary goes."""
        return self.target.head.scaled(self.head_slice(outputs))

    @classmethod
    def from_target(cls, target: TargetModel, **options: Any) -> Self:
        """A draft for `target` with its starting values, in float32 or the target's wider dtype, ready to be trained.

        Args:
            options: fields of the system's configuration.

        Raises:
            UserError: there is no such field, or its value is of the wrong type or out of range.
        """
        kind = cast(Any, cls.config_class)
        check_names(kind, options)
        check_options(kind, options, kind.model_type)
        described = {key: value for key, value in target.config.to_dict().items() if key != "_name_or_path"}
        config = kind(target_config=described, **options)
        draft: Any = cls(config)
        draft.to(device=target.device, dtype=torch.promote_types(target.dtype, torch.float32))
        draft.start_from(target)
        return draft.bind(target)

    def start_from(self, target: TargetModel) -> None:
        """Set the starting values that depend on the target's weights."""

    def new_session(self, batch_size: int, capacity: int) -> DraftSession:
        """A session for `batch_size` rows with room for `capacity` positions each (it grows when they outgrow it)."""
        raise AssertionError("every draft system makes its own sessions")

    def train_outputs(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Run all heads over whole texts, forced with the tokens of the text.

        Args:
            hidden: [B, T, W] target hidden states of the kind `config.hidden_state` names.
            tokens: Long [B, T], right-padded.

        Returns:
            [D, B, T, H]: `out[i, :, t]` is compared with the target's post-norm state at t + 1 + i, and through
            `train_logits` predicts token t + 2 + i. Where the text ends before that, values are meaningless.
        """
        raise AssertionError("every draft system runs its own heads")

    def train_logits(self, outputs: Tensor) -> Tensor:
        """Logits [..., D, V] of outputs [..., D, H], through the target's frozen lm_head or the draft's own."""
        return self.logits(outputs.to(self.target.dtype))

    @property
    def head_parameters(self) -> list[nn.Parameter]:
        """What `train_logits` can train, each [..., V, H]; nothing where the lm_head is the target's."""
        return []
