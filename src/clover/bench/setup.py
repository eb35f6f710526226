"""The models, methods and prompts of a benchmark, loaded and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

from clover import assets
from clover.bench.methods import ASSISTED, make_method
from clover.bench.options import BenchOptions
from clover.data.tasks import read_prompts
from clover.engine import Request
from clover.errors import UserError, one_line
from clover.interleaved import make_batches
from clover.target import TargetModel


class Bench:
    """What `options` ask for, with these methods.

    Raises:
        UserError: a model, a tree or the prompts cannot be used.
    """

    def __init__(self, options: BenchOptions, names: Sequence[str]):
        self.options = options
        trust, place = options.trust_remote_code, options.target or str(assets.TARGET)
        self.target = TargetModel.load(
            place, dtype=options.dtype, device=options.device, trust_remote_code=trust
        )
        assistant: Any = None
        if options.assistant is not None and ASSISTED in names:
            assistant = load_assistant(options.assistant, self.target, trust)
        draft = assets.draft_place(options.draft)
        self.methods = [make_method(name, self.target, draft, assistant, options.compile) for name in names]
        self.prompts = find_prompts(options.prompts, self.target, options.max_new_tokens, options.max_prompts)

    def batches(self, size: int, temperature: float) -> list[list[Request]]:
        """All prompts in batches."""
        room = self.target.context_length
        return make_batches(self.prompts, size, temperature, self.options.max_new_tokens, room)


def load_assistant(name: str, target: TargetModel, trust_remote_code: bool) -> Any:
    """Load a small model for assisted generation.

    Raises:
        UserError: it cannot be loaded, or has another vocabulary than the target.
    """
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            name, dtype=target.dtype, use_safetensors=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise UserError(f"the assistant {name} cannot be loaded: {one_line(error)}") from error
    if model.config.vocab_size != target.config.vocab_size:
        raise UserError(
            f"the assistant {name} has a vocabulary of {model.config.vocab_size}, the target one of "
            f"{target.config.vocab_size}; transformers needs the same"
        )
    return model.to(target.device).eval()


def find_prompts(
    file: Path | None, target: TargetModel, max_new_tokens: int, limit: int
) -> list[tuple[int, ...]]:
    """Prompts as token ids that leave room for all new tokens, so that every method writes the same number.

    Args:
        file: see `clover.data.tasks`; the embedded held-out code prompts when left out.

    Raises:
        UserError: the file cannot be read, no prompt leaves room, or the target has no tokenizer.
    """
    if target.tokenizer is None:
        raise UserError("the target has no tokenizer, which prompts need")
    found = read_prompts([file or assets.HELD_OUT_PROMPTS], target.tokenizer)
    if file is None:
        found = [one for one in found if one.group == assets.HELD_OUT_PROMPTS.stem]
    room = target.context_length - max_new_tokens
    fitting = [one.tokens for one in found if len(one.tokens) <= room]
    if not fitting:
        raise UserError(
            f"no prompt leaves room for {max_new_tokens} new tokens in the target's context of "
            f"{target.context_length}; lower --max-new-tokens or give shorter prompts"
        )
    return fitting[:limit]
