"""What the user of `clover tune` chooses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from clover import options


@dataclass(frozen=True)
class TuneOptions(options.ModelOptions):
    """The options of `clover tune`."""

    files: options.Files = ()
    draft: options.Draft = None
    batch_sizes: options.BatchSizes = (1, 2, 4, 8, 16)
    temperature: options.Temperature = 0.0
    max_new_tokens: options.MaxNewTokens = 128
    max_prompts: options.MaxPrompts = 24
    max_minutes: options.MaxMinutes = 10.0
    seed: options.Seed = 0
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to write. Left out: tuning.json in the draft's directory."),
    ] = None
    json: options.Json = None
