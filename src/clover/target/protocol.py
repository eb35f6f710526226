"""What Clover requires of a target model: three protocols, of which `clover.target.model` is one implementation.

The engine knows a `Target` and the `TargetSession` that it opens. The session remembers the texts of one running batch
in whatever way suits the model: transformers' models keep keys and values, a recurrent model would keep states. So the
engine passes tokens and their parents in a tree, never masks, positions or cache tensors. Drafts and training know
`TargetWeights`: the parts of a target that drafts share.

A new kind of target subclasses `Target` and `TargetSession` (docs/development/extending.md shows one); Python
refuses to make one that lacks a method.

Shapes: B rows (texts of the batch), T tokens of plain text, N nodes of a tree or tokens of plain text, A nodes of an
accepted path, H hidden size, W width of the hidden states that a draft reads, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from typing_extensions import Self

from clover.errors import UserError
from clover.target.structure import LogitsHead
from clover.tree import TokenTree

HIDDEN_STATES = ("post_norm", "pre_norm", "low_middle_high")


@dataclass(frozen=True)
class TargetOutput:
    """The result of one forward pass over new tokens.

    Attributes:
        draft_hidden_states: [B, N, W], hidden states of the kind that was requested, in the model's dtype.
        logits: [B, N, V], for the token after each new token; None where no logits were requested.
    """

    draft_hidden_states: Tensor
    logits: Tensor | None = None


@dataclass(frozen=True)
class HiddenStates:
    """Hidden states of the last layer, and those that a draft reads, both in the model's dtype.

    Attributes:
        hidden: [B, N, H], after the final norm.
        draft_hidden_states: [B, N, W], of the kind that was asked for.
    """

    hidden: Tensor
    draft_hidden_states: Tensor


class Target(Protocol):
    """A language model that verifies drafted tokens."""

    @property
    def name(self) -> str:
        """Return what error messages call the model."""
        return type(self).__name__

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Return V; tokens are 0 … V - 1."""
        ...

    @property
    def device(self) -> torch.device:
        """Return the device of the tensors that `TargetSession.run` reads and returns."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the hidden states."""
        return torch.float32

    @property
    def weights(self) -> str | None:
        """Return "int8" if weights and inputs of linear layers are rounded so, None if they run as they are."""
        return None

    @property
    @abstractmethod
    def longest_run(self) -> int:
        """Return the largest number of tokens of one text, new tokens included; no draft token lies beyond."""
        ...

    @property
    def run_limit(self) -> str:
        """Return what sets `longest_run`, for error messages."""
        return "context"

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Return the tokens that end a text; there may be none."""
        return ()

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer, None if the model has none."""
        return None

    def require_tokenizer(self) -> Any:
        """Return the tokenizer; UserError if the model has none."""
        if self.tokenizer is None:
            raise UserError(
                "the target has no tokenizer, which texts need; save the model's own beside its weights"
            )
        return self.tokenizer

    @abstractmethod
    def hidden_width(self, hidden_state: str) -> int:
        """Return W, the width of hidden states of this kind (one of `HIDDEN_STATES`)."""
        ...

    @abstractmethod
    def open(self, rows: int, capacity: int) -> TargetSession:
        """Return a session for B empty texts, with room for `capacity` tokens each; it grows when it needs more."""
        ...


class TargetSession(Protocol):
    """The target's side of one running batch: everything that the model remembers of B texts.

    A step is `run`, then either `keep` or `commit`, which decide what stays remembered of the tokens that ran.
    """

    @property
    @abstractmethod
    def lengths(self) -> list[int]:
        """Return the number of remembered tokens of each row, on the host."""
        ...

    @abstractmethod
    def run(
        self, tokens: Tensor | TokenTree, hidden_state: str = "post_norm", logits: bool = True
    ) -> TargetOutput:
        """Run new tokens after the texts. Nothing is remembered until `keep` or `commit` is called.

        Args:
            tokens: plain text, Long [B, N], every token after the one before it; or a tree for every row. Each node
                of a tree sees its row's text, its ancestors and itself. A row may end in padding, of any token, whose
                outputs mean nothing.
            hidden_state: the kind of hidden states to return (one of `HIDDEN_STATES`).
            logits: whether to compute logits, which a prompt does not need.
        """
        ...

    @abstractmethod
    def keep(self, path: Tensor, counts: Sequence[int]) -> None:
        """Remember the accepted nodes of the trees that ran last.

        Args:
            path: Long [B, A], for each row the nodes from the root (0) downwards.
            counts: how many nodes of the path to remember in each row, at most A; the rest is padding.
        """

    @abstractmethod
    def commit(self, counts: Sequence[int]) -> None:
        """Remember the first ``counts[b]`` tokens of row b of the plain text that ran last."""

    @abstractmethod
    def crop(self, lengths: Sequence[int]) -> None:
        """Forget all but the first ``lengths[b]`` tokens of row b.

        A model that cannot return to this point forgets more: read `lengths` afterwards, and run the rest again.
        """

    @abstractmethod
    def drop(self, row: int) -> None:
        """Remove a row: the last row moves to its place, and B falls by one."""

    def clear(self, row: int, start: int = 0) -> None:
        """Remove what is not a number from a row, from token `start` on, if later runs could read it."""

    @abstractmethod
    def insert(self, other: Self) -> None:
        """Add the rows of another session of the same target after the present rows."""

    @abstractmethod
    def first_rows(self, rows: int) -> AbstractContextManager[None]:
        """Let the session have its first rows only, inside a ``with`` block."""
        ...

    @abstractmethod
    def copy_row(self, row: int, length: int) -> Self:
        """Return the first `length` tokens of a row as a session of one row, which shares no memory with this one."""
        ...

    @abstractmethod
    def fill_row(self, row: int, other: Self, length: int) -> None:
        """Copy the first `length` tokens of another session's only row to an empty row.

        As with `crop`, a model may have to copy fewer: read `lengths` afterwards.
        """

    @abstractmethod
    def row_bytes(self, length: int) -> int:
        """Return the memory that `copy_row` of `length` tokens needs, in bytes."""
        ...


class TargetWeights(Target, Protocol):
    """A target that shows the parts which drafts and training share with it. All of its weights are frozen."""

    @property
    def config(self) -> Any:
        """Return transformers' configuration of the model, of the text decoder if it also reads images."""
        ...

    @property
    def hidden_size(self) -> int:
        """Return H."""
        ...

    @property
    def dtype_name(self) -> str:
        """Return the dtype as ``--dtype`` names it."""
        ...

    @property
    def embedding_weight(self) -> Tensor:
        """Return the embeddings [V, H], not scaled, even if the model scales them."""
        ...

    @property
    def lm_head_weight(self) -> Tensor:
        """Return the weights [V, H] of the lm_head."""
        ...

    @property
    def head(self) -> LogitsHead:
        """Return the lm_head with the scale and the cap that the model applies to its logits."""
        ...

    @property
    def final_norm(self) -> nn.Module:
        """Return the norm after the last decoder layer."""
        ...

    @property
    def last_layer(self) -> nn.Module:
        """Return the last decoder layer."""
        ...

    def described_config(self) -> dict[str, Any]:
        """Return the configuration as a draft stores it: the model's class included, its location left out."""
        ...

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return all weights by name."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] for hidden states [..., H] that have passed the final norm."""
        ...

    def train_forward(self, tokens: Tensor, hidden_state: str = "post_norm") -> HiddenStates:
        """Return the hidden states of whole texts, Long [B, T], padded on the right by any token."""
        ...
