"""What the user of the benchmark chooses."""

from dataclasses import dataclass
from typing import Annotated

import typer

from clover import options


@dataclass(frozen=True)
class BenchOptions(options.ModelOptions):
    """The options of `clover bench`; every method runs at each pair of batch size and temperature."""

    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="Target: a directory or a name on the hub. Left out: the embedded one."
        ),
    ] = None
    draft: options.Draft = None
    prompts: options.Prompts = None
    batch_sizes: options.BatchSizes = (1,)
    temperatures: options.Temperatures = (0.0,)
    trees: options.Trees = ()
    assistant: Annotated[
        str | None,
        typer.Option(metavar="NAME|DIR", help="Small model for transformers' assisted generation."),
    ] = None
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="How often every method decodes all prompts, in turn.")
    ] = 5
    max_new_tokens: options.MaxNewTokens = 128
    max_prompts: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most prompts; larger batches take them again.")
    ] = 8
    no_reference: Annotated[
        bool, typer.Option("--no-reference", help="Leave transformers' own `generate` out.")
    ] = False
    compile: options.Compile = False
    json: options.Json = None
    picture: options.Picture = None
