"""``clover recipe``: make the embedded target and drafts again, from source code on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from clover import options


def recipe(
    output: options.Output,
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What the stages hand over; an interrupted run goes on here."),
    ] = None,
    minutes: Annotated[
        float, typer.Option(metavar="M", min=0.1, help="Time for all training and writing.")
    ] = 240.0,
    device: options.Device = None,
    overwrite: options.Overwrite = False,
    keep_target: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Output of an earlier run: keep its target, renew the drafts alone."
        ),
    ] = None,
) -> None:
    """Train a small code model and its drafts offline, as the embedded ones were made."""
    from clover.recipe.run import RecipeOptions, run_recipe

    options.hide_loading_bars()
    work = work or output.with_name(output.name + ".work")
    run_recipe(
        RecipeOptions(output, work, minutes=minutes, device=device, overwrite=overwrite, keep=keep_target)
    )
