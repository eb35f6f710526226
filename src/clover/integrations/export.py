"""Write a draft in the format of another engine: `clover export`.

The weights are unchanged, in safetensors; config.json is written for the engine. See docs/vllm.md.
"""

import json
from pathlib import Path
from shlex import quote
from typing import Any

from clover.drafts import DraftModel, check_usable, load_unbound
from clover.drafts.layers import attention_heads, key_value_heads
from clover.drafts.recall import RecallDraft
from clover.errors import UserError
from clover.files import check_output_directory, output_directory, write_json
from clover.integrations.vllm.names import ARCHITECTURES
from clover.packaged import draft_place
from clover.target.decoder import DecoderStack
from clover.target.source import is_gguf
from clover.validation import read_json

_KEPT = ("dtype", "transformers_version")
_SPECULATORS = "0.9.0"  # the release of the library whose schema the tests check against


def export(
    to: str, draft: str, output: Path, target: str | None = None, drafted: int = 2, overwrite: bool = False
) -> str | None:
    """Write a draft's directory for another engine: "vllm", or "speculators" for the format of that library.

    The draft is a directory, a name on the hub, or an embedded one. The speculators format contains `target`, unless it
    is None, and `drafted` tokens per step. UserError, before anything is written, if the draft cannot be used, or
    cannot run there. Returns a description of what the draft loses there; None if it loses nothing.
    """
    if target is not None:
        check_no_gguf(target)
    check_output_directory(output, overwrite)
    loaded = load_unbound(draft_place(draft))
    _check(loaded, draft, drafted)
    with output_directory(output, overwrite) as folder:
        loaded.save_pretrained(folder)
        stored = read_json(folder / "config.json")
        fields = {name: value for name, value in stored.items() if name not in _KEPT}
        config = _vllm(loaded, fields) if to == "vllm" else _speculators(loaded, fields, target, drafted)
        write_json(folder / "config.json", config | {name: stored[name] for name in _KEPT if name in stored})
    copies = isinstance(loaded, RecallDraft) and loaded.has_copy_weights
    return "other engines have no place for its copies from the text" if copies else None


def check_no_gguf(name: str) -> None:
    """Raise UserError for a target in a GGUF file, with the command that converts it to a directory."""
    if is_gguf(name):
        folder = json.dumps(f"{Path(name).stem}-hf")
        load = f'from clover.target import TargetModel as T; t = T.load({json.dumps(name)}, "float32")'
        save = f"[x.save_pretrained({folder}) for x in (t.model, t.tokenizer)]"
        command = f"python -c {quote(f'{load}; {save}')}"
        raise UserError(
            f"vLLM does not read the GGUF file of {name}; name the directory that this writes: {command}"
        )


def _check(draft: DraftModel, name: str, drafted: int) -> None:
    """Raise UserError for a draft that vLLM's driver cannot run, or that cannot draft `drafted` tokens."""
    system, config = draft.config.model_type, draft.config
    if system not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"{name} is a {system} draft; those of {known} can be exported")
    check_usable(draft, name)
    if config.hidden_state != "post_norm":
        raise UserError(
            f"{name} reads {config.hidden_state} hidden states; other engines hand out those after the final norm: "
            "train a draft with --set hidden_state=post_norm"
        )
    paper: Any = config
    if system == "clover1" and (paper.augmenting, paper.connection) != ("block", "attention"):
        raise UserError(f"{name} is an ablation of Clover-1, which no other engine runs")
    if system == "clover1" and drafted > config.num_heads:
        most = config.num_heads
        raise UserError(f"{name} has {most} heads, not {drafted}: give --draft-tokens {most} or fewer")
    kind, layers = config.target_shape.model_type, getattr(draft, "augment", None)
    if isinstance(layers, DecoderStack) and (kind.startswith("gemma") or layers.input_scale != 1.0):
        raise UserError(
            f"{name} has layers of the target's kind, {kind}, which scales its embeddings: vLLM's might scale the "
            "draft's states too; train a draft with --system recall"
        )
    if isinstance(layers, DecoderStack) and not (config.target_config or {}).get("architectures"):
        raise UserError(
            f"{name} has layers like those of a target that also reads images, {kind}, which vLLM does not build by "
            "themselves: train a draft with --system recall"
        )


def _vllm(draft: DraftModel, stored: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration that vLLM reads as a small LLaMA's, with an architecture registered by the plugin."""
    shape: Any = draft.config.target_shape
    return {
        "architectures": [ARCHITECTURES[stored["model_type"]]],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": getattr(shape, "intermediate_size", None) or 4 * shape.hidden_size,
        "num_attention_heads": attention_heads(shape),
        "num_key_value_heads": key_value_heads(shape),
        "num_hidden_layers": getattr(draft.config, "num_augmenting_layers", 1),
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": False,
        "index_share_for_mtp_iteration": True,  # model runner V1 announces pass 0 if this is set
        "clover": stored,
    }


def _speculators(
    draft: DraftModel, stored: dict[str, Any], target: str | None, drafted: int
) -> dict[str, Any]:
    """Return the configuration of the speculators format: its own fields, and those of the draft."""
    system = stored["model_type"]
    method = {"proposal_type": "greedy", "speculative_tokens": drafted}
    verifier = {"name_or_path": target, "architectures": draft.config.target_shape.architectures or []}
    return stored | {
        "speculators_model_type": system,
        "speculators_version": _SPECULATORS,
        "speculators_config": {
            "algorithm": system,
            "proposal_methods": [method],
            "default_proposal_method": "greedy",
            "verifier": verifier,
        },
    }
