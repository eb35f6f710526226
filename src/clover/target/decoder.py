"""A few decoder layers of the target's own class, without an embedding table, for draft models.

Shape legend: B batch, N tokens, H hidden, S' slots seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, DynamicCache, PretrainedConfig

from clover.cache import KVCache
from clover.errors import UserError, one_line
from clover.target.model import TargetModel
from clover.target.structure import KVShape, captured_input, find_layers, kv_shape, sdpa_mask
from clover.target.support import model_type, position_limit


class DecoderStack(nn.Module):
    """What ``build_decoder`` returns: a base model of transformers that takes vectors instead of tokens."""

    def __init__(self, stack: Any, num_layers: int) -> None:
        super().__init__()
        self.stack: Any = stack
        self.num_layers = num_layers
        self._last_position = position_limit(stack.config) - 1
        self._input_scale: float | None = None

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers."""
        return find_layers(self.stack, self.num_layers, type(self.stack).__name__)

    @property
    def input_scale(self) -> float:
        """Factor the base model applies to its inputs, found by feeding it zeros and ones; 1 for most."""
        if self._input_scale is None:
            zeros, ones = self._first_input(0.0), self._first_input(1.0)
            scale = (ones - zeros).double().mean().item()
            self._input_scale = scale if abs(scale - 1.0) > 0.02 else 1.0
        return self._input_scale

    def forward(
        self, inputs: Tensor, positions: Tensor | None, mask: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        """See ``run_decoder``."""
        scale = self.input_scale
        if scale != 1.0:
            inputs = inputs / scale
        if positions is not None:  # padding of a row that is near the end of the context would pass it
            positions = positions.clamp(max=self._last_position)
        output = self.stack(
            inputs_embeds=inputs,
            position_ids=positions,
            attention_mask=None if cache is None else sdpa_mask(mask, inputs.shape[1], cache, inputs.dtype),
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return output.last_hidden_state

    def kv_shape(self) -> KVShape:
        """Shape of the keys and values it caches, read off a run of one token."""
        with self._probing():
            output = self.stack(
                inputs_embeds=self._vector(0.0), past_key_values=DynamicCache(), use_cache=True
            )
        return kv_shape(output.past_key_values, self.stack.config)

    def _vector(self, value: float) -> Tensor:
        weight = next(self.layers.parameters())
        shape = (1, 1, self.stack.config.hidden_size)
        return torch.full(shape, value, dtype=weight.dtype, device=weight.device)

    def _first_input(self, value: float) -> Tensor:
        """What the first layer gets when every input is ``value``."""
        with self._probing(), captured_input(self.layers[0]) as captured:
            self.stack(inputs_embeds=self._vector(value), use_cache=False)
        return captured[0]

    @contextmanager
    def _probing(self) -> Iterator[None]:
        training = self.training
        self.eval()
        try:
            with torch.no_grad(), torch.autocast(next(self.parameters()).device.type, enabled=False):
                yield
        finally:
            self.train(training)


def build_decoder(target_config: PretrainedConfig | Mapping[str, Any], num_layers: int) -> DecoderStack:
    """Decoder layers of the target's class and its final norm, with fresh weights
    and without dropout.

    All layers are of the kind of the target's last layer. Learned position tables start at zero: the hidden states
    of a target have taken positions in already.

    Args:
        target_config: the target's configuration, or its ``to_dict()``.
        num_layers: at least 1.

    Raises:
        UserError: the target's class has no such stack.
    """
    try:
        config = _short_config(target_config, num_layers)
        stack = AutoModel.from_config(config, attn_implementation="sdpa")
        stack.set_input_embeddings(None)
    except (ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise UserError(f"no draft layers can be built like the target's: {one_line(error)}") from error
    if getattr(config, "word_embed_proj_dim", config.hidden_size) != config.hidden_size:
        raise UserError(
            f"{model_type(config)} gives its embeddings another width, which drafts do not support"
        )
    decoder = DecoderStack(stack, num_layers)
    final_norm(decoder)
    for table in stack.modules():
        if isinstance(table, nn.Embedding):
            nn.init.zeros_(table.weight)
    return decoder


def run_decoder(
    decoder: DecoderStack,
    inputs: Tensor,
    positions: Tensor | None = None,
    mask: Tensor | None = None,
    cache: KVCache | None = None,
) -> Tensor:
    """Run the layers and the final norm.

    Args:
        decoder: from ``build_decoder``.
        inputs: [B, N, H]; the first layer sees them as they are, also where the target scales embeddings.
        positions: Long [B, N]; None without a cache: 0 .. N - 1.
        mask: Bool [B, 1, N, S'] with a cache; None for plain text (padding on the right needs no mask).
        cache: None for whole texts, as in training; else the caller has called ``cache.begin(N)``.

    Returns:
        [B, N, H] after the final norm.
    """
    return decoder(inputs, positions, mask, cache)


def decoder_cache(decoder: DecoderStack, batch_size: int, capacity: int) -> KVCache:
    """An empty cache for the decoder's own keys and values: B rows with room for ``capacity`` tokens each."""
    return decoder.kv_shape().new_cache(batch_size, capacity, next(decoder.layers.parameters()))


def final_norm(decoder: DecoderStack) -> nn.Module:
    """The norm after the last layer: the one norm beside the list of layers. Needs no weights, only the structure."""
    for owner in decoder.stack.modules():
        if any(child is decoder.layers for child in owner.children()):
            norms = [child for child in owner.children() if "norm" in type(child).__name__.lower()]
            if len(norms) == 1:
                return norms[0]
    raise UserError(f"{type(decoder.stack).__name__} has not one norm after its layers, which drafts need")


def take_final_norm(decoder: DecoderStack) -> nn.Module:
    """Take the norm after the last layer out of the decoder, which from then on ends with that layer's output."""
    norm = final_norm(decoder)
    for module in decoder.stack.modules():
        for name, child in module.named_children():
            if child is norm:
                setattr(module, name, nn.Identity())
    return norm


def input_norm(layer: nn.Module) -> str | None:
    """Name of the norm that a decoder layer puts before its attention and before nothing else.

    None where there is no such norm: in layers that norm the outputs of their parts instead (OLMo-2), and in those
    whose attention and MLP read one norm together (Phi, Cohere).
    """
    norms = [name for name, child in layer.named_children() if "norm" in type(child).__name__.lower()]
    return norms[0] if len(norms) > 1 and not norms[0].startswith("post") else None


def remove_outer_norms(decoder: DecoderStack) -> None:
    """Take out the first layer's input norm, if it has one, and the final norm."""
    first = decoder.layers[0]
    take_final_norm(decoder)
    if name := input_norm(first):
        setattr(first, name, nn.Identity())


def copy_last_layer(target: TargetModel, decoder: DecoderStack) -> None:
    """Set what there is of every layer to the same weights of the target's last layer.

    Raises:
        UserError: the decoder was built for another model.
    """
    last = target.layers[-1].state_dict()
    try:
        for layer in decoder.layers:
            layer.load_state_dict({name: last[name] for name in layer.state_dict()})
    except (KeyError, RuntimeError) as error:
        raise UserError(f"the draft's layers are not those of {target.name}: {one_line(error)}") from error


def _short_config(target_config: PretrainedConfig | Mapping[str, Any], num_layers: int) -> PretrainedConfig:
    """The target's configuration with ``num_layers`` layers, all like the last one, and next to no vocabulary."""
    config: Any = deepcopy(target_config)
    if isinstance(config, Mapping):
        config = AutoConfig.for_model(**config)
    for field, value in list(vars(config).items()):
        if "layer" in field and isinstance(value, (list, tuple)) and len(value) == config.num_hidden_layers:
            setattr(config, field, [value[-1]] * num_layers)
        elif "drop" in field and isinstance(value, float):
            setattr(config, field, 0.0)  # a draft imitates a target that runs without dropout
    config.num_hidden_layers = num_layers
    config.vocab_size = 1
    config.dtype = None  # the draft's dtype is not for the target's configuration to say
    config.pad_token_id = None
    return config
