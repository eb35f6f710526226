"""``clover generate``: continue one prompt live, or several as one batch."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from clover.cli.generation import GenerationOptions, describe_gain, describe_generation
from clover.errors import UserError
from clover.options import BatchSize, Compare, argument, option, takes_options

if TYPE_CHECKING:
    from clover.api import Clover
    from clover.engine import Generation


@dataclass(frozen=True)
class GenerateOptions(GenerationOptions):
    """The options of `clover generate`."""

    prompts: Annotated[
        list[str] | None, argument("Texts to continue. Default: standard input.", metavar="PROMPT")
    ] = None
    prompt_file: Annotated[Path | None, option("Use the text of this file as one more prompt.")] = None
    as_json: Annotated[bool, option("Print one JSON object per prompt.", "--json")] = False
    batch_size: BatchSize = 8
    compare: Compare = False


@takes_options
def generate(options: GenerateOptions) -> None:
    """Continue prompts without a chat template. One prompt is streamed; several run as a batch. See clover chat."""
    prompts = _read_prompts(options.prompts or [], options.prompt_file)
    live = len(prompts) == 1 and not options.as_json
    if options.compare and not live:
        raise UserError("--compare needs one prompt, without --json; for many prompts use clover bench")
    model = options.load()
    if live:
        _print_live(model, prompts[0], options.request, options.compare)
    else:
        generations = model.generate(prompts, batch_size=options.batch_size, **options.request)
        _print_batch(prompts, generations, options.as_json)


def _read_prompts(prompts: list[str], file: Path | None) -> list[str]:
    try:
        if file is not None:
            # The line break at the end of a file is not part of the prompt.
            prompts = [*prompts, file.read_text(encoding="utf-8-sig").removesuffix("\n")]
        elif not prompts and not sys.stdin.isatty():
            # Standard input is read like a file: without a byte order mark, and with "\n" as line breaks.
            text = sys.stdin.read().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
            prompts = [text.removesuffix("\n")]
    except UnicodeDecodeError as error:
        raise UserError(f"{file or 'standard input'} is not UTF-8 text: {error.reason}") from error
    if not prompts or not all(prompts):
        raise UserError("a prompt is missing or empty; give an argument, --prompt-file or standard input")
    return prompts


def _print_live(model: "Clover", prompt: str, options: dict[str, Any], compare: bool) -> None:
    """Print a text as it is written; a terminal also shows its prompt before it, dimmed."""
    request = model.request(prompt, **options)
    if sys.stdout.isatty():
        print(f"\033[2m{prompt}\033[0m", end="", flush=True)
    for event in model.engine.run([request]):
        print(event.text, end="", flush=True)
        if event.generation is not None:
            print()
            print(describe_generation(event.generation), file=sys.stderr)
            if not event.generation.text and getattr(model.engine.target.tokenizer, "chat_template", None):
                print("the text is empty: this is a chat model; try clover chat", file=sys.stderr)
            if compare:
                *_, end = model.engine.run([replace(request, plain=True)])
                print(describe_gain(event.generation, end.generation), file=sys.stderr)


def _print_batch(prompts: Sequence[str], generations: "Sequence[Generation]", as_json: bool) -> None:
    for number, (prompt, generation) in enumerate(zip(prompts, generations, strict=True), start=1):
        if as_json:
            print(json.dumps(_to_dict(prompt, generation), ensure_ascii=False))
        else:
            print(f"[{number}] {prompt}\n{generation.text}\n")
            print(f"[{number}] {describe_generation(generation)}", file=sys.stderr)


def _to_dict(prompt: str, generation: "Generation") -> dict[str, Any]:
    return {
        "prompt": prompt,
        "text": generation.text,
        "tokens": list(generation.tokens),
        "prompt_tokens": generation.prompt_tokens,
        "finish_reason": generation.finish_reason,
        "first_token_seconds": generation.first_token_seconds,
        "seconds": generation.seconds,
        **generation.acceptance.to_dict(),
    }
