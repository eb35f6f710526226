"""What the user of an evaluation chooses."""

from dataclasses import dataclass
from typing import Annotated

import typer

from clover import options


@dataclass(frozen=True)
class EvaluateOptions(options.ModelOptions):
    """The options of `clover evaluate`; each tree is measured at each temperature."""

    files: Annotated[
        tuple[str, ...],
        typer.Argument(
            metavar="FILE",
            help="Prompts: Spec-Bench, MT-bench, HumanEval, GSM8K, other .json and .jsonl, .txt with one per line; "
            ".py and other texts are cut into prompts. Left out: code prompts.",
        ),
    ] = ()
    draft: options.Draft = None
    trees: options.Trees = ()
    temperatures: options.Temperatures = (0.0, 1.0)
    max_new_tokens: options.MaxNewTokens = 128
    max_prompts: options.MaxPrompts = 24
    batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="Prompts that run together; less takes less memory.")
    ] = 8
    seed: options.Seed = 0
    json: options.Json = None
