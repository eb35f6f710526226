"""A key-value cache for forwards of fixed shape, which `torch.compile` and CUDA graphs can capture.

The lengths are a tensor, every forward reads all slots, and the mask hides slots without text. A cache exists for one
forward and does not own its storage: the `KVCache` of that storage makes room before, and keeps or commits after.

Shapes: B rows that run, padding rows included, L layers, R rows of the storage, S slots, N new tokens, Hkv key-value
heads, Dk / Dv their widths.
"""

from typing import Any

import torch
from torch import Tensor

from clover.cache.kv import ModelCache, gathered_tokens
from clover.target import HiddenStates
from clover.target.cached_model import CachedModel
from clover.target.structure import Taps
from clover.tree import TokenTree


class FixedCache(ModelCache):
    """The storage of a `KVCache`, [L, R, Hkv, S, D], during one forward of fixed shape over its first rows.

    It has the members of `KVCache` that a forward of the target or of a draft calls.

    Args:
        storage: keys, values, and tokens if they are stored; written in place.
        lengths: Long [B], cached tokens of each row.
        position_limit: positions of padding are clamped below this limit.
    """

    def __init__(self, storage: tuple[Tensor, ...], lengths: Tensor, position_limit: int) -> None:
        self.layers, self.num_layers = [], storage[0].shape[0]
        self.storage = storage  # with rows that do not run
        self._row_lengths, self._position_limit, self._slots = lengths, position_limit, lengths

    def begin(self, num_tokens: int, after: int = 0) -> None:
        """Announce a forward of N tokens after `after` uncommitted tokens of earlier forwards, which it may see."""
        steps = torch.arange(after, after + num_tokens, device=self._row_lengths.device)
        self._slots = (self._row_lengths[:, None] + steps)[:, :, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = self.storage[:2]
        self._write(keys, key_states, layer_idx)
        self._write(values, value_states, layer_idx)
        return keys[layer_idx, : self.batch_size], values[layer_idx, : self.batch_size]

    def write_tokens(self, tokens: Tensor) -> None:
        """Store the new tokens Long [B, N], if the cache stores tokens."""
        self._write(self.storage[2], tokens[:, None, :, None], 0)

    def _write(self, storage: Tensor, states: Tensor, layer: int) -> None:
        """Write states [B, Hkv, N, D] of one layer to the new slots."""
        rows, heads = states.shape[:2]
        # All indices are tensors: a layer selected by an integer would be a view, which the compiler would copy.
        layers = torch.full((1, 1, 1), layer, device=states.device)
        row = torch.arange(rows, device=states.device)[:, None, None]
        head = torch.arange(heads, device=states.device)[None, None]
        storage.index_put_((layers, row, head, self._slots), states.transpose(1, 2))

    @property
    def tokens(self) -> Tensor:
        """Return the stored tokens of the rows' texts, Long [B, S]."""
        return self.storage[2][0, : self.batch_size, 0, :, 0]

    def last_tokens(self, count: int) -> Tensor:
        """Return the last tokens of each text before the new ones, Long [B, count]; -1 before its first token."""
        return gathered_tokens(self.tokens, self._row_lengths, count)

    def attention_mask(self, ancestor_mask: Tensor) -> Tensor:
        """Return the slots that each new token sees, Bool [B, 1, N, S], as `KVCache.attention_mask` does."""
        _, nodes, columns = ancestor_mask.shape
        device, lengths = ancestor_mask.device, self._row_lengths[:, None, None]
        cached = torch.arange(self.capacity, device=device) < lengths
        places = (lengths + torch.arange(columns, device=device)).expand(-1, nodes, -1)
        mask = cached.expand(-1, nodes, -1).scatter(2, places, ancestor_mask)
        return mask.unsqueeze(1)

    def causal_mask(self, num_tokens: int) -> Tensor:
        """Return ``attention_mask`` for N tokens of plain text in every row: Bool [B, 1, N, S]."""
        device = self._row_lengths.device
        causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=device).tril()
        return self.attention_mask(causal.expand(self.batch_size, -1, -1))

    def positions(self, num_tokens: int) -> Tensor:
        """Return the positions of the next N tokens of plain text, Long [B, N]."""
        steps = torch.arange(num_tokens, device=self._row_lengths.device)
        return (self._row_lengths[:, None] + steps).clamp(max=self._position_limit - 1)

    def slot_positions(self, positions: Tensor) -> Tensor:
        """Return the text position of every slot, Long [B, S]."""
        rows, new = positions.shape
        slots = torch.arange(self.capacity, device=positions.device).expand(rows, -1)
        places = self._row_lengths[:, None] + torch.arange(new, device=positions.device)
        return slots.scatter(1, places, positions)

    def text(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return one layer's keys and values of the texts, and the mask Bool [B, 1, 1, S] of their slots."""
        rows, slots = self.batch_size, torch.arange(self.capacity, device=self._row_lengths.device)
        mask = (slots < self._row_lengths[:, None])[:, None, None]
        return self.storage[0][layer, :rows], self.storage[1][layer, :rows], mask

    def commit(self, counts: Tensor) -> None:
        """Keep the first counts[b], Long [B], of the new tokens; the `KVCache` of the storage must do so, too."""
        self._row_lengths = self._row_lengths + counts

    @property
    def lengths_on_device(self) -> Tensor:
        return self._row_lengths

    @property
    def batch_size(self) -> int:
        return self._row_lengths.shape[0]

    @property
    def capacity(self) -> int:
        return self.storage[0].shape[3]

    @property
    def length(self) -> int:
        """Return S: all slots are read, because the host does not know the rows' lengths."""
        return self.capacity

    @property
    def uniform(self) -> bool:
        """Return False, because the host does not know the lengths."""
        return False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0; models call this only if they get no positions."""
        return 0

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int = 0) -> tuple[int, int]:
        return self.capacity, 0


def run_fixed(target: CachedModel, tree: TokenTree, cache: FixedCache, taps: Taps) -> HiddenStates:
    """Run the nodes of trees on top of a cache without waiting for the device; `taps` must be active."""
    mask, positions = cache.attention_mask(tree.ancestor_mask), cache.positions(1) + tree.depths
    cache.begin(tree.tokens.shape[1])
    of_layers: Any = cache
    hidden = target.base(
        input_ids=tree.tokens,
        position_ids=positions,
        attention_mask=target.windows.masks(mask, positions, of_layers, target.dtype),
        use_cache=True,
        **{target.cache_argument: cache},
    ).last_hidden_state
    return HiddenStates(hidden, taps.take(hidden))
