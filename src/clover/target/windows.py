"""Apply the attention windows of transformers' sliding and chunked layers to token trees.

transformers applies windows to the masks that it makes itself, but not to a mask that it is given. A tree brings its
own mask, so its windows are applied here. The cache keeps the whole text for every layer, even for layers with windows.

Shape legend: B batch, N new tokens, S' slots seen.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from clover.cache import KVCache
from clover.target.structure import sdpa_mask
from clover.target.support import CHUNKED_ATTENTION, FULL_ATTENTION, UNLIMITED, layer_windows

Masks = Tensor | dict[str, Tensor] | None


class Windows:
    """The windows of a model's layers: `sizes` in tokens per attention type.

    With `by_type` the model takes one mask per type; otherwise all of its layers have the same window.
    """

    def __init__(self, sizes: Mapping[str, int] | None = None, by_type: bool = False) -> None:
        self.sizes, self._by_type = dict(sizes or {}), by_type
        self._shortest = min(self.sizes.values(), default=UNLIMITED)

    @classmethod
    def of(cls, config: PretrainedConfig) -> "Windows":
        """Return the windows that a configuration names."""
        sizes = {kind: size for kind, size in layer_windows(config) if size < UNLIMITED}
        return cls(sizes, by_type=getattr(config, "layer_types", None) is not None)

    def masks(self, mask: Tensor | None, positions: Tensor, cache: KVCache, dtype: torch.dtype) -> Masks:
        """Return the attention mask of a forward pass: `sdpa_mask`, or one per attention type if windows cut it.

        `mask` is Bool [B, 1, N, S'] or None for plain text, `positions` Long [B, N]; the cache has begun these tokens.
        """
        new = positions.shape[1]
        added = sdpa_mask(mask, new, cache, dtype)
        if added is None or cache.get_mask_sizes(new)[0] <= self._shortest:
            return added  # with None the model makes the mask and its windows
        return self.cut(added, positions, cache.slot_positions(positions))

    def cut(self, added: Tensor, positions: Tensor, slots: Tensor) -> Masks:
        """Cut the mask `added` to the scores, [B, 1, N, S'], by the window of each attention type.

        `positions` Long [B, N] are those of the new tokens, `slots` Long [B, S'] those of all tokens.
        """
        if not self.sizes:
            return added
        queries, keys = positions[:, None, :, None], slots[:, None, None, :]
        cut = {
            kind: added.masked_fill(~sees(kind, queries, keys, size), float("-inf"))
            for kind, size in self.sizes.items()
        }
        return {FULL_ATTENTION: added, **cut} if self._by_type else next(iter(cut.values()))


def sees(kind: str, queries: Tensor, keys: Tensor, size: int) -> Any:
    """Return True where the positions of queries see the positions of keys, as in transformers' `masking_utils`."""
    if kind == CHUNKED_ATTENTION:
        return queries // size == keys // size
    return queries - keys < size
