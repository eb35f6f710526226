"""Check by its configuration that a target model can run losslessly, before any weight is loaded."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
)

from clover.errors import UserError, one_line
from clover.validation import validated

FULL_ATTENTION, CHUNKED_ATTENTION = "full_attention", "chunked_attention"
_WINDOW_FIELDS = {"sliding_attention": "sliding_window", CHUNKED_ATTENTION: "attention_chunk_size"}
UNLIMITED = 2**31 - 1  # the window of a layer without one, and the context of a model without a limit
_LENGTH_DEPENDENT_ROTARY = ("dynamic", "longrope")


@dataclass(frozen=True)
class _Rotary:
    original_max_position_embeddings: float | None = None


@dataclass(frozen=True)
class _Fields:
    """The fields that are read of every configuration; transformers checks only those that the model's type has."""

    sliding_window: int | None
    attention_chunk_size: int | None
    logit_scale: float | None
    logits_scaling: float | None
    final_logit_softcapping: float | None
    original_max_position_embeddings: float | None
    rope_parameters: list[_Rotary]
    eos_token_id: list[int]


def check_config(config: PretrainedConfig) -> None:
    """Raise UserError for a model that cannot run token trees; it names the type, and the layer or the field.

    These are encoder-decoder models and models with recurrent or other special layers. If a model also reads images,
    its text decoder is checked.
    """
    name = model_type(config)
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{name} is an encoder-decoder model; Clover needs a decoder-only one")
    text = text_config(config)
    check_fields(text, name)
    for layer, kind in enumerate(layer_kinds(text)):
        if kind != FULL_ATTENTION and kind not in _WINDOW_FIELDS:
            raise UserError(
                f"{name}: layer {layer} is of the type {kind}; Clover needs attention over a plain KV cache"
            )
    _check_class(config, name)


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return the configuration of the text decoder if the model reads more than text, otherwise `config` itself."""
    try:
        return config.get_text_config()
    except ValueError as error:
        raise UserError(f"{model_type(config)} has no single text decoder: {one_line(error)}") from error


def auto_class(config: PretrainedConfig) -> Any:
    """Return the class that loads a model: for text, or for images and text if the type exists only there."""
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    images = not known and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if images else AutoModelForCausalLM


def check_fields(config: Any, name: str) -> None:
    """Raise UserError if a field of a configuration, or of a generation configuration, has another type."""
    values = {field.name: getattr(config, field.name, None) for field in fields(_Fields)}
    values |= {"rope_parameters": _rotary_entries(config), "eos_token_id": eos_tokens(config)}
    validated(_Fields, values, name)


def attention_of(config: PretrainedConfig) -> str:
    """Return the attention that runs a model in transformers: "sdpa", or "eager" if its class has no other."""
    model_class: Any = auto_class(config)._model_mapping.get(type(config), None)
    return "sdpa" if getattr(model_class, "_supports_sdpa", True) else "eager"


def eos_tokens(config: Any) -> list[int]:
    """Return the tokens that end a text, by this configuration; [] if it names none."""
    eos = getattr(config, "eos_token_id", None)
    return list(eos) if isinstance(eos, (list, tuple)) else [] if eos is None else [eos]


def longest_run(config: PretrainedConfig, inside_windows: bool) -> tuple[int, str]:
    """Return the most tokens of a text, new tokens included, and the cause of this limit.

    It is the context, a layer's window if texts must stay `inside_windows`, or the point where rotary frequencies
    switch, because keys before and after it do not fit together.
    """
    limits = [(context_length(config), "context")]
    for layer, (kind, window) in enumerate(layer_windows(config) if inside_windows else ()):
        limits.append((window, f"window of layer {layer} ({kind})"))
    limits += [(switch, f"reach of rotary frequencies ({kind})") for kind, switch in _rotary_switches(config)]
    return min(limits, key=lambda limit: limit[0])


def check_fixed_shapes(config: PretrainedConfig) -> None:
    """Raise UserError if a forward pass depends on the text's length, because compiled steps have fixed shapes."""
    for kind, _ in _rotary_switches(config):
        raise UserError(
            f"{model_type(config)} cannot be compiled: its rotary frequencies ({kind}) depend on the length of the "
            "text; leave compilation out"
        )


def model_type(config: PretrainedConfig) -> str:
    """Return the name of a model's type for messages, such as ``llama``."""
    return getattr(config, "model_type", "") or type(config).__name__


def context_length(config: PretrainedConfig) -> int:
    """Return the number of positions of a model; UNLIMITED for configurations without a limit."""
    length = getattr(config, "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else UNLIMITED


def layer_kinds(config: PretrainedConfig) -> list[str]:
    """Return each layer's attention type by transformers' names (``full_attention``, ``sliding_attention``, ...)."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return list(kinds)
    layers = getattr(config, "num_hidden_layers", None) or 0
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return ["sliding_attention"] * layers
    return [FULL_ATTENTION] * layers


def layer_windows(config: PretrainedConfig) -> Iterator[tuple[str, int]]:
    """Yield for each layer its attention type and the number of tokens it sees."""
    for kind in layer_kinds(config):
        window = getattr(config, _WINDOW_FIELDS.get(kind, ""), None)
        yield kind, window or UNLIMITED


def set_windows(config: PretrainedConfig, size: int) -> dict[str, int]:
    """Set all windows of a configuration to this size, and return the old values of the fields."""
    before = {field: value for field in _WINDOW_FIELDS.values() if (value := getattr(config, field, None))}
    for field in before:
        setattr(config, field, size)
    return before


def _rotary_entries(config: Any) -> list[dict[str, Any]]:
    """Return the rotary parameters of all layers, or one entry per attention type."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    return [value for value in parameters.values() if isinstance(value, dict)] or [parameters]


def _rotary_switches(config: PretrainedConfig) -> Iterator[tuple[str, int]]:
    for entry in _rotary_entries(config):
        kind = entry.get("rope_type") or entry.get("type") or ""
        if kind in _LENGTH_DEPENDENT_ROTARY:
            original = entry.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            yield kind, original or context_length(config)


def _check_class(config: PretrainedConfig, name: str) -> None:
    model_class: Any = auto_class(config)._model_mapping.get(type(config), None)
    if model_class is None and getattr(config, "auto_map", None):
        return  # the repository's own code, which the user has allowed; the probe checks it after loading
    if model_class is None:
        raise UserError(f"{name} is not a causal language model that transformers knows")
    if getattr(model_class, "_is_stateful", False):
        raise UserError(
            f"{name} ({model_class.__name__}) has a recurrent state, which cannot follow the branches of a token tree"
        )
