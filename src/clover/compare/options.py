"""What the user of a comparison chooses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from clover import options


@dataclass(frozen=True)
class CompareOptions(options.ModelOptions):
    """The options of `clover compare`; target, data and tasks come in place of the suite's."""

    suite: Annotated[
        str,
        typer.Argument(
            help="TOML file, or one of: quick, systems, ablation, tree-size, learning-rate, paper-clover1, "
            "paper-clover2.",
        ),
    ] = "quick"
    target: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Another target than the suite's: directory or hub name."),
    ] = None
    data: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="FILE", help="Texts or chats to train on, in place of the suite's; repeat for more."
        ),
    ] = ()
    tasks: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME=FILE[:GROUP]",
            help="Prompts to measure on, in place of the suite's tasks; repeat for more.",
        ),
    ] = ()
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Results and report. Left out: runs/ and the suite's name."),
    ] = None
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep text and drafts here; suites on one target can share it, and train no draft twice. "
            "Left out: beside the results, DIR.work.",
        ),
    ] = None
    report_only: Annotated[
        bool,
        typer.Option("--report-only", help="Write the report of the results that are there; run nothing."),
    ] = False

    @property
    def folder(self) -> Path:
        """The output directory."""
        return self.output or Path("runs") / Path(self.suite).stem
