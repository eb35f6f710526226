"""Turn the tensors of a GGUF file into the weights of a transformers model."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from clover.target import weight_cache
from clover.target.gguf.config import FACTORS, stop_tokens
from clover.target.gguf.file import GgufFile
from clover.target.support import attention_of, auto_class

_NORMS_PLUS_ONE = ("gemma2", "gemma3", "nemotron")  # llama.cpp stores the weights of their norms plus 1
_TRANSPOSED = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")  # GPT-2's Conv1D
_EXPERTS = {
    "gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "down_proj": ("ffn_down_exps.weight",),
}


def load_weights(
    file: GgufFile, config: PretrainedConfig, dtype: torch.dtype, cached: bool
) -> PreTrainedModel:
    """Return the model with dequantized weights. It stops on each token that ends a text or a turn.

    With `cached`, large weights are stored in the weight cache, and mapped. UserError if a weight has no tensor, a
    tensor has no weight, or their shapes differ.
    """
    with torch.device("meta"):
        skeleton: Any = auto_class(config).from_config(config, dtype=dtype)
    expected = skeleton.state_dict()
    if config.tie_word_embeddings:
        expected.pop("lm_head.weight", None)
    sources = _sources(file, list(expected), config.num_hidden_layers)
    unused = file.tensors.keys() - {name for names in sources.values() for name in names} - set(FACTORS)
    if unused:
        raise file.refusal(f"no weight of {config.model_type} uses its tensor {min(unused)}")
    layout = {name: expected[name] for name in sources}
    make = partial(_weight, file, config, sources, layout)
    weights = None
    if cached and sum(weight.nbytes for weight in layout.values()) >= weight_cache.SMALLEST:
        name = weight_cache.key([file.path], f"gguf-{dtype}".replace("torch.", ""))
        weights = weight_cache.find_or_make(name, layout, make)
    model: PreTrainedModel = type(skeleton).from_pretrained(
        None,
        config=config,
        state_dict=weights or {name: make(name) for name in layout},
        dtype=dtype,
        attn_implementation=attention_of(config),
    )
    model.config.architectures = [type(model).__name__]
    model.config.name_or_path = str(file.path.parent)
    if ends := stop_tokens(file):
        assert model.generation_config is not None
        model.generation_config.eos_token_id = ends
    return model


def _weight(
    file: GgufFile,
    config: PretrainedConfig,
    sources: dict[str, tuple[str, ...]],
    layout: dict[str, Tensor],
    name: str,
) -> Tensor:
    """Return a weight of the model by its name."""
    parts = [_converted(file, tensor, config) for tensor in sources[name]]
    weight, expected = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1), layout[name]
    if weight.shape != expected.shape:
        raise file.refusal(
            f"its tensor {sources[name][0]} makes {list(weight.shape)}, where {name} is {list(expected.shape)}"
        )
    return weight.to(expected.dtype)


def _sources(file: GgufFile, weights: list[str], layers: int) -> dict[str, tuple[str, ...]]:
    """Return the tensors that each weight is made of."""
    import gguf

    architectures = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(architectures[file.architecture], layers)
    sources: dict[str, tuple[str, ...]] = {}
    for weight in weights:
        module, _, kind = weight.rpartition(".")
        if module.endswith(".experts"):
            layer = next(part for part in module.split(".") if part.isdigit())
            tensors = tuple(f"blk.{layer}.{name}" for name in _EXPERTS[kind])
        else:
            inner = module.partition(".")[2]  # because some names are listed without the base model's name
            tensors = (f"{names.get_name(module) or names.get_name(inner)}.{kind}",)
        if missing := [tensor for tensor in tensors if tensor not in file.tensors]:
            raise file.refusal(f"it has no tensor {missing[0]}, which {weight} needs")
        sources[weight] = tensors
    return sources


def _converted(file: GgufFile, name: str, config: PretrainedConfig) -> Tensor:
    """Return a tensor in transformers' layout, by undoing the changes of llama.cpp's converter."""
    tensor = file.tensor(name)
    if file.architecture in _NORMS_PLUS_ONE and name.endswith("norm.weight"):
        return tensor - 1
    if file.architecture == "gpt2" and name.endswith(_TRANSPOSED):
        return tensor.T.contiguous()
    if file.architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
        heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
        return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(tensor.shape)
    if name.endswith("ffn_gate_inp_shexp.weight"):
        return tensor.reshape(1, -1)
    return tensor
