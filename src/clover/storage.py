"""The tensors of key-value caches: how large they are made, and how they are read and resized.

Shape legend: B rows, A slots that are read, L layers, S slots, Hkv key-value heads, D their width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_LEAST_FIXED = 256  # slots of a cache for forwards of fixed shape


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Numbers as Long [n] on a device, by a transfer for which the host need not wait."""
    pinned = device.type == "cuda"
    return torch.tensor(numbers, dtype=torch.long, pin_memory=pinned).to(device, non_blocking=pinned)


def fixed_capacity(slots: int) -> int:
    """Slots of a cache for forwards of fixed shape that has room for `slots`: a power of two, 256 at least.

    >>> fixed_capacity(7), fixed_capacity(256), fixed_capacity(257)
    (256, 256, 512)
    """
    return power_of_two(max(slots, _LEAST_FIXED))


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`, a number above 0."""
    return 1 << (count - 1).bit_length()


def gathered(storage: Tensor, sources: Tensor) -> Tensor:
    """Slots ``sources`` [B, A] of ``storage`` [L, B, Hkv, S, D] as a new [L, B, Hkv, A, D]."""
    if sources.shape[0] == 1:
        return storage.index_select(3, sources[0])
    rows = torch.arange(sources.shape[0], device=sources.device)[:, None]
    return storage[:, rows, :, sources].permute(2, 0, 3, 1, 4)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Zeros, since a hidden slot still enters 0 * value; usable inside and outside of inference mode."""
    with torch.inference_mode(False):
        return torch.zeros(shape, dtype=dtype, device=device)


def resized(storage: Tensor, rows: int, capacity: int, held: int) -> Tensor:
    """Other rows and slots. Of the rows that are held what fits is copied, scratch too: a tree may be growing in it."""
    layers, _, heads, slots, width = storage.shape
    made = zeros((layers, rows, heads, capacity, width), storage.dtype, storage.device)
    kept = min(slots, capacity)
    made[:, :held, :, :kept] = storage[:, :held, :, :kept]
    return made
