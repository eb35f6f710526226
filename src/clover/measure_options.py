"""The options of the commands that measure, see `clover.options.takes_options`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from clover import options

_money = options.panel("Training and money")


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
        typer.Option(
            metavar="FILE",
            help="File to write. Left out: tuning.json in the draft's directory; for vllm, none.",
        ),
    ] = None
    json: options.Json = None
    for_: Annotated[
        Literal["clover", "vllm"], typer.Option("--for", help="The engine that will run the draft.")
    ] = "clover"
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For vllm: times of its steps, by python -m clover.integrations.vllm.costs. Left out: measured here.",
        ),
    ] = None


@dataclass(frozen=True)
class CompareOptions(options.ModelOptions):
    """The options of `clover compare`; target, data and tasks come in place of the suite's."""

    suite: Annotated[
        str,
        typer.Argument(
            help="TOML file, or one of: quick, systems, ablation, tree-size, learning-rate, paper-clover1, "
            "paper-clover2; of trained drafts for SmolLM2: smollm2-clover1, smollm2-clover2, smollm2-tree-size, "
            "smollm2-ablation.",
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
    drafts: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the trained drafts are that the suite names. Left out: beside the suite.",
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the files are that the suite's tasks name. Left out: beside the suite."
        ),
    ] = None
    max_prompts: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Prompts of each task, in place of the suite's number."),
    ] = None
    max_new_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="New tokens, in place of the suite's number.")
    ] = None
    publish: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also write SUITE.json here, and README.md with the tables of all suites in this directory.",
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
