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
            help="TOML file, or a suite of experiments/compare/suites: quick, systems, ablation, tree-size, "
            "learning-rate, paper-clover1, paper-clover2; smollm2-shipped with the package's drafts for SmolLM2; with "
            "drafts that you train for it, smollm2-clover1, smollm2-clover2, smollm2-tree-size, smollm2-ablation, "
            "smollm2-learning-curve, and coder for Qwen2.5-Coder-1.5B-Instruct. Default: quick."
        ),
    ] = None
    target: Annotated[
        str | None,
        option("Target in place of the suite's: a directory or a name on the Hub.", metavar="MODEL"),
    ] = None
    data: Annotated[
        tuple[str, ...],
        option(
            "Training texts or chats in place of the suite's; may be given several times.", metavar="FILE"
        ),
    ] = ()
    tasks: Annotated[
        tuple[str, ...],
        option(
            "Prompts in place of the suite's tasks; may be given several times.",
            metavar="NAME=FILE[:GROUP]",
        ),
    ] = ()
    output: Annotated[
        Path | None,
        option("Directory of results and report. Default: runs/ and the suite's name.", metavar="DIR"),
    ] = None
    work: Annotated[
        Path | None,
        option(
            "Directory of texts and drafts; suites with one target can share it, and then train no draft twice. "
            "Default: DIR.work beside the results.",
            metavar="DIR",
        ),
    ] = None
    drafts: Annotated[
        Path | None,
        option(
            "Directory of the trained drafts that the suite names. Default: the suite's directory.",
            metavar="DIR",
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        option(
            "Directory of the files that the suite's tasks name. Default: the suite's directory.",
            metavar="DIR",
        ),
    ] = None
    max_prompts: Annotated[
        int | None, option("Number of prompts per task, in place of the suite's.", min=1)
    ] = None
    max_new_tokens: Annotated[int | None, option("Number of new tokens, in place of the suite's.", min=1)] = (
        None
    )
    temperatures: options.Temperatures = ()
    publish: Annotated[
        Path | None,
        option(
            "Also write the numbers to SUITE.json in this directory.",
            metavar="DIR",
        ),
    ] = None
    report_only: Annotated[bool, option("Write the report of the existing results, and run nothing.")] = False

    @property
    def suite_file(self) -> str:
        """Return the suite that is compared: its file, or its name in `suites`."""
        return self.suite or "quick"

    @property
    def folder(self) -> Path:
        """Return the output directory."""
        return self.output or Path("runs") / Path(self.suite_file).stem
