"""A few decoder layers of the target's own class, without an embedding table, for draft models.

Shape legend: B batch, N tokens, H hidden, S' slots seen.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig

from clover.cache import KVCache, KVShape
from clover.errors import UserError, one_line
from clover.target.protocol import TargetWeights
from clover.target.structure import (
    Taps,
    cache_argument,
    cache_of,
    find_layers,
    is_norm,
    kv_shape,
    place_of_final_norm,
    sdpa_mask,
)
from clover.target.support import UNLIMITED, attention_of, longest_run, model_type, set_windows


class DecoderStack(nn.Module):
    """Decoder layers of the target's class and its final norm, with fresh weights and without dropout.

    All layers are like the target's last layer, but without its window. Learned position tables start at zero, because
    a target's hidden states already contain positions. UserError if the target's class has no such stack.
    `target_config` may be its ``to_dict()``.
    """

    def __init__(self, target_config: PretrainedConfig | Mapping[str, Any], num_layers: int) -> None:
        super().__init__()
        try:
            config = short_config(target_config, num_layers)
            set_windows(config, UNLIMITED)  # because the masks of a draft's tree do not cut windows
            self.stack: Any = AutoModel.from_config(config, attn_implementation=attention_of(config))
            self.stack.set_input_embeddings(None)
        except (ValueError, KeyError, TypeError, NotImplementedError) as error:
            raise UserError(f"draft layers like the target's cannot be built: {one_line(error)}") from error
        if getattr(config, "word_embed_proj_dim", config.hidden_size) != config.hidden_size:
            raise UserError(f"{model_type(config)} has embeddings of another width, which no draft supports")
        self.num_layers = num_layers
        self._last_position = longest_run(config, inside_windows=False)[0] - 1
        self._input_scale: float | None = None
        self._kv_shape: KVShape | None = None
        _ = self.final_norm
        for table in self.stack.modules():
            if isinstance(table, nn.Embedding):
                nn.init.zeros_(table.weight)

    @property
    def layers(self) -> nn.ModuleList:
        """Return the decoder layers."""
        return find_layers(self.stack, self.num_layers, type(self.stack).__name__)

    @property
    def final_norm(self) -> nn.Module:
        """Return the norm after the last layer, the only norm next to the list of layers."""
        owner, name = place_of_final_norm(self.stack, self.layers, type(self.stack).__name__)
        return getattr(owner, name)

    @property
    def input_scale(self) -> float:
        """Return the factor by which the base model scales its inputs, measured with zeros and ones; usually 1."""
        if self._input_scale is None:
            taps = Taps(self.layers[:1])
            with taps.active():
                zeros, ones = (taps.take(self._probe(value).last_hidden_state) for value in (0.0, 1.0))
            scale = (ones - zeros).double().mean().item()
            self._input_scale = scale if abs(scale - 1.0) > 0.02 else 1.0
        return self._input_scale

    def forward(
        self,
        inputs: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Run the layers and the final norm: [B, N, H] to [B, N, H].

        The first layer reads the inputs without a scale, even if the target scales embeddings. `positions`, Long
        [B, N], default to those of plain text. With a cache, on which the caller has called ``begin(N)``, the mask is
        Bool [B, 1, N, S']. Without a cache, as in training, padding on the right needs no mask.
        """
        rows, added = inputs.shape[:2]
        if self.input_scale != 1.0:
            inputs = inputs / self.input_scale
        if positions is None:
            whole = torch.arange(added, device=inputs.device).expand(rows, -1)
            positions = whole if cache is None else cache.positions(added)
        output = self.stack(
            inputs_embeds=inputs,
            # the padding of a row near the end of the context would exceed it
            position_ids=positions.clamp(max=self._last_position),
            attention_mask=None if cache is None else sdpa_mask(mask, added, cache, inputs.dtype),
            use_cache=cache is not None,
            **{cache_argument(self.stack): cache},
        )
        return output.last_hidden_state

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """Return an empty cache for the layers' keys and values: B rows with room for ``capacity`` tokens each."""
        if self._kv_shape is None:
            self._kv_shape = kv_shape(cache_of(self._probe(0.0, use_cache=True)), self.stack.config)
        return KVCache.new(self._kv_shape, batch_size, capacity, next(self.layers.parameters()))

    def take_final_norm(self) -> nn.Module:
        """Remove and return the final norm; then the output is that of the last layer."""
        owner, name = place_of_final_norm(self.stack, self.layers, type(self.stack).__name__)
        norm = getattr(owner, name)
        setattr(owner, name, nn.Identity())
        return norm

    def remove_outer_norms(self) -> None:
        """Remove the first layer's input norm, if it has one, and the final norm."""
        first = self.layers[0]
        self.take_final_norm()
        if name := input_norm(first):
            setattr(first, name, nn.Identity())

    def copy_last_layer(self, target: TargetWeights) -> None:
        """Copy the weights of the target's last layer to every layer; UserError if they do not fit."""
        last = target.last_layer.state_dict()
        try:
            for layer in self.layers:
                layer.load_state_dict({name: last[name] for name in layer.state_dict()})
        except (KeyError, RuntimeError) as error:
            raise UserError(f"the draft's layers do not fit {target.name}: {one_line(error)}") from error

    def keep_half(self, half: str) -> None:
        """Keep only the "attention" or the "mlp" of every layer, with its norm; UserError unless built like LLaMA's."""
        for layer in self.layers:
            norms = {name for name, part in layer.named_children() if is_norm(part)}
            attention = "self_attn" if hasattr(layer, "self_attn") else "attention"
            alike = norms == {"input_layernorm", "post_attention_layernorm"}
            if not (alike and hasattr(layer, attention) and hasattr(layer, "mlp")):
                raise UserError(
                    f"{type(layer).__name__} is not built like LLaMA's layers, so a draft cannot use half of it; "
                    "use the whole block"
                )
            if half == "attention":
                layer.mlp, layer.post_attention_layernorm = _Nothing(), nn.Identity()
            else:
                setattr(layer, attention, _Nothing(None))
                layer.input_layernorm = nn.Identity()

    @torch.no_grad()
    def _probe(self, value: float, **options: Any) -> Any:
        """Return the output of the stack for one token, with ``value`` as every input."""
        weight = next(self.layers.parameters())
        inputs = torch.full(
            (1, 1, self.stack.config.hidden_size), value, dtype=weight.dtype, device=weight.device
        )
        training = self.training
        self.eval()
        try:
            with torch.autocast(weight.device.type, enabled=False):
                return self.stack(inputs_embeds=inputs, **({"use_cache": False} | options))
        finally:
            self.train(training)


class _Nothing(nn.Module):
    """A replacement for one half of a layer that adds nothing to the residual stream."""

    def __init__(self, *others: None):
        super().__init__()
        self.others = others  # because transformers' attention layers return more than one value

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        zeros = torch.zeros_like(hidden_states)
        return (zeros, *self.others) if self.others else zeros


def input_norm(layer: nn.Module) -> str | None:
    """Return the name of the norm that a decoder layer applies to the input of its attention only.

    None for layers that norm the outputs of their parts (OLMo-2), or have one norm for both parts (Phi, Cohere).
    """
    norms = [name for name, child in layer.named_children() if is_norm(child)]
    return norms[0] if len(norms) > 1 and not norms[0].startswith("post") else None


def short_config(target_config: PretrainedConfig | Mapping[str, Any], num_layers: int) -> PretrainedConfig:
    """Return the target's configuration with ``num_layers`` layers like its last one and a vocabulary of one token."""
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
    config.dtype = None  # a draft may have another dtype
    config.pad_token_id = None
    return config
