"""The models, methods and prompts of a benchmark, loaded and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import AutoModelForCausalLM

from clover import assets
from clover.bench.methods import ASSISTED, make_method
from clover.bench.options import BenchOptions
from clover.data.tasks import fitting
from clover.engine import Request
from clover.errors import UserError, one_line
from clover.evaluate import choose_prompts
from clover.interleaved import make_batches
from clover.target import TargetModel


class Bench:
    """What `options` ask for, with these methods.

    Attributes:
        target: of all methods.
        methods: in the order of `names`.
        prompts: token ids; of the embedded ones those that are held out.

    Raises:
        UserError: a model, a tree or the prompts cannot be used.
    """

    def __init__(self, options: BenchOptions, names: Sequence[str]):
        self.options = options
        self.target = TargetModel.load(
            options.target or assets.TARGET, options.dtype, options.device, options.trust_remote_code
        )
        assistant, draft = None, assets.draft_place(options.draft)
        if options.assistant is not None and ASSISTED in names:
            assistant = load_assistant(options.assistant, self.target, options.trust_remote_code)
        self.methods = [make_method(name, self.target, draft, assistant, options.compile) for name in names]
        files = () if options.prompts is None else (str(options.prompts),)
        prompts = choose_prompts(files, self.target, None, assets.HELD_OUT_PROMPTS.stem)
        fit = fitting(prompts, self.target.context_length, options.max_new_tokens)
        self.prompts = [one.tokens for one in fit[: options.max_prompts]]

    def batches(self, size: int, temperature: float) -> list[list[Request]]:
        """All prompts in batches."""
        tokens, room = self.options.max_new_tokens, self.target.context_length
        return make_batches(self.prompts, size, temperature, tokens, room)


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
