"""What the user of `clover cost` chooses."""

from dataclasses import dataclass
from typing import Annotated

import typer

from clover import options

_money = options.panel("Training and money")


@dataclass(frozen=True)
class CostOptions(options.ModelOptions):
    """The options of `clover cost`: a draft system on a target, or a trained draft."""

    prompts: options.Files = ()
    draft: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="A trained draft, whose sizes are used. Left out: random weights."),
    ] = None
    system: Annotated[str, typer.Option(metavar="NAME", help="Draft system, as for `clover train`.")] = (
        "recall"
    )
    draft_vocabulary: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Tokens that the draft will propose from (`clover vocabulary`)."
        ),
    ] = None
    trees: options.Trees = ()
    batch_sizes: options.BatchSizes = (1, 4, 16)
    taus: Annotated[
        tuple[float, ...],
        typer.Option(metavar="T", min=1, help="τ to predict the speed-up at; may be given several times."),
    ] = ()
    minutes: Annotated[
        float | None, _money("Minutes of the training. Left out: what --draft took.", metavar="M", min=0)
    ] = None
    price: Annotated[
        float | None, _money("Money per hour of the machine that trains.", metavar="P", min=0)
    ] = None
    serving_price: Annotated[
        float | None, _money("The same of the machine that decodes. Left out: --price.", metavar="P", min=0)
    ] = None
    max_new_tokens: options.MaxNewTokens = 128
    max_minutes: options.MaxMinutes = 1.0
    seed: options.Seed = 0
    json: options.Json = None
