"""Repetition, frequency and presence penalties, which lower the logits of tokens that occur in the text.

At a tree node the text consists of the committed tokens and those from the root down to the node. So each token has
the same penalties in a tree as in plain decoding.

Shapes: B batch, N tree nodes, A tokens committed in one step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from clover.sampling.params import SamplingParams
from clover.sampling.warpers import column
from clover.tree import TokenTree


class Penalties:
    """The penalties of a batch of sequences with these prompts; unused ones are neither stored nor computed.

    The repetition penalty counts the prompt, as in transformers; the other two count new tokens only, as in vLLM.
    """

    def __init__(
        self,
        params: Sequence[SamplingParams],
        prompts: Sequence[Sequence[int]],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._vocab_size, self._device = vocab_size, device
        self._configure(params)
        width = vocab_size + 1  # with one column for padding and tokens without logits
        size = len(prompts), width * (self._repetition is not None)
        seen = torch.zeros(size, dtype=torch.bool, device="cpu")
        if self._repetition is not None:
            rows = [row for row, prompt in enumerate(prompts) for _ in prompt]
            seen[rows, [min(token, vocab_size) for prompt in prompts for token in prompt]] = True
        self._seen = seen.to(device)  # Bool [B, V + 1]
        counted = width if self._counting else 0
        self._counts = torch.zeros(len(prompts), counted, dtype=torch.float32, device=device)  # [B, V + 1]

    def _configure(self, params: Sequence[SamplingParams]) -> None:
        device = self._device
        self._repetition = column([row.repetition_penalty for row in params], 1.0, device)
        self._frequency = column([row.frequency_penalty for row in params], 0.0, device)
        self._presence = column([row.presence_penalty for row in params], 0.0, device)

    @property
    def _counting(self) -> bool:
        return self._frequency is not None or self._presence is not None

    @property
    def active(self) -> bool:
        """Return True if any sequence has a penalty."""
        return self._repetition is not None or self._counting

    def apply(self, scores: Tensor, tree: TokenTree) -> Tensor:
        """Return scores [B, N, V] with the penalties of each node."""
        if self._repetition is not None:
            penalty = self._repetition.to(scores.dtype)
            # Nodes that are not ancestors count as the root's token, which is on every path.
            path_tokens = torch.where(tree.ancestor_mask, tree.tokens.unsqueeze(1), tree.tokens[:, :1, None])
            seen = self._of_nodes(self._seen, scores).scatter(2, path_tokens, True)
            scores = torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
        if self._counting:
            counts = self._counts_at(tree, scores)
            if self._frequency is not None:
                scores = scores - self._frequency.to(scores.dtype) * counts
            if self._presence is not None:
                scores = scores - self._presence.to(scores.dtype) * (counts > 0)
        return scores

    def _of_nodes(self, rows: Tensor, scores: Tensor) -> Tensor:
        return rows[:, None, : self._vocab_size].expand(scores.shape)

    def _counts_at(self, tree: TokenTree, scores: Tensor) -> Tensor:
        """Count each token among the new ones at each node, [B, N, V]; the root is already committed."""
        counts = self._of_nodes(self._counts, scores)
        if tree.tokens.shape[1] == 1:
            return counts
        drafted = tree.ancestor_mask[:, :, 1:].to(counts.dtype)
        return counts.scatter_add(2, tree.tokens[:, None, 1:].expand(drafted.shape), drafted)

    def commit(self, tokens: Tensor, counts: Tensor) -> None:
        """Append the first counts[b], Long [B], of new tokens Long [B, A] to the text of each sequence."""
        if not self.active:
            return
        padding = torch.arange(tokens.shape[1], device=tokens.device) >= counts.unsqueeze(1)
        tokens = tokens.masked_fill(padding, self._vocab_size)
        if self._repetition is not None:
            self._seen = self._seen.scatter(1, tokens, True)
        if self._counting:
            self._counts = self._counts.scatter_add(1, tokens, torch.ones_like(tokens, dtype=torch.float32))

    def select(self, rows: Tensor, params: Sequence[SamplingParams]) -> None:
        """Keep these sequences, Long [B], in this order; `params` are those of the kept rows."""
        self._configure(params)
        self._seen, self._counts = self._seen[rows], self._counts[rows]

    def insert(self, other: Penalties, params: Sequence[SamplingParams]) -> None:
        """Add the sequences of another batch after the present ones; `params` are those of all."""
        self._configure(params)
        self._seen = _joined(self._seen, other._seen)
        self._counts = _joined(self._counts, other._counts)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Return the rows of both; a tensor without columns, because it has no such penalty, gets columns of zeros."""
    width = max(first.shape[1], second.shape[1])
    return torch.cat([pad(rows, (0, width - rows.shape[1])) for rows in (first, second)])
