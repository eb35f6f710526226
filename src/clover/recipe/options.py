"""What the user of the recipe chooses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from clover import options


@dataclass(frozen=True)
class RecipeOptions:
    """The options of `clover recipe`."""

    output: options.Output
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What the stages hand over; an interrupted run goes on here."),
    ] = None
    minutes: Annotated[
        float, typer.Option(metavar="M", min=0.1, help="Time for all training and writing.")
    ] = 240.0
    device: options.Device = None
    overwrite: options.Overwrite = False
    keep_target: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Output of an earlier run: keep its target, renew the drafts alone."
        ),
    ] = None

    @property
    def folder(self) -> Path:
        """The work directory; it is kept, so that the run can go on or be looked at."""
        return self.work or self.output.with_name(self.output.name + ".work")

    @property
    def command(self) -> str:
        """The command that repeats the run, for the card."""
        kept = "" if self.keep_target is None else " --keep-target DIR"
        return f"clover recipe --output DIR --minutes {self.minutes:g}{kept}"
