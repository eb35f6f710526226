"""The protocols of a target model; `clover.target.model` implements them.

The engine uses a `Target` and the `TargetSession` that it opens. The session remembers the texts of one running batch
in the way that suits the model: transformers' models keep keys and values, a recurrent model would keep states. So the
engine passes tokens and their parents in a tree, never masks, positions or cache tensors. Drafts and training use
`TargetWeights`: the parts of a target that drafts share.

A new kind of target subclasses `Target` and `TargetSession` (docs/development/extending.md shows one). Python refuses
to instantiate a class that lacks a method.

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
        logits: [B, N, V], for the token after each new token; None if no logits were requested.
    """

    draft_hidden_states: Tensor
    logits: Tensor | None = None


@dataclass(frozen=True)
class HiddenStates:
    """Hidden states of the last layer, and those that a draft reads, both in the model's dtype.

    Attributes:
        hidden: [B, N, H], after the final norm.
        draft_hidden_states: [B, N, W], of the requested kind.
    """

    hidden: Tensor
    draft_hidden_states: Tensor


class Target(Protocol):
    """A language model that verifies drafted tokens."""

    @property
    def name(self) -> str:
        """Return the model's name in error messages."""
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
        """Return "int8" if weights and inputs of linear layers are rounded to int8, None if they run as they are."""
        return None

    @property
    def exact(self) -> bool:
        """Return whether the bits of a token depend on the text before it alone, as with most int8 weights."""
        return False

    @property
    @abstractmethod
    def longest_run(self) -> int:
        """Return the most tokens of one text, new tokens and draft tokens included."""
        ...

    @property
    def run_limit(self) -> str:
        """Return the cause of the limit `longest_run`, for error messages."""
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
                "the target has no tokenizer, which texts need; save the model's tokenizer beside its weights"
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

    A step calls `run`, and then `keep` or `commit` to say which of these tokens are remembered.
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
            tokens: plain text, Long [B, N], or a tree for every row. Each node of a tree sees its row's text, its
                ancestors and itself. A row may be padded at its end by any token; outputs of padding mean nothing.
            hidden_state: the kind of hidden states to return (one of `HIDDEN_STATES`).
            logits: whether to compute logits; a prompt does not need them.
        """
        ...

    @abstractmethod
    def keep(self, path: Tensor, counts: Sequence[int]) -> None:
        """Remember the accepted nodes of the trees that ran last.

        Args:
            path: Long [B, A], the nodes of each row from the root (0) downwards.
            counts: the number of nodes of the path to remember in each row, at most A; the rest is padding.
        """

    @abstractmethod
    def commit(self, counts: Sequence[int]) -> None:
        """Remember the first ``counts[b]`` tokens of row b of the plain text that ran last."""

    @abstractmethod
    def crop(self, lengths: Sequence[int]) -> None:
        """Forget all but the first ``lengths[b]`` tokens of row b.

        A model that cannot return to this point forgets more. So read `lengths` afterwards, and run the rest again.
        """

    @abstractmethod
    def drop(self, row: int) -> None:
        """Remove a row: the last row moves to its place, and B falls by one."""

    def clear(self, row: int, start: int = 0) -> None:
        """Remove NaN from a row, beginning at token `start`, if later runs could read it."""

    @abstractmethod
    def insert(self, other: Self) -> None:
        """Append the rows of another session of the same target."""

    @abstractmethod
    def first_rows(self, rows: int) -> AbstractContextManager[None]:
        """Restrict the session to its first rows inside a ``with`` block."""
        ...

    @abstractmethod
    def copy_row(self, row: int, length: int) -> Self:
        """Return the first `length` tokens of a row as a session of one row, which shares no memory with this one."""
        ...

    @abstractmethod
    def fill_row(self, row: int, other: Self, length: int) -> None:
        """Copy the first `length` tokens of another session's only row to an empty row.

        As with `crop`, a model may have to copy fewer tokens. So read `lengths` afterwards.
        """

    @abstractmethod
    def row_bytes(self, length: int) -> int:
        """Return the memory that `copy_row` of `length` tokens needs, in bytes."""
        ...


class TargetWeights(Target, Protocol):
    """A target that exposes the parts that drafts and training share with it. All of its weights are frozen."""

    @property
    def config(self) -> Any:
        """Return transformers' configuration of the model, or of its text decoder if it also reads images."""
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
        """Return the embeddings [V, H], without the scale that some models apply."""
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
        """Return the configuration that a draft stores: with the model's class, without its location."""
        ...

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return all weights by name."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] for hidden states [..., H] after the final norm."""
        ...

    def train_forward(self, tokens: Tensor, hidden_state: str = "post_norm") -> HiddenStates:
        """Return the hidden states of whole texts, Long [B, T]; any token may pad on the right."""
        ...
