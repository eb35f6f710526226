"""Find the parts of an unpatched model by running a few tokens, not by lists of names.

Shape legend: B batch, T text, N nodes, H hidden, W width of the hidden states that are read, V vocabulary.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from clover.cache import KVCache, KVShape
from clover.errors import UserError
from clover.target.support import model_type


class LogitsHead:
    """The map from hidden states after the final norm to logits: ``softcap * tanh(scale * (W h + b) / softcap)``.

    Scale (1 by default) and softcap (None by default) come from the configuration; the probe checks them.
    """

    def __init__(self, linear: Any, config: PretrainedConfig):
        self.linear = linear
        scale = getattr(config, "logit_scale", None) or 1.0
        self.scale = float(scale / (getattr(config, "logits_scaling", None) or 1.0))
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None) or None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] for hidden states [..., H], in the model's dtype."""
        return self.scaled(self.linear(hidden))

    def scaled(self, logits: Tensor) -> Tensor:
        """Scale and cap outputs of the lm_head, of any shape, as the model does."""
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


def is_norm(module: nn.Module) -> bool:
    """Return True if the name of a module's class contains "norm"."""
    return "norm" in type(module).__name__.lower()


def find_layers(base: nn.Module, num_layers: int, name: str) -> nn.ModuleList:
    """Return the list of decoder layers, the largest ``ModuleList`` of that length; UserError if there is none."""
    lists = [m for m in base.modules() if isinstance(m, nn.ModuleList) and len(m) == num_layers]
    if not lists:
        raise UserError(f"{name}: no list of {num_layers} decoder layers found")
    return max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()))


def place_of_final_norm(base: nn.Module, layers: nn.ModuleList, name: str) -> tuple[nn.Module, str]:
    """Return the module that has the norm after the last layer, and the norm's name there.

    It is the only norm next to the list of layers; UserError if there is not exactly one.
    """
    for owner in base.modules():
        if any(child is layers for child in owner.children()):
            names = [name for name, child in owner.named_children() if is_norm(child)]
            if len(names) == 1:
                return owner, names[0]
    raise UserError(f"{name}: Clover needs exactly one norm after the layers")


def kv_shape(cache: object, config: PretrainedConfig) -> KVShape:
    """Return the shapes of the cache that the model filled; UserError if a layer has none, or other shapes."""
    name, shapes = model_type(config), []
    for layer, entry in enumerate(getattr(cache, "layers", [])):
        keys, values = getattr(entry, "keys", None), getattr(entry, "values", None)
        if keys is None or values is None or keys.dim() != 4:
            raise UserError(f"{name}: layer {layer} ({type(entry).__name__}) keeps no keys and values")
        shapes.append((keys.shape[1], keys.shape[3], values.shape[3]))
        if shapes[-1] != shapes[0]:
            raise UserError(f"{name}: keys and values of layers {layer} and 0 differ in shape")
    if not shapes:
        raise UserError(f"{name} fills no key-value cache, which Clover needs")
    return len(shapes), *shapes[0]


class Taps:
    """Capture the inputs of chosen modules; works inside `torch.compile`.

    A compiler cannot trace a hook that exists for one call only. So a tap replaces the module's `forward` inside a
    ``with`` block, always by the same function. A module may be listed several times.
    """

    def __init__(self, modules: Iterable[nn.Module]):
        self._modules = list(modules)
        self._inputs: dict[nn.Module, Tensor] = {}
        self._forwards = [(vars(module), self._tapped(module)) for module in dict.fromkeys(self._modules)]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record the modules' inputs inside a ``with`` block; afterwards the modules are as before."""
        own = [names.get("forward") for names, _ in self._forwards]  # set if other code has replaced it
        for names, tapped in self._forwards:
            names["forward"] = tapped
        try:
            yield
        finally:
            for (names, _), forward in zip(self._forwards, own, strict=True):
                if forward is None:
                    del names["forward"]
                else:
                    names["forward"] = forward

    def take(self, otherwise: Tensor) -> Tensor:
        """Return the inputs of the last run, joined to [B, N, W], and forget them; without modules, `otherwise`."""
        read = [self._inputs[module] for module in self._modules]
        self._inputs.clear()
        if not read:
            return otherwise
        return read[0] if len(read) == 1 else torch.cat(read, dim=-1)

    def _tapped(self, module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        def tapped(inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
            self._inputs[module] = inputs
            return forward(inputs, *args, **kwargs)

        return tapped


def sdpa_mask(mask: Tensor | None, num_tokens: int, cache: KVCache, dtype: torch.dtype) -> Tensor | None:
    """Return the mask that SDPA adds to its scores, 0 or -inf [B, 1, N, S'], made once for all layers.

    None if no mask is needed: for a lone token that sees all slots, and for plain text on an empty cache. `mask` is
    Bool [B, 1, N, S'], or None for plain text. The caller has called ``begin(N)`` on the cache.
    """
    if cache.uniform:
        lone = num_tokens == 1 and (mask is None or mask.shape[-1] == cache.length + 1)
        if lone or (mask is None and cache.length == 0):
            return None
    mask = cache.causal_mask(num_tokens) if mask is None else mask
    return torch.where(mask, torch.zeros((), dtype=dtype, device=mask.device), float("-inf"))


def cache_argument(base: nn.Module) -> str:
    """Return the name of a model's cache argument: `cache` since transformers 5.24, `past_key_values` before."""
    return "cache" if "cache" in inspect.signature(base.forward).parameters else "past_key_values"


def cache_of(output: Any) -> Any:
    """Return the cache in a model's output, under either name; None if there is none."""
    return next((output[name] for name in ("cache", "past_key_values") if name in output), None)
