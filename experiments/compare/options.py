"""The options of ``python -m experiments.compare``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from clover import options
from clover.options import option


@dataclass(frozen=True)
class CompareOptions(options.ModelOptions):
    """The options of the command; target, data, tasks and temperatures come in place of the suite's."""

    suite: Annotated[
        str | None,
        typer.Argument(
            help="TOML file, or one of experiments/compare/suites: quick (when left out), systems, ablation, "
            "tree-size, learning-rate, paper-clover1, paper-clover2; of the package's drafts for SmolLM2: "
            "smollm2-shipped; of drafts that you train for it: smollm2-clover1, smollm2-clover2, smollm2-tree-size, "
            "smollm2-ablation, smollm2-learning-curve."
        ),
    ] = None
    target: Annotated[
        str | None, option("Another target than the suite's: directory or hub name.", metavar="MODEL")
    ] = None
    data: Annotated[
        tuple[str, ...],
        option("Texts or chats to train on, in place of the suite's; repeat for more.", metavar="FILE"),
    ] = ()
    tasks: Annotated[
        tuple[str, ...],
        option(
            "Prompts to measure on, in place of the suite's tasks; repeat for more.",
            metavar="NAME=FILE[:GROUP]",
        ),
    ] = ()
    output: Annotated[
        Path | None, option("Results and report. Left out: runs/ and the suite's name.", metavar="DIR")
    ] = None
    work: Annotated[
        Path | None,
        option(
            "Keep text and drafts here; suites on one target can share it, and train no draft twice. "
            "Left out: beside the results, DIR.work.",
            metavar="DIR",
        ),
    ] = None
    drafts: Annotated[
        Path | None,
        option(
            "Where the trained drafts are that the suite names. Left out: beside the suite.", metavar="DIR"
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        option("Where the files are that the suite's tasks name. Left out: beside the suite.", metavar="DIR"),
    ] = None
    max_prompts: Annotated[
        int | None, option("Prompts of each task, in place of the suite's number.", min=1)
    ] = None
    max_new_tokens: Annotated[int | None, option("New tokens, in place of the suite's number.", min=1)] = None
    temperatures: options.Temperatures = ()
    publish: Annotated[
        Path | None,
        option(
            "Also write the numbers here, as SUITE.json.",
            metavar="DIR",
        ),
    ] = None
    report_only: Annotated[bool, option("Write the report of the results that are there; run nothing.")] = (
        False
    )

    @property
    def suite_file(self) -> str:
        """Return the suite that is compared: its file, or its name in `suites`."""
        return self.suite or "quick"

    @property
    def folder(self) -> Path:
        """Return the output directory."""
        return self.output or Path("runs") / Path(self.suite_file).stem
