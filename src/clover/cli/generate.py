"""``clover generate``: continue one prompt live, or several as one batch."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clover import options
from clover.cli.statistics import describe
from clover.errors import UserError

if TYPE_CHECKING:
    from clover.api import Clover
    from clover.engine import Generation

Prompts = Annotated[
    list[str] | None, typer.Argument(metavar="PROMPT", help="Texts to continue; standard input if none.")
]
PromptFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="One more prompt: the text of this file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt.")]

BatchSize = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Prompts that run together; less takes less memory."),
]


def generate(
    prompts: Prompts = None,
    prompt_file: PromptFile = None,
    as_json: Json = False,
    batch_size: BatchSize = None,
    target: options.Target = None,
    draft: options.Draft = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    method: options.Method = "auto",
    tree: options.Tree = None,
    plain: options.Plain = False,
    compile: options.Compile = False,
    max_new_tokens: options.MaxNewTokens = 256,
    stop: options.Stop = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = 0,
) -> None:
    """Continue prompts: one is shown as it is written, several run as a batch."""
    texts = _read_prompts(prompts or [], prompt_file)
    request: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": stop or (), "seed": seed}
    request |= {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    request |= {"repetition_penalty": repetition_penalty}

    from clover.api import load

    options.hide_loading_bars()

    model = load(
        target, draft, method=method, tree=tree, plain=plain, dtype=dtype, device=device,
        trust_remote_code=trust_remote_code, compile=compile,
    )  # fmt: skip
    if len(texts) == 1 and not as_json:
        _print_live(model, texts[0], request)
    else:
        batches = {} if batch_size is None else {"batch_size": batch_size}
        _print_batch(texts, model.generate(texts, **request, **batches), as_json)


def _read_prompts(prompts: list[str], file: Path | None) -> list[str]:
    try:
        if file is not None:
            prompts = [*prompts, file.read_text(encoding="utf-8")]
        elif not prompts and not sys.stdin.isatty():
            prompts = [sys.stdin.read()]
    except UnicodeDecodeError as error:
        raise UserError(f"{file or 'standard input'} is not UTF-8 text: {error.reason}") from error
    if not prompts or not all(prompts):
        raise UserError(
            "a prompt is missing or empty; give it as an argument, by --prompt-file or on standard input"
        )
    return prompts


def _print_live(model: "Clover", prompt: str, request: dict[str, Any]) -> None:
    for event in model.engine.run([model.request(prompt, **request)]):
        print(event.text, end="", flush=True)
        if event.generation is not None:
            print()
            print(describe(event.generation), file=sys.stderr)


def _print_batch(prompts: Sequence[str], generations: "Sequence[Generation]", as_json: bool) -> None:
    for number, (prompt, generation) in enumerate(zip(prompts, generations, strict=True), start=1):
        if as_json:
            print(json.dumps(_to_dict(prompt, generation), ensure_ascii=False))
        else:
            print(f"[{number}] {prompt}\n{generation.text}\n")
            print(f"[{number}] {describe(generation)}", file=sys.stderr)


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
