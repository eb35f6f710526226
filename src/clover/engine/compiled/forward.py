"""A forward pass of a model of transformers in fixed shape, as a compiler can trace it."""

from typing import Any

from clover.engine.compiled.cache import FixedCache
from clover.target import HiddenStates
from clover.target.cached_model import CachedModel
from clover.target.structure import Taps
from clover.tree import TokenTree


def run_fixed(target: CachedModel, tree: TokenTree, cache: FixedCache, taps: Taps) -> HiddenStates:
    """Run the nodes of trees on top of a cache, and never wait for the device; `taps` must be active."""
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
