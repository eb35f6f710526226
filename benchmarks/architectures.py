r"""Which of transformers' causal language models run, with which drafts, and why the others are refused.

    python benchmarks/architectures.py --write docs

Every model type that `AutoModelForCausalLM` or `AutoModelForImageTextToText` knows is made with random weights: two
layers of width 32, windows of 12 tokens. Two texts of up to 60 tokens are decoded plainly and with an untrained draft
of every trained system. A type runs if plain decoding chooses what the model's own forward over the whole text
chooses, and every draft leaves the text unchanged. float64, or float32 where the model's own code does not take
float64. Types given by name are tried alone, and printed.
"""

from __future__ import annotations

import argparse
import logging
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, PretrainedConfig

from clover.drafts.loading import SYSTEMS
from clover.engine import Engine, Request
from clover.errors import UserError, one_line
from clover.files import write_text
from clover.target import TargetModel
from clover.target.loading import FAILURES
from clover.target.support import attention_of, auto_class, check_config

SECONDS = 60  # for one type; some default configurations are too large to shrink
LARGEST = 30_000_000  # parameters: what is larger did not follow the sizes below
PROMPTS, NEW_TOKENS = (range(3, 23), range(3, 12)), 40
WIDTH, WINDOW, CONTEXT, VOCAB = 32, 12, 128, 50
_LAYERS = dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"), 2)
_HEADS = dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4) | {"num_key_value_heads": 4}
_WIDTHS = dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), WIDTH)
_INNER = dict.fromkeys(("intermediate_size", "ffn_dim", "moe_intermediate_size", "n_inner"), 48)
_CONTEXTS = dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), CONTEXT)
_WINDOWS = dict.fromkeys(("sliding_window", "attention_chunk_size"), WINDOW)
_EXPERTS = dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4)
_ROUTING = {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
_LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
_OWN_WIDTHS = {"head_dim": 8, "rotary_dim": 4, "shared_expert_intermediate_size": 16}
_TOKENS = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    **_LAYERS, **_HEADS, **_WIDTHS, **_INNER, **_CONTEXTS, **_WINDOWS, **_EXPERTS, **_ROUTING, **_LATENT,
    **_OWN_WIDTHS, **_TOKENS,
}  # fmt: skip

NO_SMALL_MODEL = "no small random model could be made"
# Families that people run and their types, those that run first; `page` answers for each.
FAMILIES = {
    "Llama 2, 3, 3.1, 3.2 (text), TinyLlama, Vicuna": ("llama",),
    "SmolLM, SmolLM2; SmolLM3": ("llama", "smollm3"),
    "Mistral 7B, Ministral, Mistral Small": ("mistral", "ministral", "ministral3", "mistral3"),
    "Mixtral": ("mixtral",),
    "Qwen2, Qwen2.5, Qwen2.5-Coder": ("qwen2",),
    "Qwen3; Qwen2 and Qwen3 MoE": ("qwen3", "qwen2_moe", "qwen3_moe"),
    "Gemma, Gemma 2, Gemma 3": ("gemma", "gemma2", "gemma3_text", "gemma3"),
    "Phi-1.5, Phi-2; Phi-3, Phi-4; Phi-3.5-MoE": ("phi", "phi3", "phimoe"),
    "StarCoder2": ("starcoder2",),
    "GLM-4, GLM-4.5": ("glm", "glm4", "glm4_moe"),
    "Granite 3, Granite 3 MoE": ("granite", "granitemoe"),
    "OLMo, OLMo-2, OLMo-3, OLMoE": ("olmo", "olmo2", "olmo3", "olmoe"),
    "DeepSeek-V3, DeepSeek-R1": ("deepseek_v3",),
    "gpt-oss": ("gpt_oss",),
    "Command R, Command R7B": ("cohere", "cohere2"),
    "Falcon; GPT-2; Pythia": ("falcon", "gpt2", "gpt_neox"),
    "DeepSeek-V2": ("deepseek_v2",),
    "Gemma 3n, Gemma 4": ("gemma3n_text", "gemma4_text"),
    "Granite 4": ("granitemoehybrid",),
    "Llama 4": ("llama4", "llama4_text"),
    "Qwen3-Next, Qwen3.5": ("qwen3_next", "qwen3_5_text"),
    "Mamba, Jamba, Falcon-H1": ("mamba", "jamba", "falcon_h1"),
}
ANSWERS = {"runs": "yes", "refused": "no", "not tried": "not tried", "WRONG": "no"}


def main() -> None:
    """Try all types, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("types", nargs="*", help="model types, such as llama. Default: all")
    parser.add_argument(
        "--write", type=Path, help="directory of the pages models.md and development/models.md"
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    mappings = (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING)
    known = {config.model_type: config for mapping in mappings for config in mapping}
    rows: list[tuple[str, str, str]] = []
    for name in sorted(options.types or known):
        rows.append((name, *tried(known[name])))
        print(*rows[-1], sep="  ", flush=True)
    if options.write:
        write_text(options.write / "models.md", families_page(rows))
        write_text(options.write / "development" / "models.md", types_page(rows))


def tried(config_class: type[PretrainedConfig]) -> tuple[str, str]:
    """Return what became of a type: "runs", "refused", "not tried" or "WRONG", and what there is to say of it."""
    failed: BaseException = ValueError("no configuration of these sizes")
    signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(SECONDS)
    try:
        for config in _configs(config_class):
            check_config(config)
            for dtype in (torch.float64, torch.float32):
                try:
                    return judged(_random(config, dtype))
                except UserError:
                    raise
                except FAILURES as error:  # the model's own code may want another dtype or other sizes
                    failed = error
    except UserError as error:
        return "refused", one_line(error)
    except FAILURES as error:
        failed = error
    finally:
        signal.alarm(0)
    return "not tried", f"{NO_SMALL_MODEL} ({type(failed).__name__}: {one_line(failed)[:80]})"


def judged(model: Any) -> tuple[str, str]:
    """Return what `tried` says of a model that runs by itself."""
    target = TargetModel(model)
    wrong, without = differences(target)
    facts = ["text alone"] if target.config is not model.config else []
    facts += [attention_of(model.config), *(f"{kind} cut at its window" for kind in target.windows.sizes)]
    facts += [] if target.run_limit == "context" else [f"texts end with the {target.run_limit}"]
    facts += [f"no {system}" for system in without]
    return ("WRONG", "; ".join(wrong)) if wrong else ("runs", "; ".join(facts))


def _configs(config_class: type[PretrainedConfig]) -> Iterator[PretrainedConfig]:
    """Return the sizes that a type has fields for, with and without those that other fields may have to agree with."""
    default = config_class()
    for left_out in ((), ("head_dim",), ("layer_types",), ("num_key_value_heads", "head_dim")):
        try:
            yield config_class(**_sizes(default, left_out))
        except FAILURES:
            continue


def _sizes(default: Any, left_out: tuple[str, ...]) -> dict[str, Any]:
    """Small sizes of a configuration and of those inside it."""
    sizes: dict[str, Any] = {name: size for name, size in SIZES.items() if getattr(default, name, None)}
    if hasattr(default, "head_dim"):  # which some types cannot do without, though it may be left out
        sizes["head_dim"] = SIZES["head_dim"]
    if getattr(default, "pad_token_id", None) is not None:
        sizes["pad_token_id"] = 0
    if kinds := list(dict.fromkeys(getattr(default, "layer_types", None) or ())):
        sizes["layer_types"] = (kinds * 2)[:2]
    rotary = getattr(default, "rope_parameters", None) or {}
    if "mrope_section" in rotary or "vl" in default.model_type:  # positions of text, height and width
        sizes["rope_parameters"] = {**rotary, "mrope_section": [1, 1, 2]}
    sizes = {name: size for name, size in sizes.items() if name not in left_out}
    for name in default.sub_configs:
        part = getattr(default, name, None)
        if isinstance(part, PretrainedConfig):
            sizes[name] = {"model_type": part.model_type, **_sizes(part, left_out)}
    return sizes


def _random(config: PretrainedConfig, dtype: torch.dtype) -> Any:
    """Return a model with weights large enough for all of its parts to matter, which has run once."""
    kind = auto_class(config)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in kind.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(0)
    model = kind.from_config(config, attn_implementation=attention_of(config), dtype=dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.15)
        model(input_ids=torch.arange(3, 10)[None])
    return model


def differences(target: TargetModel) -> tuple[list[str], list[str]]:
    """Return what decodes another text than it should, and which systems cannot be made for this target."""
    requests = [Request(tuple(prompt), NEW_TOKENS, eos=()) for prompt in PROMPTS]
    requests = [one for one in requests if len(one.prompt) < target.longest_run]
    plain = _texts(Engine(target), requests)
    wrong, without = list[str](), list[str]()
    for request, new in zip(requests, plain, strict=True):
        text = torch.tensor([[*request.prompt, *new]])
        logits = target.model(input_ids=text, use_cache=False).logits[0]
        if logits[len(request.prompt) - 1 : -1].argmax(-1).tolist() != new:
            wrong.append("plain decoding")
    for system, draft_class in SYSTEMS.items():
        try:
            draft: Any = draft_class.from_target(target).eval()
        except UserError:
            without.append(system)
            continue
        if _texts(Engine(target, draft.to(target.dtype)), requests) != plain:
            wrong.append(system)
    return wrong, without


def _texts(engine: Engine, requests: list[Request]) -> list[list[int]]:
    found = {one.index: list(one.generation.tokens) for one in engine.run(requests) if one.generation}
    return [found[index] for index in range(len(requests))]


def _too_slow(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def families_page(rows: list[tuple[str, str, str]]) -> str:
    """Return the Markdown page of the families that users look for."""
    lines = [
        "# Does my model run?",
        "",
        "Most decoder-only language models of transformers run unpatched. The type of your model is `model_type` in "
        "its `config.json`.",
        "",
        "| models | types | runs |",
        "| --- | --- | --- |",
        *_families({name: found for name, found, _ in rows}),
        "",
        "- **yes**: plain decoding gives the model's own text, and no draft changes it. This was tested with small "
        "models with random weights, so it says nothing about speed.",
        "- **no**: the model is refused by name when it is loaded. Usually its layers have a recurrent state, or "
        "select the positions to which they attend.",
        "- **not tried**: no small model of this type could be made. A real model may run. Clover tests every model "
        "when it is loaded, and refuses a model that it cannot run without changing the text.",
        "",
        "To try your model, run `clover generate 'Once upon a time' --target DIR --tree lookup`. A GGUF file runs "
        "(`pip install '.[gguf]'`) if its architecture is one of falcon, gemma2, gemma3, gpt2, llama, nemotron, phi3, "
        "qwen2, qwen2moe, qwen3, qwen3moe, stablelm and starcoder2. Each of its settings is followed, or refused by "
        "name.",
        "",
        "[All types of transformers, with the reasons](development/models.md)",
    ]
    return "\n".join([*lines, ""])


def types_page(rows: list[tuple[str, str, str]]) -> str:
    """Return the Markdown page of every type: those that run, then those that do not, with the reason."""
    counts = {kind: sum(row[1] == kind for row in rows) for kind in ("runs", "refused", "not tried", "WRONG")}
    counted = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    lines = [
        "# Which types of transformers run, and how?",
        "",
        f"transformers {transformers.__version__}, torch {torch.__version__}: {counted}. The docstring of the script "
        "describes the tests. *text alone*: the model also reads images, which Clover does not. *sdpa* and *eager* are "
        "implementations of attention in transformers.",
        "",
        "    python benchmarks/architectures.py --write docs",
    ]
    for kind in (kind for kind, count in counts.items() if count):
        lines += ["", f"## {kind}", ""]
        lines += [f"- `{name}`: {notes}" for name, found, notes in rows if found == kind]
    return "\n".join([*lines, ""])


def _families(found: dict[str, str]) -> Iterator[str]:
    """Yield the row of each family of which a type was tried."""
    for family, types in FAMILIES.items():
        known = [name for name in types if name in found]
        answers = dict.fromkeys(ANSWERS[found[name]] for name in known)
        if known:
            yield f"| {family} | {', '.join(f'`{name}`' for name in known)} | {', '.join(answers)} |"


if __name__ == "__main__":
    main()
