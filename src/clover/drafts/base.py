"""The interface between draft systems and the rest: what a draft is trained through and what the engine asks of it.

Shapes: B batch, A committed positions of one call, P frontier nodes, T text, D depths trained, H hidden,
W width of the hidden states that are read, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import Self

from clover.drafts.config import DraftConfig, LossConfig
from clover.drafts.options import check_options
from clover.drafts.vocabulary import check_map, check_size
from clover.target import HeadRows, LogitsHead, TargetModel, WholeHead

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
    """

    config: DraftConfig
    d2t: Tensor | None
    config_class = DraftConfig
    base_model_prefix = ""
    _no_split_modules = None
    _target: TargetModel | None = None
    paper_loss = LossConfig()  # the loss of the system's own paper, as far as it is known
    default_loss = LossConfig()  # the one it learns best by here (docs/log.md)
    # Options of a new draft; the defaults of the configuration are those of drafts saved before there were any.
    new_options: Mapping[str, Any] = MappingProxyType({})
    trainable = True  # False for systems without weights
    repeats_step = False  # True where all depths, or all after the first, are one step that can be repeated

    def __init__(self, config: DraftConfig):
        super().__init__(config)
        size = config.draft_vocab_size
        if size is not None:
            check_size(size, config.target_shape.vocab_size)
        self.register_buffer("d2t", None if size is None else torch.arange(size))
        self.head_rows: HeadRows | WholeHead | None = (
            None  # the target's lm_head, or its rows of `d2t`, after `bind`
        )
        self._head: LogitsHead | None = None

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
        self.config.check_target(target)
        linear = target.head.linear
        if self.d2t is None:
            self.head_rows = WholeHead(linear)
        else:
            check_map(self.d2t, target.vocab_size)
            self.head_rows = HeadRows(linear, self.d2t)
        self._target, self._head = target, replace(target.head, linear=self.head_rows)
        return self

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
        assert self._head is not None, "bind() the draft to its target first"
        return self._head(outputs)

    @classmethod
    def from_target(cls, target: TargetModel, **options: Any) -> Self:
        """A draft for `target` with its starting values, in float32 or the target's wider dtype, ready to be trained.

        Args:
            options: fields of the system's configuration.

        Raises:
            UserError: there is no such field, or its value is of the wrong type or out of range.
        """
        options = cls.options_of_new(options)
        check_options(cast(Any, cls.config_class), options)
        described = {key: value for key, value in target.config.to_dict().items() if key != "_name_or_path"}
        config = cast(Any, cls.config_class)(target_config=described, **options)
        draft: Any = cls(config)
        draft.to(device=target.device, dtype=torch.promote_types(target.dtype, torch.float32))
        draft.start_from(target)
        return draft.bind(target)

    @classmethod
    def options_of_new(cls, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a new draft: those asked for, and `new_options` for the others."""
        return {**cls.new_options, **asked}

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
