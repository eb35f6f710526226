"""What the user of the demo chooses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from clover import options


@dataclass(frozen=True)
class DemoOptions(options.ModelOptions):
    """The options of `clover demo`."""

    drafts: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME|DIR",
            help="Draft trained for the target, or lookup; may be given several times. Left out: the embedded ones.",
        ),
    ] = ()
    tree: options.Tree = None
    prompts: options.Prompts = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Left out: 96, of as many prompts as end in time."),
    ] = None
    temperature: Annotated[
        float, typer.Option(metavar="T", min=0, help="Of the sampled part; 0 leaves it out.")
    ] = 0.8
    picture: Annotated[Path, typer.Option(metavar="FILE", help="Picture to draw: .png, .pdf or .svg.")] = (
        Path("demo.png")
    )
    json: options.Json = None
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing before the table.")] = False
