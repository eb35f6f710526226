"""Turn the facts of a GGUF file into the configuration of a transformers model.

Each fact becomes a setting, agrees with the configuration anyway, or is refused by its name: without it another model
than the file's would run. Facts have the names of llama.cpp's converter.
"""

import math
from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig

from clover.target.gguf.file import GgufFile

# The architectures that are read, and their types in transformers.
_ALIKE = ("llama", "qwen2", "qwen3", "gemma2", "phi3", "starcoder2", "stablelm", "falcon", "gpt2", "nemotron")
_TYPES = {name: name for name in _ALIKE}
_TYPES |= {"gemma3": "gemma3_text", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}
# Facts and their settings; the first setting that a configuration has is used.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "block_count": ("num_hidden_layers",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.key_length": ("head_dim",),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_count": ("num_experts",),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
}
_ROUNDING = ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon")  # one of them is needed
_NEEDED = ("context_length", "embedding_length", "block_count", "attention.head_count", "feed_forward_length")
# Facts that change nothing here. Files without scaling, too, have the rotary length before scaling.
_HARMLESS = ("tensor_data_layout", "vocab_size", "use_parallel_residual", "rope.scaling.finetuned")
_HARMLESS += ("rope.scaling.original_context_length",)
_OF_ONE = ("logit_scale", "residual_scale", "embedding_scale", "expert_weights_scale")  # harmless if 1
_TOKENS = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
_TURN_ENDS = ("eos", "eot", "eom")
# The ends of turns in files that do not name them; llama.cpp knows these texts. Only those in the chat template count.
_NAMED_ENDS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
)
_DOCUMENT_ENDS = ("<|endoftext|>", "<|end_of_text|>")  # llama.cpp ends there in every model
_CONTROL = 3  # the type of tokens that are not text
FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")  # tensors of scaling
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def read_config(file: GgufFile) -> PretrainedConfig:
    """Return the configuration that a file describes; UserError if a fact is missing or not supported."""
    model_type = _TYPES.get(file.architecture)
    if model_type is None:
        raise file.refusal(
            f"GGUF files of the architecture {file.architecture} are not read ({', '.join(_TYPES)} are)"
        )
    facts = {name: _single(value) for name, value in file.facts().items()}
    for name in _NEEDED:
        if not isinstance(facts.get(name), int) or facts[name] < 1:
            raise file.refusal(
                f"it does not say its {file.architecture}.{name}; a model of unknown size is not loaded"
            )
    if not any(name in facts for name in _ROUNDING):
        raise file.refusal(
            f"it does not say its {file.architecture}.{_ROUNDING[1]}, and no default is the model's"
        )
    defaults = AutoConfig.for_model(model_type)
    known = {*signature(type(defaults)).parameters, *type(defaults).attribute_map}
    settings = _of_tensors(file, known) | _of_tokens(file)
    for fact, names in _SETTINGS.items():
        name = next((name for name in names if name in known), None)
        if name is not None and fact in facts:
            settings[name] = facts.pop(fact) or None  # 0 is "off"
    settings |= _of_family(file.architecture, settings, facts)
    rotary = getattr(defaults, "rope_parameters", None)
    if rotary is not None:
        settings["rope_parameters"] = _rope_parameters(file, rotary, settings, facts)
        before = "original_max_position_embeddings"
        if before in known and before in settings["rope_parameters"]:
            settings[before] = settings["rope_parameters"][before]  # a type with its own field reads that one
    config = AutoConfig.for_model(model_type, **settings)
    _check(file, config, settings, facts)
    return config


def stop_tokens(file: GgufFile) -> list[int]:
    """Return the tokens that end a text, a turn or a message."""
    found = [file.fields.get(f"tokenizer.ggml.{name}_token_id") for name in _TURN_ENDS]
    ends = set(_DOCUMENT_ENDS)
    if found[1] is None:
        template = str(file.fields.get("tokenizer.chat_template", ""))
        ends |= {name for name in _NAMED_ENDS if name in template}
    kinds = file.fields.get("tokenizer.ggml.token_type") or []
    names = enumerate(file.fields.get("tokenizer.ggml.tokens") or [])
    found += [at for at, name in names if name in ends and kinds[at : at + 1] == [_CONTROL]]
    return list(dict.fromkeys(token for token in found if token is not None))


def _single(value: Any) -> Any:
    """Return the common value of a list with equal values for all layers; other values unchanged."""
    return value[0] if isinstance(value, list) and len(set(value)) == 1 else value


def _of_tensors(file: GgufFile, known: set[str]) -> dict[str, Any]:
    """Return the settings that follow from the presence of tensors."""

    def has(name: str) -> bool:
        return f"blk.0.{name}" in file.tensors

    if "token_embd.weight" not in file.tensors:
        raise file.refusal("it has no token_embd.weight, so it is not a language model")
    shown = {
        "attention_bias": has("attn_q.bias"),
        "mlp_bias": has("ffn_up.bias"),
        "use_qkv_bias": has("attn_q.bias"),
        "use_bias": has("attn_q.bias"),
        "qkv_bias": has("attn_q.bias"),
        "bias": has("attn_qkv.bias"),
        "use_parallel_residual": not has("ffn_norm.weight"),
    }
    settings: dict[str, Any] = {name: value for name, value in shown.items() if name in known}
    settings["vocab_size"] = file.tensors["token_embd.weight"][0]
    settings["tie_word_embeddings"] = "output.weight" not in file.tensors
    return settings


def _of_tokens(file: GgufFile) -> dict[str, Any]:
    found = {ours: file.fields.get(f"tokenizer.ggml.{theirs}_token_id") for theirs, ours in _TOKENS.items()}
    if found["unk"] is None:
        del found["unk"]  # the others must be None then, not the default of the configuration
    settings: dict[str, Any] = {f"{ours}_token_id": value for ours, value in found.items()}
    # transformers' own reader sets this field, and fingerprints of targets include it.
    name = file.fields.get("general.name")
    return settings | ({} if name is None else {"_model_name_or_path": name})


def _of_family(architecture: str, settings: Mapping[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that follow from the architecture in llama.cpp, and that no fact gives."""
    layers, heads = settings["num_hidden_layers"], settings["num_attention_heads"]
    pattern = facts.pop("attention.sliding_window_pattern", None)
    found: dict[str, Any] = {"norm_topk_prob": True} if architecture == "qwen3moe" else {}
    if architecture in ("gemma2", "gemma3"):
        if (architecture, layers) in (("gemma2", 46), ("gemma3", 62)):  # of 27 B parameters
            found["query_pre_attn_scalar"] = settings["hidden_size"] // heads
        if isinstance(pattern, int):
            pattern = [bool((layer + 1) % pattern) for layer in range(layers)]
        if pattern is not None:
            found["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    elif pattern is not None:
        facts["attention.sliding_window_pattern"] = pattern
    return found


def _rope_parameters(
    file: GgufFile, defaults: dict[str, Any], settings: Mapping[str, Any], facts: dict[str, Any]
) -> dict[str, Any]:
    """Return transformers' rotary settings; scaling applies only to the layers without a window."""
    full: dict[str, Any] = dict(defaults.get("full_attention", defaults))
    full["rope_theta"] = facts.pop("rope.freq_base", full["rope_theta"])
    head = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
    if "partial_rotary_factor" in full and "rope.dimension_count" in facts:
        full["partial_rotary_factor"] = facts["rope.dimension_count"] / head
    full |= _scaling(file, full, head, settings["max_position_embeddings"], facts)
    if "full_attention" not in defaults:
        return full
    local = dict(defaults["sliding_attention"])
    local["rope_theta"] = facts.pop("rope.freq_base_swa", local["rope_theta"])
    return {"full_attention": full, "sliding_attention": local}


def _scaling(
    file: GgufFile, rotary: Mapping[str, Any], head: int, context: int, facts: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings that scale rotary frequencies: linear, YaRN, or by factors in tensors of the file."""
    kind = facts.pop("rope.scaling.type", "linear")
    before = facts.get("rope.scaling.original_context_length", context)
    scale = facts.pop("rope.scaling.factor", 0.0) or facts.pop("rope.scale_linear", 0.0) or 1.0
    scale = 1.0 if kind == "none" else scale  # as in llama.cpp
    attention = facts.pop("rope.scaling.attn_factor", None) or 1.0
    one, short, long = (file.tensor(name).double() if name in file.tensors else None for name in FACTORS)
    count = int(head * rotary.get("partial_rotary_factor", 1.0)) // 2
    if any(factors is not None and len(factors) != count for factors in (one, short, long)):
        raise file.refusal(f"it does not have one rotary factor for each of {count} frequencies")
    if short is not None and long is not None:
        lists = {"short_factor": short.tolist(), "long_factor": long.tolist()}
        return {
            "rope_type": "longrope",
            "attention_factor": attention,
            "original_max_position_embeddings": before,
        } | lists
    if kind == "yarn":
        attention *= facts.pop("rope.scaling.yarn_attn_factor", 1.0)
        found = {"rope_type": "yarn", "factor": scale, "original_max_position_embeddings": before}
        for name in ("beta_fast", "beta_slow"):
            if f"rope.scaling.yarn_{name}" in facts:
                found[name] = facts.pop(f"rope.scaling.yarn_{name}")
        if facts.get("rope.scaling.yarn_ext_factor") in (1.0, -1.0):
            del facts["rope.scaling.yarn_ext_factor"]
        if attention != 1.0:
            found["attention_factor"] = attention * (0.1 * math.log(scale) + 1)
        if one is None:
            return found
    if kind not in ("none", "linear") or attention != 1.0:
        raise file.refusal(f"the scaling of its rotary frequencies is not supported ({kind})")
    factors = torch.ones(head // 2, dtype=torch.float64, device="cpu") if one is None else one
    return _factors(scale * factors, rotary["rope_theta"], head, context)


def _factors(factors: torch.Tensor, theta: float, head: int, context: int) -> dict[str, Any]:
    """Return the setting that divides each frequency by its factor: linear or Llama-3's rule if that is the same."""
    largest = factors.max().item()
    if bool((factors == largest).all()):
        return {} if largest == 1 else {"rope_type": "linear", "factor": largest}
    llama3 = {"rope_type": "llama3", "factor": largest} | _LLAMA3
    waves = 2 * math.pi * theta ** (torch.arange(0, head, 2, dtype=torch.float64, device="cpu") / head)
    low, high = llama3["low_freq_factor"], llama3["high_freq_factor"]
    smooth = ((llama3["original_max_position_embeddings"] / waves - low) / (high - low)).clamp(0, 1)
    expected = 1 / ((1 - smooth) / llama3["factor"] + smooth)
    if factors.shape == expected.shape and torch.allclose(factors, expected, rtol=1e-5):
        return llama3
    lists = {"short_factor": factors.tolist(), "long_factor": factors.tolist()}
    fixed = {"rope_type": "longrope", "attention_factor": 1.0, "original_max_position_embeddings": context}
    return fixed | lists


def _check(
    file: GgufFile, config: PretrainedConfig, settings: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    """Raise UserError for a fact that the configuration does not follow."""
    for name, value in settings.items():
        if not _has(getattr(config, name, None), value):
            raise file.refusal(
                f"{config.model_type} of transformers does not allow {name} = {value}, which it says"
            )
    heads: int = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    rotary = getattr(config, "rope_parameters", None) or {}
    partial = rotary.get("full_attention", rotary).get("partial_rotary_factor", 1.0)
    same = {
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.head_count_kv": 1 if getattr(config, "multi_query", False) else heads,
        "rope.dimension_count": int(head * partial) if rotary else 0,
        "attention.causal": True,
    }
    for name, value in facts.items():
        if name in same:
            follows = value == same[name]
        else:
            follows = name in _HARMLESS or not value or (name in _OF_ONE and value == 1) or value == "none"
        if not follows:
            what = f"{file.architecture}.{name} = {str(value)[:40]}"
            raise file.refusal(f"it says {what}, which {config.model_type} of transformers does not follow")


def _has(found: Any, value: Any) -> bool:
    """Return True if a setting has the value that was set; a dictionary may have more keys."""
    if isinstance(value, dict) and isinstance(found, dict):
        return all(_has(found.get(key), each) for key, each in value.items())
    return found == value
