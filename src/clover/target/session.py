"""The session of a transformers model: its key-value cache, and the masks and positions of each forward pass.

Shapes: B rows, N nodes of a tree or tokens of plain text, A nodes of an accepted path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Self

from clover.cache import CachedRows, KVCache
from clover.target.cached_model import CachedModel
from clover.target.protocol import TargetOutput, TargetSession
from clover.tree import TokenTree


class CachedSession(CachedRows, TargetSession):
    """The session of a model with a key-value cache.

    Attributes:
        cache: keys and values of the texts. Compiled steps, which run the model themselves, write to it directly.
    """

    def __init__(self, target: CachedModel, cache: KVCache) -> None:
        self._target, self.cache = target, cache

    @torch.no_grad()
    def run(
        self, tokens: Tensor | TokenTree, hidden_state: str = "post_norm", logits: bool = True
    ) -> TargetOutput:
        if isinstance(tokens, TokenTree):
            tokens, positions, mask = self._place(tokens)
        else:
            # Padding may exceed the last position that the model knows.
            positions = self.cache.positions(tokens.shape[1]).clamp(max=self._target.longest_run - 1)
            mask = None
        self.cache.begin(tokens.shape[1])
        output = self._target.forward(tokens, positions, self.cache, mask, hidden_state)
        return TargetOutput(
            output.draft_hidden_states, self._target.logits(output.hidden) if logits else None
        )

    def _place(self, tree: TokenTree) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return tokens and positions, Long [B, N], and the mask of a tree; None if a lone root sees all slots."""
        cache, start = self.cache, self.cache.positions(1)
        if tree.tokens.shape[1] > 1:
            return tree.tokens, start + tree.depths, cache.attention_mask(tree.ancestor_mask)
        return tree.tokens, start, None if cache.uniform else cache.attention_mask(tree.ancestor_mask)

    def keep(self, path: Tensor, counts: Sequence[int]) -> None:
        self.cache.keep(path, counts)

    def commit(self, counts: Sequence[int]) -> None:
        self.cache.commit(counts)

    def over(self, cache: KVCache) -> Self:
        return type(self)(self._target, cache)
